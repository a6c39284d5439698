"""Sharded gradients in a world of one rank: whole norms and verdicts, exactly those of plain gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from functrain import (
    GATED_STAGES,
    ClipNorm,
    FrozenMap,
    Outcome,
    Owners,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    TrainState,
    every,
    hook,
    named,
)
from functrain._foreach import local, multiply_, scaled, whole
from functrain._gradients import any_non_finite, limited, total_norm

NUMBERS = {"a": [3.0, 0.0, 4.0], "b": [1.0, 2.0, 2.0]}


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Give a mesh of this process alone, and no process group to anybody afterwards."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def state_of(numbers: dict[str, list[float]], spread: Any, **changes: Any) -> TrainState:
    """Return a state of two models with an optimizer each; weights and gradients are spread somehow."""
    grads = {key: {"w": spread(torch.tensor(value))} for key, value in numbers.items()}
    params = {key: {"w": spread(torch.zeros(len(value)))} for key, value in numbers.items()}
    return TrainState(params=params, grads=grads, owners=Owners({key: [(key, "w")] for key in numbers}), **changes)


def sharded(mesh: Any) -> Any:
    """Return what cuts a tensor into the shards of a mesh."""
    from torch.distributed.tensor import Shard, distribute_tensor

    return lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_the_norm_is_that_of_plain_gradients(mesh: Any, order: float) -> None:
    """In the dtype of the gradients; those of an optimizer that overflowed do not count."""
    scaler = {"found_inf": FrozenMap({"a": torch.tensor(False), "b": torch.tensor(True)})}
    for changes in ({}, {"scaler": scaler}):
        found = total_norm(state_of(NUMBERS, sharded(mesh), **changes), order)
        assert torch.equal(found, total_norm(state_of(NUMBERS, lambda tensor: tensor, **changes), order))
        assert found.dtype is torch.float32


def test_without_gradients_the_norm_is_zero(mesh: Any) -> None:
    """A sharded model that has no gradient yet is measured as any other."""
    state = state_of(NUMBERS, sharded(mesh)).replace(grads={key: {} for key in NUMBERS})
    assert total_norm(state).item() == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen(mesh: Any, bad: float) -> None:
    """In any shard; and nothing where all is finite."""
    assert not bool(any_non_finite(state_of(NUMBERS, sharded(mesh))))
    assert bool(any_non_finite(state_of(NUMBERS | {"b": [1.0, bad, 2.0]}, sharded(mesh))))


@pytest.mark.parametrize("donated", [False, True])
def test_clipping_scales_every_shard(mesh: Any, donated: bool) -> None:
    """To the limit, as plain gradients are."""
    found = [
        limited(state, total_norm(state), 1.0, False)
        for state in (state_of(NUMBERS, spread, donated=donated) for spread in (sharded(mesh), torch.clone))
    ]
    for key in NUMBERS:
        assert torch.equal(whole(found[0].grads[key]["w"]), found[1].grads[key]["w"])


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5, dtype=torch.float64)], ids=["number", "tensor"])
def test_parts_and_wholes(mesh: Any, factor: Any) -> None:
    """The part of one rank is all there is; a product is sharded as its factor was."""
    plain = torch.tensor([2.0, 4.0])
    cut = sharded(mesh)(plain)
    for tensor in (plain, cut):
        assert torch.equal(local(tensor), plain)
        assert torch.equal(whole(tensor), plain)
        assert torch.equal(whole(scaled(tensor, factor)), plain / 2)
    assert not isinstance(whole(cut), type(cut))
    multiply_([cut], factor)
    assert torch.equal(whole(cut), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("wrap", [lambda hook: hook, partial(named, "other"), partial(every, 2)])
@pytest.mark.parametrize("stage", sorted(GATED_STAGES, key=lambda stage: stage.name))
def test_which_verdicts_may_differ(stage: Stage, wrap: Any) -> None:
    """Ranks ask one another where SkipNonFinite judges something of their own: the loss that drops, or the window."""
    for drop, own in ((True, Stage.DO_BACKWARD), (False, Stage.DO_OPTIMIZER_STEP)):
        assert wrap(SkipNonFinite(drop=drop)).may_differ(stage) is (stage is own)
    assert not wrap(ClipNorm(max_norm=1.0)).may_differ(stage)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_the_dtype_of_a_norm(mesh: Any, dtype: torch.dtype, default: torch.dtype) -> None:
    """Is that of the gradients' real parts, whatever is the default, also of devices; of none at all float32."""
    cut = sharded(mesh)
    state = state_of(NUMBERS, lambda tensor: cut(tensor.to(dtype)))
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            found, none = total_norm(state), total_norm(state.replace(grads={key: {} for key in NUMBERS}))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.dtype, none.dtype) == (torch.empty(0, dtype=dtype).real.dtype, torch.float32)
    assert (found.device.type, none.device.type) == ("cpu", "cpu")


def test_what_may_differ_by_default() -> None:
    """A verdict of one rank alone: at the backward only of what may drop, elsewhere wherever it is called."""

    def judge(state: TrainState, _stage: Stage, _skip: Any) -> Outcome:
        return Outcome(state, True, state.loss)

    stages = {Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP}
    for alone in (False, True):
        member = hook(stages=stages, rank_local=alone)(judge)
        assert member.may_differ(Stage.DO_BACKWARD) is (alone and member.may_drop)
        assert member.may_differ(Stage.DO_OPTIMIZER_STEP) is alone
        assert not member.may_differ(Stage.BEFORE_BATCH)
    for drop in (False, True):
        spikes = SkipSpikes(drop=drop)
        assert [spikes.may_differ(stage) for stage in (Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP)] == [drop, False]
