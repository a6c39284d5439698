"""Strategies that draw runs on which both must agree: away from what is lifted or stricter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st

from tests.peer.plans import MODELS, OPTIMIZERS, SCHEDULERS, Average, Plan, Scaling, build_models

LONGEST = 16
CALM = (1.0, 0.5, -1.0, 10.0)
STORMY = (1.0, 0.5, -1.0, 0.25, 300.0, 1e30, float("inf"), float("nan"))

decays = st.sampled_from([0.0, 0.5, 0.9, 0.999]) | st.floats(0.0, 1.0, exclude_max=True)
unused = st.sampled_from([(1.0, 0.5), (None, 1.0), (1.0, None)])
"""What the losses of two models are multiplied by; None leaves a model out, so that it gets no gradient."""
scalings = st.builds(
    Scaling,
    init_scale=st.sampled_from([2.0**16, 2.0**10, 1000.0]),
    growth_factor=st.sampled_from([2.0, 1.5]),
    backoff_factor=st.sampled_from([0.5, 0.3]),
    growth_interval=st.integers(1, 4),
)


def averages(model_keys: tuple[str, ...]) -> st.SearchStrategy[Average]:
    """Draw the settings of an average of one of the models."""
    return st.builds(
        Average,
        model_key=st.sampled_from(model_keys),
        decay=decays,
        update_every=st.integers(1, 3),
        start_step=st.integers(0, 3),
        use_buffers=st.booleans(),
        num_updates=st.integers(0, 3),
    )


@st.composite
def vetoes(draw: st.DrawFn, *, count: int, keeping: bool) -> Mapping[str, frozenset[int]]:
    """Draw which steps a script vetoes; `keeping`: also which zeroings, never just after a vetoed step."""
    batches = st.frozensets(st.integers(0, count - 1), max_size=3)
    steps = draw(batches)
    kept = draw(batches) if keeping else frozenset()
    return {"DO_OPTIMIZER_STEP": steps, "BEFORE_BATCH": frozenset(b for b in kept if b - 1 not in steps)}


@st.composite
def full_precision_plans(draw: st.DrawFn) -> Plan:
    """Draw a run without loss scaling."""
    precision = draw(st.sampled_from([None, "float32", "bfloat16"]))
    dtypes = [torch.float32] if precision == "bfloat16" else [torch.float32, torch.float64]
    common = draw(_common(CALM))
    if common["model"] == "two":
        common["losses"] = tuple(draw(unused) for _ in common["losses"])
    return Plan(
        **common,
        precision=precision,
        dtype=draw(st.sampled_from(dtypes)),
        vetoes=draw(vetoes(count=len(common["losses"]), keeping=True)),
    )


@st.composite
def averaged_plans(draw: st.DrawFn) -> Plan:
    """Draw a run whose steps are many enough for averages to differ from a copy."""
    common = draw(_common(CALM, shortest=8))
    keys = tuple(build_models(common["model"]))
    averaged = draw(st.lists(averages(keys), min_size=1, max_size=3))
    changes = {"every": draw(st.integers(1, 2)), "averages": tuple(averaged)}
    return Plan(**{**common, **changes}, precision=None, vetoes=draw(vetoes(count=8, keeping=False)))


@st.composite
def half_precision_plans(draw: st.DrawFn) -> Plan:
    """Draw a run in float16 in which losses overflow, with one optimizer: partial steps are lifted."""
    common = draw(_common(STORMY, models=("mlp", "norm", "tied", "frozen"), most_optimizers=1))
    return Plan(**common, **draw(_halves(len(common["losses"]))))


@st.composite
def partial_plans(draw: st.DrawFn) -> Plan:
    """Draw a run in float16 in which each of two optimizers overflows by itself; nothing joins the two."""
    common = draw(_common(STORMY, models=("two",)))
    count = len(common["losses"])
    apart = [draw(st.tuples(st.sampled_from(STORMY), st.sampled_from(STORMY))) for _ in range(count)]
    changes = {"losses": tuple(apart), "averages": (), "max_norm": None, "partial": True}
    return Plan(**{**common, **changes}, **draw(_halves(count)))


@st.composite
def _halves(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Draw what only runs in float16 have."""
    return {
        "precision": "float16",
        "vetoes": draw(vetoes(count=count, keeping=False)),
        "scaling": draw(scalings),
        "own_scaler": draw(st.booleans()),
    }


@st.composite
def _common(
    draw: st.DrawFn,
    factors: tuple[float, ...],
    *,
    models: tuple[str, ...] = MODELS,
    most_optimizers: int = 2,
    shortest: int = 1,
) -> dict[str, Any]:
    """Draw what runs in every precision have in common."""
    model = draw(st.sampled_from(models))
    keys = tuple(build_models(model))
    kinds = st.lists(st.sampled_from(OPTIMIZERS), min_size=len(keys), max_size=max(len(keys), most_optimizers))
    optimizers = draw(kinds)
    count = draw(st.integers(shortest, LONGEST))
    losses = draw(st.lists(st.sampled_from(factors), min_size=count, max_size=count))
    return {
        "model": model,
        "optimizers": tuple(optimizers),
        "schedulers": tuple(draw(st.lists(st.sampled_from(SCHEDULERS), max_size=len(optimizers)))),
        "every": draw(st.integers(1, 4)),
        "max_norm": draw(st.none() | st.sampled_from([0.05, 1.0, float("inf")])),
        "averages": tuple(draw(st.lists(averages(keys), max_size=2))),
        "losses": tuple((factor,) * len(keys) for factor in losses),
        "factor": draw(st.sampled_from([1.0, 0.3])),
        "strict": draw(st.booleans()),
        "resume": draw(st.none() | st.integers(0, count - 1)),
        "wide_loss": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }
