"""Snapshots, and state dicts in another shell: any run goes on bitwise from any micro-batch."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from functrain import EMA, Accumulate, Pipeline, SkipNonFinite
from functrain.show.kept import kept
from tests.scalars import Weight, applied, sgd_shell, step
from tests.scalars import run as feed
from tests.scripted import half
from tests.shell.pipelines import optimizers, pipelines, run, runs, shell_of
from tests.shell.records import differences, record


def through_a_file(stored: Any) -> Any:
    """Return what a file of tensors and numbers, and nothing executable, gives back."""
    file = io.BytesIO()
    torch.save(stored, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@given(
    pipeline=pipelines(),
    kinds=runs,
    cut=st.integers(0, 10),
    optimizer=optimizers,
    strict=st.sampled_from([False] * 9 + [True]),
)
def test_a_snapshot_brings_any_run_back(
    pipeline: Pipeline, kinds: list[str], cut: int, optimizer: str, strict: bool
) -> None:
    """Restored twice, at any micro-batch: the same rest of the run, bitwise; the snapshot stays true."""
    shell = shell_of(pipeline, optimizer, strict=strict)
    run(shell, kinds[:cut])
    taken, there = shell.snapshot(), record(shell)
    ends = []
    for _ in range(2):
        run(shell, kinds[cut:], cut)
        ends.append(record(shell))
        shell.restore(taken)
        assert differences(there, record(shell)) == []
    assert differences(*ends) == []


@given(pipeline=pipelines(), kinds=runs, cut=st.integers(0, 10), optimizer=optimizers)
def test_a_state_dict_resumes_any_run(pipeline: Pipeline, kinds: list[str], cut: int, optimizer: str) -> None:
    """L9: saved at any micro-batch, loaded into a new shell of other weights: bitwise, now and at the end."""
    first = shell_of(pipeline, optimizer)
    run(first, kinds[:cut])
    there, saved = record(first), through_a_file(first.state_dict())
    run(first, kinds[cut:], cut)
    second = shell_of(pickle.loads(pickle.dumps(pipeline)), optimizer, seed=1)
    second.load_state_dict(saved)
    assert differences(there, record(second)) == []
    run(second, kinds[cut:], cut)
    assert differences(record(first), record(second)) == []


@given(pipeline=pipelines(), kinds=runs, optimizer=optimizers)
def test_loading_is_idempotent_and_saving_changes_nothing(pipeline: Pipeline, kinds: list[str], optimizer: str) -> None:
    """Save, load, save gives what was saved; a shell that saved goes on like one that did not."""
    quiet, saving = shell_of(pipeline, optimizer), shell_of(pipeline, optimizer)
    torch.manual_seed(5)
    run(quiet, kinds)
    torch.manual_seed(5)
    for place, kind in enumerate(kinds):
        run(saving, [kind], place)
        saving.load_state_dict(saving.state_dict())
    assert differences(record(quiet), record(saving)) == []


@pytest.mark.parametrize("hooks", [[], [half()], [SkipNonFinite(), EMA(decay=0.5)]])
@pytest.mark.parametrize("cut", range(5))
def test_a13_a_window_is_resumed_in_its_middle(hooks: list[Any], cut: int) -> None:
    """Gradients 1, 2, 3, 4, K=4, saved after any of them: 2.5."""
    first = sgd_shell(Weight(), [Accumulate(every=4), *hooks])
    feed(first, [1.0, 2.0, 3.0, 4.0][:cut])
    second = sgd_shell(Weight(9.0), [Accumulate(every=4), *hooks])
    second.load_state_dict(through_a_file(first.state_dict()))
    feed(second, [1.0, 2.0, 3.0, 4.0][cut:])
    assert (applied(second), second.state.clock.step, second.state.clock.batch) == (2.5, 1, 4)


@pytest.mark.parametrize("cut", [1, 2])
def test_a13_a_weighted_window_too(cut: int) -> None:
    """In fp16, saved in the middle: the weighted mean of an undisturbed run, in the unit of the first weight."""
    calm, first, second = (sgd_shell(Weight(), [Accumulate(every=3), half()]) for _ in range(3))
    given_weights = [(8.0, 1000.0), (4.0, 3000.0), (1.0, 4000.0)]
    for place, (slope, weight) in enumerate(given_weights):
        if place == cut:
            second.load_state_dict(through_a_file(first.state_dict()))
        step(calm, slope, weight)
        step(first if place < cut else second, slope, weight)
    assert applied(second) == applied(calm) == pytest.approx(3.0)


def test_a_snapshot_shares_nothing_with_the_run() -> None:
    """Training on does not write into a snapshot, and writing into a state dict does not touch the run."""
    shell = shell_of(EMA(decay=0.5) + Accumulate(every=2))
    run(shell, ["plain"] * 3)
    saved, before = shell.state_dict(), record(shell)
    for held in saved["state"]["params"]["main"].values():
        held.fill_(9.0)
    for held in saved["optimizers"]["main"]["state"].values():
        held["momentum_buffer"].fill_(9.0)
    assert differences(before, record(shell)) == []


def test_torch_generators_are_part_of_it() -> None:
    """Dropout after a restore draws what it drew before."""
    shell = shell_of([])
    taken = shell.snapshot()
    drawn = torch.rand(3)
    shell.restore(taken)
    assert torch.equal(torch.rand(3), drawn)


def test_gradients_of_a_window_that_had_none_are_gone() -> None:
    """Restoring to the start of a window drops gradients that came later."""
    shell = sgd_shell(model := Weight(), Accumulate(every=2))
    taken = shell.snapshot()
    step(shell, 1.0)
    shell.restore(taken)
    assert (model.w.grad, dict(shell.state.grads["main"])) == (None, {})
    feed(shell, [2.0, 4.0])
    assert applied(shell) == 3.0


def test_parameters_keep_their_storage() -> None:
    """Restoring and loading write in place: optimizers, views and tied weights stay what they are."""
    shell = shell_of(EMA(decay=0.5))
    model: Any = shell._driver.applier.models.modules["main"]
    taken, saved = shell.snapshot(), shell.state_dict()
    before = {name: (id(leaf), leaf.data_ptr()) for name, leaf in [*model.named_parameters(), *model.named_buffers()]}
    run(shell, ["plain"] * 2)
    shell.restore(taken)
    shell.load_state_dict(saved)
    after = {name: (id(leaf), leaf.data_ptr()) for name, leaf in [*model.named_parameters(), *model.named_buffers()]}
    assert before == after


def test_tied_weights_are_saved_once() -> None:
    """A parameter under two names stays one parameter through save and load."""

    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        return model

    first, second = sgd_shell(tied(), EMA()), sgd_shell(model := tied(), EMA())
    saved = through_a_file(first.state_dict())
    second.load_state_dict(saved)
    assert (list(saved["state"]["params"]["main"]), model[0].weight is model[1].weight) == (["0.weight"], True)


def test_a_changed_slot_survives() -> None:
    """What was changed in a slot, here the decay, comes back although the configuration says otherwise."""
    first, second = (sgd_shell(Weight(), EMA(decay=0.9)) for _ in range(2))
    feed(first, [-1.0])
    taken = first.snapshot()
    slot = taken.state.hooks["ema"] | {"decay": 0.5}
    first.restore(replace(taken, state=taken.state.with_slot("ema", slot)))
    second.load_state_dict(through_a_file(first.state_dict()))
    feed(second, [-1.0])
    assert second.averaged_module().w.item() == 1.5


def test_arrays_of_numpy_are_copied() -> None:
    """A batch of arrays, which loaders like to reuse, stays in the snapshot as it was; so do a validation's."""
    array = np.ones(2)
    shell = sgd_shell(model := Weight(), EMA())
    with shell.batch({"x": array}):
        taken = shell.snapshot()
        array[:] = 7.0
        shell.update(model.w.sum())
    assert taken.state.batch["x"].tolist() == [1.0, 1.0]
    assert kept(array) is not array
