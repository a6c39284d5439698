"""functrain's shell beside the real peer on drawn runs: bitwise, away from what is lifted or stricter."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.peer.beside import Beside
from tests.peer.drawing import averaged_plans, full_precision_plans, half_precision_plans, partial_plans
from tests.peer.plans import Plan

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
