"""The rows "Orchestrator" of the contract: hooks that are context managers, and validation."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

import functrain
from functrain import Hook, Shell, Stage
from tests.contract.toys import scalar, shell_of, train, watcher

LOG: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    """Forget what the previous test wrote down."""
    LOG.clear()


class Managed(Hook):
    """A hook that is a context manager and can be closed; it claims to have handled every exception."""

    def __enter__(self) -> Self:
        """Note the entry."""
        LOG.append(("enter", self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note the exit and what it was told."""
        LOG.append(("exit", self.name, kind, error, trace is not None))
        return True

    def close(self) -> None:
        """Note the closing."""
        LOG.append(("close", self.name))


class Closable(Hook):
    """A hook that can only be closed."""

    def close(self) -> None:
        """Note the closing."""
        LOG.append(("close", self.name))


class Fails(Hook):
    """A hook that fails on entering or on leaving."""

    on_enter: bool

    def __enter__(self) -> Self:
        """Fail if it is meant to."""
        if self.on_enter:
            raise OSError("entering")
        return self

    def __exit__(self, *_details: object) -> None:
        """Fail if it is meant to."""
        if not self.on_enter:
            raise OSError("leaving")


def test_context_managers_are_entered_in_order_and_left_in_reverse() -> None:
    """`with shell` enters hooks in dispatch order and leaves them in reverse."""
    with shell_of(scalar(), [Managed(name="b", priority=60), Managed(name="a")]):
        assert LOG == [("enter", "a"), ("enter", "b")]
    assert [entry[:2] for entry in LOG[2:]] == [("exit", "b"), ("exit", "a")]


def test_a_hook_with_exit_gets_only_that_and_suppresses_nothing() -> None:
    """`__exit__` gets (type, exc, tb), its True does not suppress, and `close` is not called beside it."""
    error = KeyError("boom")
    with pytest.raises(KeyError, match="boom"), shell_of(scalar(), Managed(name="a")):
        raise error
    assert [("enter", "a"), ("exit", "a", KeyError, error, True)] == LOG


def test_a_hook_without_exit_is_closed() -> None:
    """A hook without `__exit__` is closed when the shell is left."""
    with shell_of(scalar(), [Closable(name="a"), Closable(name="b")]):
        assert LOG == []
    assert LOG == [("close", "b"), ("close", "a")]


def test_close_calls_close_in_reverse() -> None:
    """`shell.close()` calls `close`, and only that, in reverse."""
    shell_of(scalar(), [Managed(name="a"), Hook(name="plain"), Closable(name="b")]).close()
    assert LOG == [("close", "b"), ("close", "a")]


@pytest.mark.parametrize("on_enter", [True, False])
def test_leaving_is_exception_safe(on_enter: bool) -> None:
    """If one hook fails on entering or on leaving, the hooks entered before it are still left."""
    hooks = [Managed(name="a"), Fails(name="f", on_enter=on_enter)]
    with pytest.raises(OSError, match="entering" if on_enter else "leaving"), shell_of(scalar(), hooks):
        pass
    assert [entry[:2] for entry in LOG] == [("enter", "a"), ("exit", "a")]


def plateau(hooks: object) -> tuple[Shell, nn.Module, SGD]:
    """Build a shell whose learning rate drops to a tenth once a validation is no better than the first."""
    optimizer = SGD((model := scalar()).parameters(), lr=1.0)
    return Shell(model, optimizer, hooks, [ReduceLROnPlateau(optimizer, patience=0)]), model, optimizer


def test_after_validation_runs_before_metric_schedulers() -> None:
    """AFTER_VALIDATION fires before metric schedulers consume the summary, which hooks find in the state."""
    seen: list[tuple[float, float]] = []
    look = watcher(
        Stage.AFTER_VALIDATION,
        lambda state: seen.append((float(state.validation["total_loss"]), optimizer.param_groups[0]["lr"])),
    )
    shell, model, optimizer = plateau(look)
    train(shell, model, 1.0)
    for loss in (2.0, 3.0):
        shell.validated({"total_loss": loss})
    assert seen == [(2.0, 1.0), (3.0, 1.0)]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("metric", ["accuracy", lambda summary: summary["accuracy"]])
def test_validated_takes_a_key_or_a_callable(metric: Any) -> None:
    """The metric is a key of the summary or a function of it."""
    shell, model, optimizer = plateau(Hook())
    train(shell, model, 1.0)
    for loss, accuracy in ((1.0, 2.0), (0.0, 3.0)):
        shell.validated({"total_loss": loss, "accuracy": accuracy}, metric=metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_validated_names_the_keys_there_are() -> None:
    """A missing metric is a KeyError that lists the sorted keys."""
    shell, model, _ = plateau(Hook())
    train(shell, model, 1.0)
    with pytest.raises(KeyError, match=r"total_loss.*\['a', 'b'\]"):
        shell.validated({"b": 1.0, "a": 2.0})


def test_metric_schedulers_do_not_step_with_batches() -> None:
    """Batches leave a metric-driven scheduler alone."""
    shell, model, optimizer = plateau(functrain.fold())
    train(shell, model, *[1.0] * 5)
    assert optimizer.param_groups[0]["lr"] == 1.0
