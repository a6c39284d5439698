"""Drawn states: parameter trees of many kinds, gradients, losses, windows, clocks, scalers, vetoes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from functrain import FrozenMap, TrainState
from functrain._clock import Clock
from functrain._owners import Owners
from functrain._window import Window

SHAPES = ((), (1,), (3,), (2, 2), (2, 1, 2), (0,))
REAL = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
ORDINARY = st.floats(-8, 8, width=16)
AWKWARD = st.sampled_from([0.0, -0.0, 1e-40, 6e4, 3e38, -3e38, float("inf"), float("-inf"), float("nan")])
OPTIMIZERS = ("a", "b")


def numbers(awkward: bool) -> st.SearchStrategy[float]:
    """Return a strategy for elements of tensors."""
    return ORDINARY | AWKWARD if awkward else ORDINARY


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, awkward: bool = False) -> Tensor:
    """Draw a tensor, element by element."""
    count = torch.Size(shape).numel()
    real = torch.tensor(draw(st.lists(numbers(awkward), min_size=count, max_size=count))).reshape(shape)
    return (
        torch.complex(real.float(), real.flip(0) if real.ndim else real).to(dtype)
        if dtype.is_complex
        else real.to(dtype)
    )


@st.composite
def kinds(draw: st.DrawFn, least: int, complex_too: bool) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Draw names, shapes and dtypes of one model's parameters."""
    dtypes = st.sampled_from((*REAL, torch.complex64) if complex_too else REAL)
    names = st.sampled_from(["0.weight", "0.bias", "1.weight", "w"])
    chosen = draw(st.lists(names, min_size=least, max_size=3, unique=True))
    return {name: (draw(st.sampled_from(SHAPES)), draw(dtypes)) for name in chosen}


@st.composite
def owners(draw: st.DrawFn, models: dict[str, Any]) -> Owners:
    """Draw which optimizer holds which parameter; some are frozen, and a hand-made state may know nothing of it."""
    if draw(st.integers(0, 5)) == 0:
        return Owners({})
    places = [(model, name) for model, held in models.items() for name in held]
    chosen = [draw(st.sampled_from(("a", "a", "b", None))) for _ in places]
    return Owners({key: [p for p, owner in zip(places, chosen, strict=True) if owner == key] for key in OPTIMIZERS})


@st.composite
def gradients(draw: st.DrawFn, models: dict[str, Any], awkward: bool) -> FrozenMap[Any]:
    """Draw gradients for most of the parameters."""
    return FrozenMap(
        {
            model: {name: draw(tensors(*kind, awkward)) for name, kind in held.items() if draw(st.integers(0, 4))}
            for model, held in models.items()
        }
    )


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Draw a window: counted or weighted, empty or not, closing or not."""
    entered, weighted = draw(st.integers(0, 4)), draw(st.booleans())
    weight = draw(st.sampled_from([0.0, 0.5, 3.0, 1000.0])) if weighted else 1.0
    total = draw(st.sampled_from([0.75, 3.0, 1e6])) if weighted and entered else float(entered)
    return Window(
        boundary=draw(st.booleans()),
        last=draw(st.booleans()),
        entered=entered,
        divisor=draw(st.integers(max(entered, 1), 5)),
        weighted=weighted,
        weight=weight,
        total=total,
    )


@st.composite
def clocks(draw: st.DrawFn, keys: Any) -> Clock:
    """Draw counters that could belong together."""
    step, skips = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    return Clock(
        step=step,
        batch=step + skips + draw(st.integers(0, 9)),
        epoch_batch=draw(st.integers(0, 3)),
        skipped=skips,
        consecutive_skips=skips,
        skipping_since=step if skips else -1,
        optimizer_steps=FrozenMap({key: draw(st.integers(0, step)) for key in keys}),
    )


@st.composite
def scalers(draw: st.DrawFn, keys: Any) -> FrozenMap[Any]:
    """Draw a loss scaler, or none."""
    if not draw(st.booleans()):
        return FrozenMap()
    found = {key: draw(st.booleans()) for key in keys}
    scale = draw(st.sampled_from([1.0, 4.0, 65536.0, 2.0**24]))
    return FrozenMap({"scale": scale, "growth_tracker": draw(st.integers(0, 3)), "found_inf": found})


@st.composite
def bare_states(draw: st.DrawFn, complex_too: bool = True) -> TrainState:
    """Draw a state that no hook has prepared yet: models "main" and "teacher", optimizers "a" and "b"."""
    models = {"main": draw(kinds(1, complex_too)), "teacher": draw(kinds(0, complex_too))}
    awkward, table = draw(st.booleans()), draw(owners(models))
    keys = tuple(table.table)
    return TrainState(
        params={model: {n: draw(tensors(*kind)) for n, kind in held.items()} for model, held in models.items()},
        buffers={"main": {"mean": draw(tensors((2,), torch.float32)), "count": torch.tensor(draw(st.integers(0, 9)))}},
        grads=draw(gradients(models, awkward)),
        loss=draw(tensors((), torch.float32, awkward)),
        raw_loss=draw(tensors((), torch.float32, awkward)),
        window=draw(windows()),
        clock=draw(clocks(keys)),
        stepped={key: draw(st.booleans()) for key in keys},
        scaler=draw(scalers(keys)),
        hyper={key: {"0": {"lr": 0.1}} for key in keys},
        batch={"x": torch.ones(2), "tokens": draw(st.integers(0, 9))},
        world=draw(st.sampled_from([1, 1, 4])),
        owners=table,
    )
