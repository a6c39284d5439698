"""The moments of a training run at which hooks are called.

Not to be confused with a *phase* of training (warm-up, fine-tuning): a stage recurs in every batch or epoch.
"""

from __future__ import annotations

from enum import Enum


class Singletons(Enum):
    """An enumeration that hashes by identity, which is several times faster than Enum's hash of the name.

    A class of its own, since Dynamo before 2.13 refuses keys whose very class brings a hash.
    """

    __hash__ = object.__hash__


def hold_plainly(kind: type[Enum]) -> None:
    """Hold the members of an enumeration as plain attributes, as Python 3.12 does: 3.11 calls a function for each.

    >>> hold_plainly(Stage)
    >>> Stage.SETUP is Stage["SETUP"]
    True
    """
    for member in kind:
        type.__setattr__(kind, member.name, member)


class Stage(Singletons):
    """The 18 stages, in the order in which one run meets them.

    Only the gated stages read ``proceed``; only ``DO_BACKWARD`` reads ``loss``.

    >>> [stage.name for stage in Stage][:3]
    ['SETUP', 'BEFORE_TRAINING', 'BEFORE_EPOCH']
    >>> Stage.DO_BACKWARD in GATED_STAGES
    True
    """

    SETUP = "setup"
    BEFORE_TRAINING = "before_training"
    BEFORE_EPOCH = "before_epoch"
    BEFORE_BATCH = "before_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    DO_BACKWARD = "do_backward"
    AFTER_BACKWARD = "after_backward"
    BEFORE_OPTIMIZER_STEP = "before_optimizer_step"
    DO_OPTIMIZER_STEP = "do_optimizer_step"
    AFTER_OPTIMIZER_STEP = "after_optimizer_step"
    AFTER_BATCH = "after_batch"
    AFTER_EPOCH = "after_epoch"
    AFTER_TRAINING = "after_training"
    AFTER_VALIDATION = "after_validation"

    def __repr__(self) -> str:
        """Show a stage as the source text that names it."""
        return f"Stage.{self.name}"


hold_plainly(Stage)

GATED_STAGES: frozenset[Stage] = frozenset({Stage.BEFORE_BATCH, Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP})
"""The stages whose act a hook may veto: clearing gradients, the backward, the optimizer step."""

UPDATE_STAGES: frozenset[Stage] = GATED_STAGES | {Stage.AFTER_OPTIMIZER_STEP}
"""The stages that both interpreters fire, and that a hook claims unless it says otherwise."""
