"""Rows of the contract that are about what hooks do not do."""

from __future__ import annotations

import torch

from functrain import EMA, Accumulate, ClipNorm, SkipNonFinite, Stage, TrainState, fold
from functrain._strict import contents, same
from tests.scalars import Weight, run, sgd_shell

HOOKS = (Accumulate(every=1), ClipNorm(max_norm=0.5), SkipNonFinite(), EMA())


def test_a_hook_changes_nothing_that_it_is_given() -> None:
    """There a hook changes `ctx`; here the state that went in holds the same bits after every update stage."""
    weights = {"main": {"w": torch.ones(2)}}
    state = fold(*HOOKS).prepared(TrainState(params=weights, grads=weights, stepped={"main": True}))
    before = contents(state)
    for stage in (Stage.BEFORE_BATCH, Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP):
        after = fold(*HOOKS)(state, stage, False).state
        assert all(same(value, before[path]) for path, value in contents(state).items())
    assert after.hooks["ema"]["n_averaged"] == 1


def test_hooks_bring_no_scaler() -> None:
    """There any hook may put a scaler into `ctx`; here the state has none unless MixedPrecision asks for one."""
    shell = sgd_shell(Weight(), HOOKS)
    run(shell, [1.0, 2.0])
    assert len(shell.state.scaler) == 0
    assert shell.state.clock.step == 2
