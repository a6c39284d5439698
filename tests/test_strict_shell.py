"""A strict shell: undonated, every call checked, and otherwise the same run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import functrain
from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    MixedPrecision,
    MovingMean,
    PurityError,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    StructureError,
    TrainState,
    every,
    fold,
    on,
    when,
)
from functrain._tree import paths
from tests.scalars import Weight, applied, sgd_shell, step
from tests.scripted import STEP

NAN = float("nan")
SLOPES = [1.0, 5.0, 2.0, NAN, 3.0, 1.0, 40.0, 1.0, 2.0, 6e4, 1.0, 3.0]
PIPELINES: dict[str, Any] = {
    "norm": lambda: fold(Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), SkipSpikes(), EMA(decay=0.5)),
    "half": lambda: fold(MixedPrecision(precision="fp16"), ClipNorm(max_norm=1.0), SkipNonFinite(drop=False), EMA()),
    "value": lambda: fold(ClipValue(clip_value=1.0), ClipAdaptive(), SkipSpikes(of="grad_norm"), EMA(start_step=2)),
    "percentile": lambda: fold(Accumulate(every=3), ClipPercentile(history=4), SkipNonFinite()),
    "z": lambda: fold(ClipZScore(warmup=2), SkipSpikes(by=MovingMean(warmup=1), drop=True), SkipNonFinite()),
    "wrapped": lambda: fold(
        every(2, EMA()), on("w", ClipNorm(max_norm=1.0)), when(lambda s: s.loss.isfinite(), SkipSpikes())
    ),
}


def writing(field: str, *, declared: bool) -> functrain.Hook:
    """Return a hook that halves parameters or gradients in place."""

    def write(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        getattr(state, field)["main"]["w"].data.mul_(0.5)
        return state, True, state.loss

    return functrain.hook(write, name="write", stages=STEP, writes={field} if declared else ())


@pytest.mark.parametrize("case", PIPELINES)
def test_strict_changes_nothing_but_the_checks(case: str) -> None:
    """Library hooks pass every check, and the strict run is bitwise the donated one: weights, slots, counters."""
    ends = []
    for strict in (False, True):
        shell = sgd_shell(Weight([1.0, -1.0]), PIPELINES[case](), lr=0.1, strict=strict)
        for slope in SLOPES:
            step(shell, [slope, slope / 2])
        assert shell.state.donated is not strict
        ends.append(paths(shell.state.replace(donated=False)))
    loose, watched = ends
    assert list(loose) == list(watched)
    for path, leaf in loose.items():
        torch.testing.assert_close(watched[path], leaf, rtol=0, atol=0, equal_nan=True, msg=path)


@pytest.mark.parametrize("field", ["params", "grads"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_write_in_place_is_caught_in_the_batch_in_which_it_happens(field: str, declared: bool) -> None:
    """Declared or not, writing into the input is a PurityError, which says in which batch and what is left."""
    shell = sgd_shell(Weight(1.0), writing(field, declared=declared), strict=True)
    where = rf"'write' .* DO_OPTIMIZER_STEP .* state.{field}\[\"main\"\]\[\"w\"\]"
    with pytest.raises(PurityError, match=where) as caught:
        step(shell, 2.0)
    assert "raised by hook 'write' at DO_OPTIMIZER_STEP" in caught.value.__notes__
    assert any("in batch 0, after the backward had begun" in note for note in caught.value.__notes__)
    assert shell.state.clock.batch == 0


def test_a_changed_structure_is_caught_and_training_goes_on() -> None:
    """The error leaves the shell able to run the next batch."""
    fuse = [True]

    def grow(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return (state.with_slot("grow", {"more": 1}) if fuse and fuse.pop() else state), True, state.loss

    shell = sgd_shell(Weight(), functrain.hook(grow, stages=STEP), strict=True)
    with pytest.raises(StructureError, match=r'state.hooks\["grow"\]\["more"\]'):
        step(shell, 1.0)
    step(shell, 3.0)
    assert applied(shell) == 3.0


def test_without_strict_nothing_is_checked() -> None:
    """The checks cost nothing where they were not asked for."""
    shell = sgd_shell(Weight(), writing("grads", declared=False))
    step(shell, 2.0)
    assert applied(shell) == 1.0


def test_a_metric_that_was_not_published_is_caught() -> None:
    """A key that appears later would recompile; one that another hook publishes is that hook's."""

    def publish(name: str) -> Any:
        def put(state: TrainState, _stage: Stage, _skip: Any) -> Any:
            return state.with_metrics({name: torch.zeros(())}), True, state.loss

        return functrain.hook(put, name="put", stages=STEP)

    with pytest.raises(StructureError, match=r'changed nothing into .*: state.metrics\["mine"\]; build it in init'):
        step(sgd_shell(Weight(), publish("mine"), strict=True), 1.0)
    with pytest.raises(PurityError, match=r'state.metrics\["grad_norm"\]; declare writes'):
        step(sgd_shell(Weight(), ClipNorm(max_norm=1.0) + publish("grad_norm"), strict=True), 1.0)


def test_a_batch_norm_model_passes() -> None:
    """Buffers that the forward itself updates are no hook's doing."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA() + SkipNonFinite(), strict=True)
    for value in (1.0, NAN, 2.0):
        batch = torch.tensor([[value, 1.0], [0.0, value]])
        with shell.batch():
            shell.update(_mean(model(batch)))
    assert shell.state.clock.step == 2


def _mean(out: Tensor) -> Tensor:
    return out.square().mean()
