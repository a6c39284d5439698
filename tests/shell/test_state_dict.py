"""Loading a state dict: all or nothing, and an error that says what does not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR, StepLR

import functrain
from functrain import EMA, Accumulate, ClipNorm, FixedLimit, MovingMean, Shell, SkipSpikes, every, on, when
from tests.scalars import Weight, sgd_shell, step
from tests.scripted import half
from tests.shell.pipelines import network, run, shell_of
from tests.shell.records import differences, flat, record

HOOKS = [Accumulate(every=2), half(), ClipNorm(max_norm=1.0), SkipSpikes(by=FixedLimit(limit=9.0)), EMA(decay=0.5)]


def used(seed: int = 0) -> Shell:
    """Return a shell in the middle of a window."""
    shell = shell_of(HOOKS, "momentum", seed)
    run(shell, ["plain"] * 3)
    return shell


STORED = used(1).state_dict()
"""What another run saved: every tensor of it differs from that of `used()`."""


def refused(
    stored: Any, kind: type[Exception] | tuple[type[Exception], ...], match: str, shell: Shell | None = None
) -> None:
    """Check that loading raises, and that nothing has changed: not even torch's generator."""
    shell = shell or used()
    before = record(shell)
    with pytest.raises(kind, match=match):
        shell.load_state_dict(stored)
    assert differences(before, record(shell)) == []
    assert shell._driver.applier.scaler is None


def without(*path: str) -> Any:
    """Return what was saved without the entry at a path."""
    stored = copy.deepcopy(STORED)
    holder: Any = stored
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return stored


def changed(value: Any, *path: str) -> Any:
    """Return what was saved with another value at a path."""
    stored = copy.deepcopy(STORED)
    holder: Any = stored
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return stored


@pytest.mark.parametrize("key", sorted(set(STORED)))
def test_a_missing_part_is_named(key: str) -> None:
    """Each of the top-level parts is needed."""
    refused(without(key), KeyError, f"'{key}'")


@pytest.mark.parametrize("field", sorted(STORED["state"]))
def test_a_missing_field_is_named(field: str) -> None:
    """Each field of the state is needed, and the error says which one is missing."""
    refused(without("state", field), KeyError, rf"state\.{field}\b")


LEAVES = [
    ("state", "params", "main", "3.weight"),
    ("state", "buffers", "main", "1.running_mean"),
    ("state", "clock", "step"),
    ("state", "window", "entered"),
    ("state", "scaler", "scale"),
    ("state", "hooks", "ema"),
    ("state", "hooks", "ema", "shadow", "0.bias"),
    ("state", "hooks", "spikes", "statistic", "limit"),
]


@pytest.mark.parametrize("path", LEAVES)
def test_a_missing_leaf_is_named(path: tuple[str, ...]) -> None:
    """Anywhere in the state, as far down as a slot of a hook."""
    refused(without(*path), KeyError, path[-1].replace(".", r"\."))


@pytest.mark.parametrize("path", LEAVES[:1] + LEAVES[6:7])
def test_a_leaf_that_nobody_knows_is_named(path: tuple[str, ...]) -> None:
    """A parameter too many is as wrong as one too few."""
    refused(changed(torch.ones(1), *path[:-1], "extra"), KeyError, "extra")


@pytest.mark.parametrize("path", LEAVES)
@pytest.mark.parametrize("value", ["1", None, torch.ones(7), [1.0]])
def test_a_leaf_of_another_kind_is_refused(path: tuple[str, ...], value: Any) -> None:
    """Text, nothing, a list, or a tensor of another shape in the place of any leaf."""
    refused(changed(value, *path), (ValueError, KeyError, TypeError), path[-1].replace(".", r"\."))


@pytest.mark.parametrize("part", ["optimizers", "schedulers"])
def test_optimizers_and_schedulers_must_be_those_of_the_shell(part: str) -> None:
    """One too few and one too many are refused by key."""
    refused(without(part, "main"), (KeyError, ValueError), "main")
    refused(changed({}, part, "other"), (KeyError, ValueError), "other")


BROKEN = {
    "groups": (changed([], "optimizers", "main", "param_groups"), ValueError, "parameter group"),
    "generator": (changed(torch.zeros(3), "random", "cpu"), (TypeError, RuntimeError), "RNG state|ByteTensor"),
    "version": (changed(99, "version"), ValueError, "version.*99"),
    "scheduler": (changed(7, "schedulers", "main"), (TypeError, ValueError), "not iterable"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_fails_late_is_undone(broken: str) -> None:
    """What torch itself refuses, after weights had been written, leaves weights, optimizer and generator as before."""
    refused(*BROKEN[broken])


CONFLICTS: dict[str, tuple[Any, str]] = {
    "ema": (EMA(decay=0.9), r"'ema': decay=0\.5 in the checkpoint and decay=0\.9 in the pipeline; construct"),
    "clip": (ClipNorm(max_norm=2.0), r"'clip': max_norm=1\.0 in the checkpoint and max_norm=2\.0"),
    "accumulate": (Accumulate(every=3), r"'accumulate': every=2 in the checkpoint and every=3"),
    "precision": (half(growth_interval=5), r"growth_interval=2000 in the checkpoint and growth_interval=5"),
    "spikes": (SkipSpikes(by=MovingMean(ratio=2.0)), r"'spikes': by=.*FixedLimit.*by=.*MovingMean"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_conflicting_configuration_is_refused(name: str) -> None:
    """Field, both values and the remedy; nothing changes."""
    other, match = CONFLICTS[name]
    hooks = [other if each.name == name else each for each in HOOKS]
    refused(STORED, ValueError, match, shell_of(hooks))


WRAPPED: list[tuple[Any, Any]] = [
    (every(2, EMA()), every(3, EMA())),
    (every(2, EMA(decay=0.5)), every(2, EMA(decay=0.9))),
    (on("0.*", ClipNorm(max_norm=1.0)), on("1.*", ClipNorm(max_norm=1.0))),
    (EMA(), every(1, EMA())),
    (when(functrain.select, EMA()), when(functrain.fold, EMA())),
]


@pytest.mark.parametrize(("one", "other"), WRAPPED)
def test_combinators_are_compared_with_what_is_in_them(one: Any, other: Any) -> None:
    """Another n, another selector, predicate or inner field is a conflict; the same is none."""
    saved = sgd_shell(network(0), one).state_dict()
    sgd_shell(network(1), one).load_state_dict(saved)
    with pytest.raises(ValueError, match="checkpoint conflict"):
        sgd_shell(network(1), other).load_state_dict(saved)


def test_hooks_that_come_or_go_are_named() -> None:
    """A hook too few or too many: both lists in the error."""
    refused(STORED, ValueError, r"'accumulate', 'clip', 'ema'.*this pipeline has \['ema'\]", shell_of(EMA(decay=0.5)))


def test_settings_missing_from_the_checkpoint_are_ignored_and_unknown_ones_reported() -> None:
    """An older checkpoint may lack a setting; a setting that this version does not know is refused."""
    shell = used()
    shell.load_state_dict(without("pipeline", "ema", "update_every"))
    assert differences(flat(STORED["state"]), flat(shell.state_dict()["state"])) == []
    refused(changed(3, "pipeline", "ema", "gamma"), ValueError, r"'ema'.*gamma")


@pytest.mark.parametrize(("saving", "loading"), [(True, False), (False, True)])
def test_strict_mode_is_no_conflict(saving: bool, loading: bool) -> None:
    """What was saved under strict loads without it, and the other way round."""
    first, second = shell_of(HOOKS, strict=saving), shell_of(HOOKS, strict=loading, seed=1)
    run(first, ["plain"] * 3)
    second.load_state_dict(first.state_dict())
    assert differences(record(first), record(second)) == []


KINDS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda _made: None, lambda made: StepLR(made, 1)),
    (lambda made: StepLR(made, 1), lambda _made: None),
    (lambda made: StepLR(made, 1), lambda made: ExponentialLR(made, 0.5)),
]


@pytest.mark.parametrize(("one", "other"), KINDS)
def test_another_kind_of_scheduler_is_a_conflict(one: Any, other: Any) -> None:
    """A scheduler's state means nothing to another kind; one that came or went is said, not ignored."""
    shells = []
    for make in (one, other):
        optimizer = SGD((model := Weight()).parameters(), lr=1.0)
        shells.append(Shell(model, optimizer, [], make(optimizer)))
    with pytest.raises(ValueError, match=r"scheduler.*'main'.*in the checkpoint"):
        shells[1].load_state_dict(shells[0].state_dict())


def test_another_kind_of_optimizer_is_a_conflict() -> None:
    """Torch would take the groups of SGD into AdamW, and fail at the next step."""
    first, model = sgd_shell(Weight(), []), Weight()
    second = Shell(model, AdamW(model.parameters()), [])
    with pytest.raises(ValueError, match=r"optimizer.*'main'.*SGD in the checkpoint.*AdamW"):
        second.load_state_dict(first.state_dict())
    step(second, 1.0)


@given(one=st.booleans(), two=st.booleans())
def test_weights_of_a_window_may_be_numbers_or_tensors(one: bool, two: bool) -> None:
    """A window weighted by tensors resumes in a shell that was weighted by numbers, and the other way round."""
    shells = [sgd_shell(Weight(), Accumulate(every=2)) for _ in range(2)]
    for shell, tensor in zip(shells, (one, two), strict=True):
        step(shell, 1.0, torch.tensor(3.0) if tensor else 3.0)
    shells[1].load_state_dict(shells[0].state_dict())
    step(shells[1], 5.0, torch.tensor(1.0) if two else 1.0)
    assert shells[1].state.params["main"]["w"].item() == pytest.approx(-2.0)


def test_the_loss_of_another_dtype_is_kept() -> None:
    """What hooks may still read at a flush is saved as it is."""
    first, second = (sgd_shell(nn.Linear(1, 1).double(), Accumulate(every=2)) for _ in range(2))
    with first.batch():
        first.update(first._driver.applier.models.modules["main"](torch.ones(1, 1).double()).sum())
    second.load_state_dict(first.state_dict())
    assert (second.state.raw_loss.dtype, second.state.raw_loss) == (torch.float64, first.state.raw_loss)
    assert dict(second.state.stepped) == dict(first.state.stepped)
