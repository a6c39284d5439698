"""Configuration that is out of bounds, of another type, or of no field: refused for every field of every hook."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from functrain import (
    EMA,
    SWA,
    Accumulate,
    BestAverage,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    Hook,
    InverseGammaWarmup,
    Lookahead,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    PowerEMA,
    SkipNonFinite,
    SkipSpikes,
    SwitchEMA,
    TensorFlowWarmup,
    YOLOWarmup,
)
from functrain.hooks import LIBRARY

NAN, INF = math.nan, math.inf
NO_NUMBER = [True, "1", [1.0]]
WHOLE = [*NO_NUMBER, NAN, INF, 1.0, 1.5, torch.tensor(1)]
REAL = [*NO_NUMBER, NAN, -INF]
FINITE = [*REAL, INF]
FLAG = [1, 0, "true", None, torch.tensor(True)]

NEEDED: dict[type[Any], dict[str, Any]] = {
    Accumulate: {"every": 2},
    MixedPrecision: {"precision": "float16"},
    ClipNorm: {"max_norm": 1.0},
    ClipValue: {"clip_value": 1.0},
    SwitchEMA: {"switch_every": 1},
    FixedLimit: {"limit": 1.0},
}

AVERAGES: dict[str, list[Any]] = {
    "model_key": ["", " ", None, 3, True],
    "update_every": [*WHOLE, None, 0, -1],
    "start_step": [*WHOLE, None, -1],
    "use_buffers": FLAG,
    "num_updates": [*WHOLE, None, -1],
    "parameters": ["", 3, True, ["*.weight"]],
    "dtype": ["float16", "bfloat16", "fp32", "int64", "", 32, True],
    "device": ["", "gpu", "cuda:x", "meta", 0, True],
    "finite_only": FLAG,
}
DECAYS: dict[str, list[Any]] = {
    "decay": [*FINITE, None, 1.0, 1.5, -0.1],
    "half_life": [*FINITE, 0.0, -1.0],
    "warmup": [3, "linear", True, TensorFlowWarmup, InverseGammaWarmup],
    "first": ["one", "", None, True, 0],
}

BAD: dict[type[Any], dict[str, list[Any]]] = {
    Accumulate: {
        "every": [*WHOLE, None, 0, -1],
        "weight": [3, "tokens", True],
        "partial": ["keep", "", None, True, 0],
    },
    MixedPrecision: {
        "precision": ["float64", "fp8", "", None, 16, torch.float64, torch.int32, True],
        "init_scale": [*FINITE, None, 0.0, -1.0],
        "growth_factor": [*FINITE, None, 1.0, 0.5, -2.0],
        "backoff_factor": [*FINITE, None, 0.0, 1.0, 2.0],
        "growth_interval": [*WHOLE, None, 0, -1],
        "min_scale": [*FINITE, None, 0.0, -1.0, 2.0**25],
        "max_scale": [*REAL, None, 0.0, -1.0, 0.5],
        "max_consecutive": [*WHOLE, -1],
    },
    ClipNorm: {"max_norm": [*REAL, None, -1.0, -1e-9], "norm_type": [*REAL, None, 0.0, -2.0]},
    ClipValue: {"clip_value": [*REAL, None, -1.0]},
    ClipAdaptive: {"clip": [*FINITE, None, 0.0, -0.01], "eps": [*FINITE, None, 0.0, -1e-3]},
    ClipPercentile: {"percentile": [*FINITE, None, -1.0, 100.1], "history": [*WHOLE, None, 0, -1]},
    ClipZScore: {
        "z": [*REAL, None, 0.0, -1.0],
        "alpha": [*FINITE, None, 1.0, -0.1],
        "warmup": [*WHOLE, None, 0, -1],
    },
    SkipNonFinite: {"drop": FLAG, "max_consecutive": [*WHOLE, -1]},
    SkipSpikes: {
        "by": [None, 3.0, "mean", MovingMean, {"limit": NAN}],
        "of": ["norm", "", None, True],
        "drop": FLAG,
        "max_consecutive": [*WHOLE, -1],
    },
    EMA: {**DECAYS, **AVERAGES},
    SWA: AVERAGES,
    PowerEMA: {"relative_std": [*FINITE, None, 0.0, -0.1, 0.3], **AVERAGES},
    SwitchEMA: {"switch_every": [*WHOLE, None, 0, -1], **DECAYS, **AVERAGES},
    Lookahead: {"alpha": [*FINITE, None, 0.0, 1.1, -0.5], **AVERAGES},
    InverseGammaWarmup: {
        "inv_gamma": [*FINITE, None, 0.0, -1.0],
        "power": [*FINITE, None, 0.0, -1.0],
        "min_decay": [*FINITE, None, 1.0, -0.1],
    },
    BestAverage: {
        "metric": ["", None, 3, True],
        "mode": ["maximum", "", None, True, 1],
        "of": ["a b", "", 3, True],
        "model_key": ["", " ", None, 3, True],
        "keep_on": ["cuda", "", None, 0],
    },
    YOLOWarmup: {"tau": [*FINITE, None, 0.0, -1.0]},
    FixedLimit: {"limit": [*NO_NUMBER, NAN, None]},
    MovingMean: {
        "ratio": [*REAL, None, 1.0, 0.5],
        "alpha": [*FINITE, None, 0.0, 1.1],
        "start": FINITE,
        "warmup": [*WHOLE, None, -1],
    },
    MedianDeviation: {
        "deviations": [*REAL, None, 0.0, -1.0],
        "history": [*WHOLE, None, 0],
        "warmup": [*WHOLE, None, 0],
        "floor": [*REAL, None, -0.1],
    },
}

GOOD: list[tuple[type[Any], dict[str, Any]]] = [
    (Accumulate, {"every": 1, "weight": len, "partial": "carry"}),
    (MixedPrecision, {"precision": torch.bfloat16, "max_consecutive": None}),
    (MixedPrecision, {"precision": "fp32", "min_scale": 4.0, "max_scale": 4.0, "max_consecutive": 0}),
    (MixedPrecision, {"precision": torch.float16, "max_scale": INF}),
    (ClipNorm, {"max_norm": INF, "norm_type": INF}),
    (ClipNorm, {"max_norm": 0, "norm_type": 1}),
    (ClipValue, {"clip_value": INF}),
    (ClipPercentile, {"percentile": 0.0, "history": 1}),
    (ClipPercentile, {"percentile": 100.0}),
    (ClipZScore, {"z": INF, "alpha": 0.0, "warmup": 1}),
    (SkipNonFinite, {"max_consecutive": None}),
    (EMA, {"decay": 0.0, "update_every": 1, "start_step": 0, "num_updates": 7}),
    (BestAverage, {"metric": "m", "mode": "max", "of": None, "keep_on": "model"}),
    (EMA, {"decay": 0.5, "half_life": None, "warmup": InverseGammaWarmup(min_decay=0.5), "first": "zero"}),
    (EMA, {"half_life": 1e-3, "parameters": "*", "dtype": "float64", "device": "cpu", "finite_only": True}),
    (EMA, {"warmup": max, "parameters": str.endswith, "device": None, "dtype": None}),
    (PowerEMA, {"relative_std": 1e-4}),
    (PowerEMA, {"relative_std": 0.2886}),
    (SwitchEMA, {"switch_every": 1}),
    (Lookahead, {"alpha": 1.0, "update_every": 1}),
    (InverseGammaWarmup, {"inv_gamma": 1e-6, "power": 1e-6, "min_decay": 0.0}),
    (FixedLimit, {"limit": -INF}),
    (MovingMean, {"ratio": INF, "alpha": 1.0, "start": -2.0, "warmup": 0}),
    (MedianDeviation, {"deviations": INF, "history": 1, "warmup": 1, "floor": 0.0}),
]

CASES = [
    pytest.param(kind, field, value, id=f"{kind.__name__}.{field}={value!r}")
    for kind, found in BAD.items()
    for field, values in found.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "field", "value"), CASES)
def test_a_bad_value_is_refused(kind: type[Any], field: str, value: Any) -> None:
    """A ValidationError names the class, the field, and the value that was given."""
    with pytest.raises(ValidationError) as caught:
        kind(**{**NEEDED.get(kind, {}), field: value})
    assert caught.value.title == kind.__name__
    found = caught.value.errors()
    assert any(field in each["loc"] or field in each["msg"] for each in found), str(caught.value)


@pytest.mark.parametrize(("kind", "configuration"), GOOD)
def test_the_bounds_themselves_are_taken(kind: type[Any], configuration: dict[str, Any]) -> None:
    """What lies just inside the bounds, infinite limits included, is accepted as it is."""
    made = kind(**{**NEEDED.get(kind, {}), **configuration})
    for name, value in configuration.items():
        assert getattr(made, "limit_value" if name == "limit" else name) in (value, torch.float32)


def test_every_field_of_every_hook_is_tried() -> None:
    """A field that is added later must be added to the table above."""
    for kind in (*LIBRARY, FixedLimit, MovingMean, MedianDeviation, InverseGammaWarmup, YOLOWarmup):
        own = {info.alias or name for name, info in kind.model_fields.items()} - set(Hook.model_fields)
        assert own == set(BAD[kind]), kind.__name__


@pytest.mark.parametrize("kind", LIBRARY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", True),
        ("priority", "1"),
        ("priority", 1.5),
        ("priority", None),
        ("name", "a b"),
        ("name", "1st"),
        ("name", 3),
        ("stages", "everywhere"),
        ("writes", "nothing_there"),
        ("publishes", 3),
    ],
)
def test_the_contract_of_every_hook_is_checked(kind: type[Hook], field: str, value: Any) -> None:
    """Priority, name and claims of library hooks are checked like those of any hook."""
    with pytest.raises(ValidationError, match=rf"{kind.__name__}\n{field}"):
        kind(**{**NEEDED.get(kind, {}), field: value})


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.__name__)
def test_an_unknown_field_is_refused(kind: type[Any]) -> None:
    """A misspelt field is not ignored, and what is required is asked for."""
    with pytest.raises(ValidationError, match=rf"(?s)decya.*{kind.__name__} has no such option"):
        kind(**NEEDED.get(kind, {}), decya=0.9)
    for name in NEEDED.get(kind, {}):
        with pytest.raises(ValidationError, match=rf"(?s){name}.*Field required"):
            kind()


def test_what_is_known_after_the_backward_cannot_drop() -> None:
    """Two fields that do not go together are refused together, with the reason."""
    with pytest.raises(ValidationError, match=r'drop=True needs of="loss": the gradient norm is known only after'):
        SkipSpikes(of="grad_norm", drop=True)


@pytest.mark.parametrize(
    "made",
    [
        *(kind(**NEEDED.get(kind, {})) for kind in BAD),
        SkipSpikes(by=FixedLimit(limit=2.0)),
        EMA(model_key=" teacher "),
    ],
    ids=repr,
)
def test_what_is_printed_can_be_written(made: Any) -> None:
    """The repr of a configuration is source text that gives an equal one, dtypes by name apart."""
    text = repr(made).replace("precision=torch.float16", "precision='float16'")
    assert eval(text) == made  # noqa: S307 - what repr promises
