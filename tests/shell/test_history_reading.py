"""A history waits with its numbers on the device, and reads them at once."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from functrain import (
    Accumulate,
    ClipNorm,
    History,
    Hook,
    MixedPrecision,
    Outcome,
    Shell,
    SkipNonFinite,
    Stage,
    TrainState,
    fit,
    hook,
    named,
    pure,
)
from functrain.shell import fetching
from functrain.shell.history import UNREAD
from tests.scalars import Weight, sgd_shell

READS = ("_local_scalar_dense", "is_nonzero", "_to_cpu", "item")


class Reads(TorchDispatchMode):
    """Counts the operators that wait for a device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and call."""
        self.count += any(name in str(func) for name in READS)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each transfer."""
    seen: list[int] = []
    move = fetching.transferred

    def counted(packed: Tensor) -> Tensor:
        seen.append(packed.nbytes)
        return move(packed)

    monkeypatch.setattr(fetching, "transferred", counted)
    return seen


def recorded(count: int) -> History:
    """Return the history of a run with metrics, of which nothing has been read."""
    history, shell = History(), sgd_shell(Weight(), [ClipNorm(max_norm=1.0), SkipNonFinite()])
    for slope in range(count):
        with shell.batch():
            shell.update(shell._driver.applier.models.modules["main"](float(slope)))
        history.record(shell.state)
    return history


def test_all_that_waits_is_read_by_one_transfer_and_stays_read(transfers: list[int]) -> None:
    """Four float32 numbers of each of five batches: eighty bytes, once."""
    history = recorded(5)
    assert transfers == []
    first = history.to_records()
    assert transfers == [5 * 4 * 4]
    assert (history.to_records(), history.records, history.raw) == (first, first, first)
    assert len(transfers) == 1
    assert [each["grad_norm"] for each in first] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_only_what_is_new_is_read(transfers: list[int]) -> None:
    """A second look transfers what has been recorded since the first."""
    history = recorded(2)
    history.read()
    history.record(pure.train_step(summed, pure.sgd(1.0), []).init({"w": torch.zeros(2)}))
    transfers.clear()
    history.read()
    assert len(transfers) == 1


def summed(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Return a loss whose gradient is the batch."""
    return (params["w"] * batch).sum()


PIPELINES: dict[str, list[Hook]] = {
    "plain": [ClipNorm(max_norm=1.0), SkipNonFinite()],
    "scaled": [Accumulate(every=2), MixedPrecision(precision="fp16"), SkipNonFinite(drop=False)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_recording_reads_no_device_even_where_all_decisions_are_tensors(name: str) -> None:
    """In the pure engine clock, flags and vetoes are tensors; none is asked for while the run goes on."""
    init, step, _ = pure.train_step(summed, pure.sgd(1.0), PIPELINES[name])
    state, history, reads = init({"w": torch.zeros(2)}), History(), 0
    for batch in (torch.ones(2), torch.full((2,), float("nan")), torch.ones(2)):
        state = step(state, batch)
        with Reads() as mode:
            history.record(state)
        reads += mode.count
    assert reads == 0
    assert isinstance(history.raw[0]["step"], Tensor)
    with Reads() as mode:
        records = history.to_records()
    assert mode.count == 0  # lists are made on the CPU, of one tensor that has arrived there
    assert [each["batch"] for each in records] == [1, 2, 3]
    assert [bool(each["skipped_by"]) for each in records] == [False, True, False]
    assert all(type(value) in {int, float, bool, tuple} for each in records for value in each.values())


def test_the_engines_tell_the_same_skips() -> None:
    """Flags that are tensors are told like those that are bools; a window that waits is no skip under any name."""
    hooks = [named("wait", Accumulate(every=2)), SkipNonFinite(drop=False)]
    init, step, _ = pure.train_step(summed, pure.sgd(1.0), hooks)
    state, purely = init({"w": torch.zeros(())}), History()
    shell, shelly = sgd_shell(model := Weight(), hooks), History()
    for slope in (1.0, 2.0, float("nan"), 1.0):
        purely.record(state := step(state, torch.tensor(slope)))
        with shell.batch():
            shell.update(model(slope))
        shelly.record(shell.state)
    told = [[each["skipped_by"] for each in history.records] for history in (purely, shelly)]
    assert told[0] == told[1] == [(), (), (), ("finite@DO_OPTIMIZER_STEP",)]


def test_a_long_run_keeps_a_bounded_number_of_tensors() -> None:
    """After so many records those that wait are read by themselves."""
    history, state = History(), sgd_shell(Weight(), []).state
    for _ in range(2 * UNREAD + 3):
        history.record(state)
    waiting = [place for place, each in enumerate(history.raw) if any(isinstance(v, Tensor) for v in each.values())]
    assert waiting == [2 * UNREAD, 2 * UNREAD + 1, 2 * UNREAD + 2]


def test_neither_graph_nor_storage_of_a_batch_is_kept() -> None:
    """A metric that is one element of a large tensor does not hold the others, nor what it was computed from."""
    history, shell = History(), sgd_shell(model := Weight(), [])
    large = torch.zeros(1000, requires_grad=True) * 2.0
    with shell.batch():
        shell.update(model(1.0), losses={"part": large[7]})
    history.record(shell.state)
    history.record_validation(shell.state, {"score": large[8]})
    held = [history.raw[0]["part"], history.raw[0]["loss"], history.validations[0]["score"]]
    assert not any(each.requires_grad for each in held)
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in held)
    gone = weakref.ref(large)
    del large, shell
    gc.collect()
    assert gone() is None


def test_what_is_written_over_later_was_copied() -> None:
    """A donated state lives on in the same storage, and so does a metric that a loss module counts in place."""
    init, step, _ = pure.train_step(summed, pure.sgd(1.0), ClipNorm(max_norm=1.0))
    state, history = init({"w": torch.zeros(())}).replace(donated=True), History()
    for slope in (1.0, 2.0, 3.0):
        state = step(state, torch.tensor(slope))
        history.record(state)
    assert [each["grad_norm"] for each in history.records] == [1.0, 2.0, 3.0]
    assert [each["step"] for each in history.records] == [1, 2, 3]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.tensor(2**53 + 1), 2**53 + 1),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(True), True),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor([3]), 3),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        (torch.tensor([]), []),
    ],
)
def test_every_dtype_arrives_exactly_in_one_transfer(tensor: Tensor, expected: Any, transfers: list[int]) -> None:
    """Next to others of other widths, in a dict inside, too."""
    records: list[dict[str, Any]] = [{"a": torch.tensor(1, dtype=torch.int8), "b": tensor}, {"c": {"d": tensor}}]
    fetching.fetch([*records, {"e": torch.tensor(0.25, dtype=torch.float16), "f": "text"}])
    assert records == [{"a": 1, "b": expected}, {"c": {"d": expected}}]
    assert len(transfers) == 1


def test_each_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers on two devices are two transfers; the second device is one without storage here."""
    asked: list[str] = []

    def move(packed: Tensor) -> Tensor:
        asked.append(packed.device.type)
        return torch.zeros(packed.shape, dtype=torch.uint8)

    monkeypatch.setattr(fetching, "transferred", move)
    fetching.fetch([{"here": torch.ones(()), "there": torch.ones((), device="meta")} for _ in range(3)])
    assert sorted(asked) == ["cpu", "meta"]


def test_fit_waits_for_nothing_but_what_its_hooks_ask() -> None:
    """A run that nobody watches reads no number at all."""
    model = Weight()
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), [watch])
    with Reads() as mode:
        history = fit(shell, [1.0, 2.0], lambda model, slope: model(slope), 2, progress=False)
    assert mode.count == 0
    assert [each["seen"] for each in history.records] == [0.0, -2.0, -3.0, -8.0]


@hook(stages=Stage.AFTER_OPTIMIZER_STEP, publishes={"seen"})
def watch(state: TrainState, stage: Stage, will_skip: Any) -> Any:
    """Publish the loss."""
    return Outcome(state.with_metrics({"seen": state.raw_loss}), True, state.loss)
