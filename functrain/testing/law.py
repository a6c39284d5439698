"""A law: a statement about every hook, and how to check it on one scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from functrain import Hook
from functrain.testing.breach import Breach
from functrain.testing.scene import Scene
from functrain.testing.violation import LawViolation


def _every_hook(_: Hook) -> bool:
    return True


@dataclass(frozen=True)
class Law:
    """A statement about hooks, and how to check it.

    Attributes:
        name: short, such as ``"L2 purity"``.
        statement: one line.
        checker: raises :class:`Breach` on a scene that shows that the law is broken, and ``HookFailed`` where the hook
            fails before that can be seen.
        applies: tells whether the law says anything about a hook.
        cost: how many times as long a check takes as that of a cheap law; it gets so many times fewer examples.

    >>> from functrain import EMA, Stage, TrainState
    >>> from functrain.testing import laws
    >>> law = laws.CONTRACT
    >>> law
    Law('L1 contract')
    >>> law.applies_to(EMA())
    True
    >>> law.check(Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False))
    """

    name: str
    statement: str
    checker: Callable[[Scene], None] = field(repr=False)
    applies: Callable[[Hook], bool] = field(default=_every_hook, repr=False)
    cost: int = 1

    def applies_to(self, hook: Hook) -> bool:
        """Tell whether the law says anything about a hook."""
        return self.applies(hook)

    def check(self, scene: Scene) -> None:
        """Check one call.

        Raises:
            LawViolation: the law does not hold there.
            HookFailed: the hook raised, so the law could not be checked.
        """
        try:
            self.checker(scene)
        except Breach as breach:
            raise LawViolation(self, scene, breach) from breach.__cause__

    def __repr__(self) -> str:
        """Show the name."""
        return f"Law({self.name!r})"

    def __str__(self) -> str:
        """Return the name without spaces, as the id of a test."""
        return self.name.replace(" ", "_")
