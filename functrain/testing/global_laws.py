"""What holds of every run in a shell, whatever its hooks: each function yields a line for all that breaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from functrain._clock import any_of
from functrain._fold import Pipeline
from functrain._stage import Stage
from functrain._tree import FrozenMap, paths
from functrain._wrapper import innermost
from functrain.hooks.average import Average
from functrain.hooks.skip import SkipNonFinite
from functrain.testing.differences import unlike
from functrain.testing.shell_run import ShellRun


def frozen(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record that only an executed step may change: parameters, optimizers and shadows.

    >>> list(frozen({"state": {"params": {}, "hooks": {"ema": {"shadow": {}}, "clip": {}}}, "optimizers": {}})["hooks"])
    ['ema']
    """
    state = record["state"]
    slots: Mapping[str, Any] = state["hooks"]
    shadows: dict[str, Any] = {name: slot["shadow"] for name, slot in slots.items() if _is_average(slot)}
    return {"params": state["params"], "hooks": shadows, "optimizers": record["optimizers"]}


def _is_average(slot: Any) -> bool:
    return isinstance(slot, Mapping) and "shadow" in slot


def rolled_back(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record that is as before a micro-batch which an exception ended before the step."""
    state = record["state"]
    kept = {name: state[name] for name in ("params", "buffers", "clock", "scaler", "stepped")}
    return {**kept, **frozen(record)}


def guarded(pipeline: Pipeline) -> bool:
    """Tell whether a pipeline lets nothing through that is not finite: it holds a SkipNonFinite that always judges.

    >>> from functrain import fold
    >>> guarded(fold(SkipNonFinite())), guarded(fold())
    (True, False)
    """
    return any(isinstance(each, SkipNonFinite) for each in pipeline)


def non_finite_parameters(run: ShellRun) -> Iterator[str]:
    """Yield the parameters that are not finite."""
    for path, leaf in paths(FrozenMap(run.applier.models.params), "state.params").items():
        if not leaf.isfinite().all():
            yield f"{path}: {leaf.tolist()} != finite numbers"


def kept_gradients(run: ShellRun) -> Iterator[str]:
    """Yield the gradients that no window and no executed step accounts for; a hook may keep some at BEFORE_BATCH."""
    state = run.shell.state
    accumulates = run.shell.pipeline.member("accumulate")
    vetoes = state.vetoes.get(Stage.BEFORE_BATCH, FrozenMap())
    keepers = [name for name, veto in vetoes.items() if bool(veto) and (not accumulates or name != accumulates.name)]
    if bool(state.window.entered) or bool(any_of(state.stepped)) or keepers:
        return
    yield from unlike(run.applier.models.gradients(), {key: {} for key in run.applier.models.modules}, "state.grads")


def waits(run: ShellRun) -> bool:
    """Tell whether the next micro-batch closes no window, as far as an Accumulate says so."""
    member = run.shell.pipeline.member("accumulate")
    if member is None:
        return False
    every = getattr(innermost(member), "every", 1)
    return bool(run.shell.state.hooks[member.name]["position"] + 1 < every)


def flushes(run: ShellRun) -> bool:
    """Tell whether a flush would step on an open window."""
    driver: Any = run.shell._driver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the machine looks inside
    return driver.window_is_open() and getattr(driver.accumulate, "partial", "flush") == "flush"


def ready_averages(run: ShellRun) -> list[str]:
    """Return the names of the averages that have had their first update."""
    averages = [each.name for each in run.shell.pipeline if isinstance(innermost(each), Average)]
    return [name for name in averages if run.shell.state.hooks[name]["n_averaged"]]


def not_shown(run: ShellRun, name: str) -> Iterator[str]:
    """Yield the parameters in which a model does not hold an average, though it should."""
    key = innermost(run.shell.pipeline[name]).model_key  # type: ignore[union-attr]
    for path, shadow in run.shell.state.hooks[name]["shadow"].items():
        leaf = run.applier.models.live[key][path].detach()
        yield from unlike(leaf, shadow.to(leaf.dtype), f'inside averaged("{name}"): model["{path}"]')
