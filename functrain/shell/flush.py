"""Closing a window that the epoch leaves open."""

from __future__ import annotations

from functrain._stage import Stage
from functrain.shell.boundary import check_limits, finish, reduce_kept, run_step
from functrain.shell.driver import Driver, Phase


def flush_window(driver: Driver) -> None:
    """Close a partial window by the policy of the pipeline's Accumulate; without one nothing is ever open."""
    policy = getattr(driver.accumulate, "partial", "flush")
    if not driver.window_is_open() or policy == "carry":
        return
    if policy == "drop":
        driver.discard_window()
    else:
        step_window(driver)


def step_window(driver: Driver) -> None:
    """Step on what the open window holds, whatever the policy; an exception empties it.

    Vetoes of the last micro-batch stay: if all were dropped, they are the reason for the skip.
    """
    before = driver.state
    driver.enter(Phase.BACKWARD)
    state = driver.applier.refreshed(before)
    driver.state = state.replace(
        window=state.window.replace(boundary=True),
        metrics=driver.unpublished,
        hyper=driver.applier.optimizers.hyper(),
    )
    driver.pipeline.notice("flush", driver.state)
    try:
        reduce_kept(driver)
        run_step(driver)
    except BaseException as error:
        driver.recover(before, error)
        if driver.phase is Phase.STEPPED:
            finish(driver, presented=False)
        raise
    finish(driver, presented=False)
    check_limits(driver)


def close_epoch(driver: Driver) -> None:
    """Advance the epoch."""
    driver.pipeline.notice("epoch", driver.state)
    driver.state = driver.state.replace(clock=driver.state.clock.next_epoch())


def finish_training(driver: Driver) -> None:
    """Step on what ``partial="carry"`` has carried to the end, then fire AFTER_TRAINING."""
    if driver.window_is_open():
        step_window(driver)
    driver.fire(Stage.AFTER_TRAINING)
