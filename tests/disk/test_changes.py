"""A checkpoint in a run that is not quite the one that wrote it: what came, what went, what is in conflict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import functrain
from functrain import EMA, Accumulate, CheckpointError, ClipNorm, FixedLimit, FrozenMap, Shell, SkipSpikes, pure
from functrain.pure.numbers import plain
from tests.scalars import Weight, applied, run, sgd_shell
from tests.scripted import half
from tests.shell.pipelines import run as present
from tests.shell.pipelines import shell_of
from tests.shell.records import differences, record


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Give a checkpoint of a run that clips and averages."""
    shell = sgd_shell(Weight(), ClipNorm(max_norm=0.5) + EMA(decay=0.5))
    run(shell, [1.0, 2.0])
    return functrain.save(tmp_path / "one", shell)


def unchanged(shell: Shell, load: Callable[[], Any], kind: type[Exception], match: str) -> None:
    """Check that loading raises, and that the shell is as before."""
    before = record(shell)
    with pytest.raises(kind, match=match):
        load()
    assert differences(before, record(shell)) == []


def test_hooks_that_come_and_go_are_reported(saved: Path) -> None:
    """The new one starts afresh, that of the checkpoint is left out, the common one goes on; a warning says so."""
    shell = sgd_shell(Weight(7.0), EMA(decay=0.5) + Accumulate(every=2))
    with pytest.warns(UserWarning, match=r"which start afresh: accumulate\nhooks .* left out: clip"):
        report = shell.load(saved)
    assert (report.missing, report.left_over, report.settled) == (("accumulate",), ("clip",), ())
    assert (applied(shell), shell.state.hooks["ema"]["n_averaged"]) == (pytest.approx(1.0), 2)
    run(shell, [1.0, 1.0])
    assert applied(shell) == pytest.approx(2.0)


def test_what_fits_is_not_warned_of(saved: Path) -> None:
    """The report says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(sgd_shell(Weight(), ClipNorm(max_norm=0.5) + EMA(decay=0.5)).load(saved)) == ""


def test_precision_may_come_and_go(tmp_path: Path) -> None:
    """The loss scale comes and goes with its hook."""
    with_scale, without = sgd_shell(Weight(), half(init_scale=64.0)), sgd_shell(Weight(), [])
    one, two = functrain.save(tmp_path / "one", with_scale), functrain.save(tmp_path / "two", without)
    with pytest.warns(UserWarning, match="left out: precision"):
        without.load(one)
    with pytest.warns(UserWarning, match="start afresh: precision"):
        with_scale.load(two)
    assert (dict(without.state.scaler), with_scale.state.scaler["scale"]) == ({}, 64.0)
    run(with_scale, [1.0])


CONFLICT = (
    r"'ema': decay=0\.5 in the checkpoint and decay=0\.9 in the pipeline; .*on_conflict=\"stored\" or \"current\""
)


def test_a_conflict_raises_with_field_and_both_values(saved: Path) -> None:
    """And nothing changes."""
    shell = sgd_shell(Weight(7.0), ClipNorm(max_norm=0.5) + EMA(decay=0.9))
    unchanged(shell, lambda: shell.load(saved), ValueError, CONFLICT)


@pytest.mark.parametrize(("choice", "decay"), [("stored", 0.5), ("current", 0.9)])
def test_a_conflict_may_be_settled(choice: Any, decay: float, saved: Path) -> None:
    """A number of the slot is that of the checkpoint or that of the pipeline, as somebody says, who is told."""
    shell = sgd_shell(Weight(7.0), ClipNorm(max_norm=0.5) + EMA(decay=0.9))
    report = shell.load(saved, on_conflict=choice)
    assert shell.state.hooks["ema"]["decay"] == decay
    assert "decay=0.5 in the checkpoint and decay=0.9" in report.settled[0]
    assert shell.state.hooks["ema"]["n_averaged"] == 2


def test_what_is_no_number_of_the_slot_cannot_be_stored(saved: Path) -> None:
    """The hook reads it of itself: only the pipeline's value can hold."""
    shell = sgd_shell(Weight(7.0), ClipNorm(max_norm=0.5, norm_type=1.0) + EMA(decay=0.5))
    told = "'norm_type' is no number of the slot"
    unchanged(shell, lambda: shell.load(saved, on_conflict="stored"), ValueError, told)
    assert shell.load(saved, on_conflict="current").settled


def test_conflicts_inside_other_hooks_are_named(tmp_path: Path) -> None:
    """By the path to the inner field; the number of its slot is settled, too."""
    one, two = (sgd_shell(Weight(), functrain.every(2, EMA(decay=decay))) for decay in (0.5, 0.9))
    path = functrain.save(tmp_path / "one", one)
    unchanged(two, lambda: two.load(path), ValueError, r"inner\.decay=0\.5 in the checkpoint and inner\.decay=0\.9")
    two.load(path, on_conflict="stored")
    assert two.state.hooks["ema"]["decay"] == 0.5


def test_a_choice_that_is_none_is_refused(saved: Path) -> None:
    """The error lists those there are."""
    shell = sgd_shell(Weight(), [])
    unchanged(shell, lambda: shell.load(saved, on_conflict="mine"), ValueError, "must be one of")  # type: ignore[arg-type]


def other_optimizer() -> Shell:
    """Return a shell whose optimizer is another one."""
    return Shell(model := Weight(), torch.optim.AdamW(model.parameters()), ClipNorm(max_norm=0.5) + EMA(decay=0.5))


def test_another_optimizer_is_a_conflict(saved: Path) -> None:
    """Key and both kinds."""
    shell = other_optimizer()
    unchanged(shell, lambda: shell.load(saved), ValueError, "optimizer 'main' is SGD in the checkpoint and AdamW")


def test_another_model_does_not_fit(tmp_path: Path) -> None:
    """Other names, other shapes, other dtypes: the first that does not fit is named."""
    path = functrain.save(tmp_path / "one", sgd_shell(nn.Linear(2, 3), []))
    for model, match in (
        (nn.Linear(3, 2), r'state\.params\["main"\]\["weight"\]: stored a tensor \(3, 2\), expected a tensor \(2, 3\)'),
        (nn.Linear(2, 3).double(), r"stored torch\.float32, expected torch\.float64"),
        (nn.Linear(2, 3, bias=False), r"stored keys \['bias', 'weight'\], expected \['weight'\]"),
    ):
        shell = sgd_shell(model, [])
        unchanged(shell, lambda shell=shell: shell.load(path), CheckpointError, match)


def test_buffers_of_an_optimizer_must_be_of_the_shape_of_the_parameter(tmp_path: Path) -> None:
    """Torch would load any, and fail at the next step."""
    shell = shell_of([], "momentum")
    present(shell, ["plain"])
    optimizer = shell._driver.applier.optimizers.by_key["main"]
    first = optimizer.param_groups[0]["params"][0]
    optimizer.state[first]["momentum_buffer"] = torch.ones(3)
    path = functrain.save(tmp_path / "one", shell)
    other = shell_of([], "momentum", seed=1)
    told = r'optimizers\["main"\]\["state"\]\[0\]\["momentum_buffer"\] is not of the shape \(4, 3\)'
    unchanged(other, lambda: other.load(path), CheckpointError, told)


def test_what_fails_late_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader, an optimizer, a scheduler or a generator that refuses: everything is as before."""
    path = functrain.save(tmp_path / "one", shell_of([EMA()], "momentum", seed=1), data={"place": 3})
    shell = shell_of([EMA()], "momentum")
    present(shell, ["plain"])

    def refuse(*_: Any) -> None:
        raise RuntimeError("not today")

    optimizers = shell._driver.applier.optimizers
    for holder in (optimizers.schedulers["main"], optimizers.by_key["main"]):
        with monkeypatch.context() as patch:
            calls: list[int] = []
            real = holder.load_state_dict

            def once(stored: Any, calls: list[int] = calls, real: Any = real) -> None:
                calls.append(1)
                real(stored) if len(calls) > 1 else refuse()

            patch.setattr(holder, "load_state_dict", once)
            unchanged(shell, lambda: shell.load(path), CheckpointError, "not today")

    class Loader:
        place = 1

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, stored: dict[str, int]) -> None:
            before, self.place = self.place, stored["place"]
            if before == 1:
                refuse()

    loader = Loader()
    unchanged(shell, lambda: shell.load(path, data=loader), CheckpointError, "not today")
    assert loader.place == 1


def test_loading_belongs_outside(saved: Path) -> None:
    """Neither into an open batch nor into averaged weights."""
    shell = sgd_shell(Weight(), ClipNorm(max_norm=0.5) + EMA(decay=0.5))
    with shell.batch(), pytest.raises(RuntimeError, match=r"shell\.load\(\) inside an open batch"):
        shell.load(saved)
    run(shell, [1.0])
    with shell.averaged(), pytest.raises(RuntimeError, match=r"shell\.load\(\) inside shell\.averaged"):
        shell.load(saved)


class Pair(NamedTuple):
    """A slot of a class of the user's."""

    count: Any
    seen: Any


@functrain.hook(init=lambda _state: {"pair": Pair(0, [torch.zeros(2)]), "word": "none", "nothing": None})
def remember(state: Any, stage: Any, _skip: Any) -> Any:
    """Keep a named tuple, a list and a text."""
    slot = state.hooks["remember"]
    pair = Pair(slot["pair"].count + 1, [slot["pair"].seen[0] + 1.0])
    return state.with_slot("remember", slot | {"pair": pair, "word": stage.name}), True, state.loss


def test_slots_may_be_any_tree(tmp_path: Path) -> None:
    """Named tuples come back as what the hook has made of them, lists as lists, texts as texts."""
    one, other = sgd_shell(Weight(), remember), sgd_shell(Weight(), remember)
    run(one, [1.0])
    other.load(functrain.save(tmp_path / "one", one))
    slot = other.state.hooks["remember"]
    assert (slot["pair"].count, slot["pair"].seen[0].tolist()) == (4, [4.0, 4.0])
    assert isinstance(slot["pair"], Pair)
    assert (slot["word"], slot["nothing"]) == ("AFTER_OPTIMIZER_STEP", None)
    run(other, [1.0])


def pure_run(hooks: Any) -> tuple[Any, Any]:
    """Return the functions of a pure run, and its first state."""
    functions = pure.train_step(lambda params, _buffers, x: (params["w"] * x).sum(), pure.sgd(0.5, momentum=0.5), hooks)
    return functions, functions.init({"w": torch.zeros(2)})


def test_a_pure_state_meets_another_pipeline(tmp_path: Path) -> None:
    """The same report, the same conflicts; without a pipeline nothing but names is compared."""
    functions, state = pure_run([ClipNorm(max_norm=1.0), EMA(decay=0.5)])
    state = functions.step(state, torch.ones(2))
    path = functrain.save(tmp_path / "one", state, pipeline=[ClipNorm(max_norm=1.0), EMA(decay=0.5)])
    hooks = [EMA(decay=0.9), SkipSpikes(by=FixedLimit(limit=3.0))]
    functions, first = pure_run(hooks)
    with pytest.raises(ValueError, match=CONFLICT):
        functrain.load(path).into(first, hooks)
    with pytest.warns(UserWarning, match="start afresh: spikes"):
        found = functrain.load(path).into(first, hooks, on_conflict="current")
    assert plain(found.hooks["ema"])["decay"] == 0.9
    with pytest.warns(UserWarning, match="left out: clip"):
        found = functrain.load(path).into(first)
    assert plain(found.hooks["ema"])["decay"] == 0.5
    functions.step(found, torch.ones(2))


def test_interpreters_are_not_confused(saved: Path, tmp_path: Path) -> None:
    """Each says what to write instead."""
    _, state = pure_run([])
    with pytest.raises(CheckpointError, match=r"kind 'shell'; write shell\.load\(path\) and then shell\.to_pure"):
        functrain.load(saved).into(state)
    path = functrain.save(tmp_path / "pure", state)
    with pytest.raises(CheckpointError, match=r"kind 'pure'; write pure\.to_shell"):
        sgd_shell(Weight(), []).load(path)


def test_a_pure_state_of_another_model_does_not_fit(tmp_path: Path) -> None:
    """The place is named."""
    _, state = pure_run([])
    path = functrain.save(tmp_path / "one", state.replace(params={"main": {"w": torch.zeros(3)}}))
    with pytest.raises(CheckpointError, match=r'does not fit: state\.params\["main"\]\["w"\]: stored a tensor \(3,\)'):
        functrain.load(path).into(state)


def test_lanes_are_saved_like_anything_else(tmp_path: Path) -> None:
    """A stacked state; its clock is that of the lane that is ahead."""
    _, state = pure_run([])
    stacked = torch.func.vmap(lambda step: state.replace(clock=state.clock.replace(step=step)))(torch.tensor([1, 5, 3]))
    stored = functrain.load(functrain.save(tmp_path / "one", stacked))
    assert (stored.clock["step"], stored.state.clock.step.tolist()) == (5, [1, 5, 3])


def test_generators_come_back(tmp_path: Path) -> None:
    """Torch's, Python's and NumPy's."""
    import random

    import numpy as np

    def drawn() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002, S311 - those are meant

    np.random.randn()  # noqa: NPY002 - leaves a spare number behind
    shell = sgd_shell(Weight(), [])
    path = functrain.save(tmp_path / "one", shell)
    first = drawn()
    shell.load(path)
    assert drawn() == first
    functrain.load(path).restore_random()
    assert drawn() == first


def test_a_summary_may_hold_anything(tmp_path: Path) -> None:
    """What of it is data comes back, and what is none does not keep a run from being saved."""
    shell = sgd_shell(Weight(), [])
    shell.validated({"total_loss": 0.5, "figure": object()})
    other = sgd_shell(Weight(), [])
    other.load(functrain.save(tmp_path / "one", shell))
    assert other.state.validation == FrozenMap({"total_loss": 0.5})


def test_memory_formats_are_those_of_the_run(tmp_path: Path) -> None:
    """Channels that come last in a model stay last."""
    models = [nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last) for _ in range(2)]
    one, other = (Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA()) for model in models)
    other.load(functrain.save(tmp_path / "one", one))
    assert torch.equal(models[0].weight, models[1].weight)
    assert models[1].weight.is_contiguous(memory_format=torch.channels_last)
