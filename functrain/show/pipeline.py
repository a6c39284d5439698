"""A pipeline as a grid of stages by hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from functrain._fold import Pipeline, fold
from functrain._hook import Hook
from functrain._observer import Observer
from functrain._stage import GATED_STAGES, Stage
from functrain._wrapper import innermost
from functrain.hooks import LIBRARY, Accumulate, MixedPrecision, SkipNonFinite, SkipSpikes
from functrain.show.conflicts import conflicts
from functrain.show.node import Grid
from functrain.show.view import View, safely

VETOERS = (Accumulate, MixedPrecision, SkipNonFinite, SkipSpikes)
"""The hooks of the library that veto; of a hook from elsewhere nobody knows until it runs."""


def pipeline(hooks: Any) -> View:
    """Show who runs where: x is a call, v a call that may veto, l one that may change the loss; never raises.

    Order conflicts stand below, each with its reason.

    Args:
        hooks: a hook, a pipeline, or a list of both.

    >>> from functrain import ClipNorm, SkipNonFinite, show
    >>> show.pipeline([ClipNorm(max_norm=1.0), SkipNonFinite()])
    hook                  clip                  finite
    --------------------  --------------------  ---------
    priority              30                    40
    reads                 .                     grad_norm
    writes                grads                 .
    publishes             grad_limit grad_norm  .
    DO_BACKWARD           .                     x v
    DO_OPTIMIZER_STEP     x                     x v
    AFTER_OPTIMIZER_STEP  .                     x
    """
    return safely(lambda: _grid(fold(*hooks) if isinstance(hooks, list | tuple) else fold(hooks)))


def _grid(folded: Pipeline) -> Grid:
    """Return what each member declares, and where it is called."""
    members = tuple(folded)
    rows = [
        ("priority", *(str(each.priority) for each in members)),
        ("reads", *(_listed(each.reads) for each in members)),
        ("writes", *(_listed(each.writes) for each in members)),
        ("publishes", *(_listed(each.publishes) for each in members)),
    ]
    claimed = [stage for stage in Stage if folded.claimants(stage)]
    calls = [(stage.name, *(_mark(each, stage) for each in members)) for stage in claimed]
    return Grid(("hook", *(each.name for each in members)), (*rows, *calls), tuple(conflicts(members)))


def _listed(names: Iterable[str]) -> str:
    return " ".join(sorted(names)) or "."


def _mark(member: Hook, stage: Stage) -> str:
    """Return what a hook may do at a stage."""
    if stage not in member.stages:
        return "."
    veto = " v" if may_veto(member, stage) else ""
    return f"x{veto}{' l' if may_change_loss(member, stage) else ''}"


def may_veto(member: Hook, stage: Stage) -> bool:
    """Tell whether a hook may veto a stage, as far as it says.

    >>> from functrain import ClipNorm
    >>> may_veto(ClipNorm(max_norm=1.0), Stage.DO_OPTIMIZER_STEP)
    False
    """
    if stage not in GATED_STAGES or stage not in member.stages:
        return False
    if stage is Stage.DO_BACKWARD:
        return member.may_drop
    return _from_elsewhere(member) or isinstance(innermost(member), VETOERS)


def may_change_loss(member: Hook, stage: Stage) -> bool:
    """Tell whether a hook may return another loss: no hook of the library does.

    >>> from functrain import hook
    >>> may_change_loss(hook(lambda *of: of, name="mine"), Stage.DO_BACKWARD)
    True
    """
    return stage is Stage.DO_BACKWARD and stage in member.stages and _from_elsewhere(member)


def _from_elsewhere(member: Hook) -> bool:
    """Tell whether a hook is none of the library's, nor one that only looks."""
    return type(innermost(member)) not in {Hook, Observer, *LIBRARY}
