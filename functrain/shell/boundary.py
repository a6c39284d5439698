"""From the backward to the advanced clock: what every micro-batch and every flush does about the optimizers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from functrain import _scaler
from functrain._clock import any_of
from functrain._errors import SkipLimitError
from functrain._gradients import non_finite
from functrain._limits import complaint, past_limits
from functrain._select import Flag, either
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.precision import all_overflowed
from functrain.shell.driver import Driver, Phase


def reduce_kept(driver: Driver) -> None:
    """Reduce what several ranks have kept to themselves of a window that closes without a backward."""
    if driver.distributed is not None and driver.distributed.owes(driver.state):
        driver.distributed.reduce()
        driver.state = driver.applier.read_gradients(driver.state)


def run_step(driver: Driver) -> None:
    """Unscale, let the hooks speak, step or skip, settle the scaler: DO_OPTIMIZER_STEP and what surrounds it."""
    boundary = bool(driver.state.window.boundary)
    if boundary:
        driver.phase = Phase.BACKWARD  # gradients may be written from here on
        if driver.distributed is not None:
            driver.state = driver.distributed.ranks.with_whole_window(driver.state)
        if driver.scales:
            with torch.no_grad():
                driver.state = driver.applier.write(_scaler.unscaled(driver.state))
    driver.fire(Stage.BEFORE_OPTIMIZER_STEP)
    empty = boundary and not driver.state.window.entered
    proceed = driver.fire(Stage.DO_OPTIMIZER_STEP, empty)
    if driver.scales:
        driver.state = _rechecked(driver, proceed)
    going = resolve(driver, Stage.DO_OPTIMIZER_STEP, proceed)
    failure = _act(driver, proceed=going and boundary)
    try:
        driver.fire_after_step(not _ran(driver.state, proceed=going and boundary))
    finally:
        if failure is not None:
            raise failure


def _act(driver: Driver, *, proceed: bool) -> BaseException | None:
    """Step what may step; from here on the step counts, so what was raised after one had stepped is returned."""
    if not proceed and not driver.scales:
        driver.state = driver.state.replace(stepped=driver.waiting)
        return None
    failure = None
    try:
        driver.state = driver.applier.step(driver.state, proceed)
    except BaseException as error:  # noqa: BLE001 - raised again after the hooks have seen the step
        failure = _counted(driver, error)
    if any_of(driver.state.stepped):
        driver.phase = Phase.STEPPED
    if driver.precision is not None and driver.scales:
        driver.state = driver.applier.settle(driver.state, driver.state.hooks[driver.precision.name])
    return failure


def _counted(driver: Driver, error: BaseException) -> BaseException:
    """Return what was raised, after noting who had stepped; if nobody had, nothing has happened, and it is raised."""
    if not (done := getattr(error, "partial", [])):
        raise error
    driver.state = driver.state.replace(stepped=FrozenMap({key: key in done for key in driver.waiting}))
    return error


def _ran(state: TrainState, *, proceed: bool) -> bool:
    """Tell whether the update was executed; without optimizers the verdict alone decides."""
    return bool(any_of(state.stepped)) if state.stepped else proceed


def finish(driver: Driver, *, presented: bool) -> None:
    """Advance the clock and close the window: a skipped one is emptied at once."""
    state = driver.state
    driver.pipeline.notice("end", state)
    boundary, ran = bool(state.window.boundary), bool(any_of(state.stepped))
    skipped = boundary and not ran and bool(state.stepped)  # without optimizers there is nothing to skip
    clock = state.clock.updated(skipped or ran, state.stepped, ran, int(presented))
    window = state.window.emptied() if boundary and not skipped else state.window
    driver.state = state.replace(clock=clock, window=window)
    if skipped:
        driver.discard_window()


def resolve(driver: Driver, stage: Stage, proceed: Flag) -> bool:
    """Return the verdict, once every decision in the state is a Python bool, by one transfer from the device."""
    if proceed is True and not driver.scales:
        return True
    driver.state, going = _resolved(driver.state, stage, proceed)
    return going


def _resolved(state: TrainState, stage: Stage, proceed: Flag) -> tuple[TrainState, bool]:
    vetoes, found = state.vetoes.get(stage, FrozenMap()), state.scaler.get("found_inf", FrozenMap())
    flags = [proceed, *vetoes.values(), *found.values()]
    waiting = [flag for flag in flags if isinstance(flag, Tensor)]
    if not waiting:
        return state, bool(proceed)
    answers = iter(_transferred(waiting))
    going, *known = [next(answers) if isinstance(flag, Tensor) else flag for flag in flags]
    state = state.replace(vetoes=state.vetoes | {stage: dict(zip(vetoes, known, strict=False))})
    if found:
        known_found = dict(zip(found, known[len(vetoes) :], strict=True))
        state = state.replace(scaler=state.scaler | {"found_inf": known_found})
    return state, going


def _transferred(flags: list[Tensor]) -> list[bool]:
    """Read 0-d bool tensors with one transfer."""
    device = flags[0].device
    if device.type == "cpu" and all(flag.device.type == "cpu" for flag in flags):
        return [bool(flag) for flag in flags]
    stacked = torch.stack([flag.to(device, non_blocking=True) for flag in flags])
    return cast("list[bool]", stacked.tolist())


def _rechecked(driver: Driver, proceed: Flag) -> TrainState:
    """Return the state with overflow judged again, if a hook that ran after the judge may have caused it."""
    state = driver.state
    if proceed is False or not _writers_after_judge(driver):
        return state
    with torch.no_grad():
        again = non_finite(state)
    old = state.scaler["found_inf"]
    found = FrozenMap({key: either(flag, again.get(key, False)) for key, flag in old.items()})
    state = state.replace(scaler=state.scaler | {"found_inf": found})
    stage, name = Stage.DO_OPTIMIZER_STEP, driver.precision.name if driver.precision else ""
    return state.replace(vetoes=state.vetoes | {stage: state.vetoes[stage] | {name: all_overflowed(state)}})


def _writers_after_judge(driver: Driver) -> bool:
    """Tell whether a hook behind MixedPrecision could make finite gradients infinite."""
    members = driver.pipeline.claimants(Stage.DO_OPTIMIZER_STEP)
    judge = next(place for place, each in enumerate(members) if each.exclusive == "precision")
    return any(not each.keeps_finite for each in members[judge + 1 :])


def check_limits(driver: Driver) -> None:
    """Raise at a boundary once more skips have come in a row than a hook that vetoed allows.

    Raises:
        SkipLimitError: names the hook, the count and the first batch.
    """
    if not driver.state.clock.consecutive_skips:
        return
    for name, past in past_limits(driver.state).items():
        if bool(past):
            raise SkipLimitError(complaint(name, dict(driver.state.limits)[name], driver.state.clock))
