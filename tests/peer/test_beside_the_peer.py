"""functrain's shell beside the real peer on drawn runs: bitwise, away from what is lifted or stricter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.peer.beside import Beside
from tests.peer.drawing import averaged_plans, full_precision_plans, half_precision_plans, partial_plans
from tests.peer.plans import Plan, Scaling

pytestmark = pytest.mark.peer


@given(plan=full_precision_plans())
def test_full_precision_runs_agree(plan: Plan) -> None:
    """In fp32, fp64 and bf16 parameters, gradients, averages, learning rates and counters are the peer's."""
    Beside(plan).run()


@given(plan=averaged_plans())
def test_averages_agree(plan: Plan) -> None:
    """Averages of every model, several of one model too, are bitwise the peer's, and so are their counters."""
    Beside(plan).run()


@given(plan=half_precision_plans())
def test_half_precision_runs_agree(plan: Plan) -> None:
    """In fp16 the same, and scale and growth, whatever overflows."""
    Beside(plan).run()


@given(plan=partial_plans())
def test_partial_steps_agree_in_what_each_optimizer_did(plan: Plan) -> None:
    """Where only some overflow, each one's parameters and learning rate, and the scale, are the peer's."""
    Beside(plan).run()


@pytest.mark.parametrize("scale", [1024.0, 1000.0])
def test_float64_gradients_are_unscaled_alike(scale: float) -> None:
    """Gradients of float64 parameters are bitwise the peer's, also where 1/scale is no float32 number."""
    scaling = Scaling(init_scale=scale, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)
    shape = {"model": "mlp", "optimizers": ("sgd",), "schedulers": (), "averages": (), "vetoes": {}}
    settings = {"every": 1, "max_norm": None, "precision": "float16", "dtype": torch.float64}
    Beside(Plan(**shape, **settings, losses=((1.0,),) * 4, scaling=scaling)).run()
