"""The error that says which law a hook breaks, with the smallest state that shows it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functrain.testing.breach import MISSING, Breach
from functrain.testing.remedies import remedy
from functrain.testing.source import scene_source, value_source

if TYPE_CHECKING:
    from functrain.testing.law import Law
    from functrain.testing.report import LawReport
    from functrain.testing.scene import Scene


class LawViolation(AssertionError):  # noqa: N818 - named for what happened
    """A hook breaks a law.

    Attributes:
        law: the law.
        scene: the call that shows it; from :func:`check_hook` as small as Hypothesis could make it.
        what: what is wrong.
        path: where, as source text such as ``state.grads["main"]["w"]``; or empty.
        expected: the value that the law asks for.
        found: the value that there is.
        blob: of ``hypothesis.reproduce_failure``, or None.
        report: of all laws that were checked with this one, or None.

    >>> issubclass(LawViolation, AssertionError)
    True
    """

    def __init__(self, law: Law, scene: Scene, breach: Breach) -> None:
        """Take over what the checker found."""
        super().__init__(law, scene, breach)
        self.law, self.scene, self.breach = law, scene, breach
        self.what, self.path = breach.what, breach.path
        self.expected, self.found = breach.expected, breach.found
        self.blob: str | None = None
        self.report: LawReport | None = None

    def headline(self) -> str:
        """Name law, hook, stage and place in one line."""
        where = f" at {self.path}" if self.path else ""
        return f"{self.law.name}: {self.scene.hook.name!r} at {self.scene.stage.name}: {self.what}{where}"

    def __str__(self) -> str:
        """Tell everything: the law, what is wrong, both values, the witness; and the report, if there is one."""
        lines = [self.explained(), *self._witness()]
        return "\n".join([*lines, *(["", str(self.report)] if self.report is not None else [])])

    def explained(self) -> str:
        """Tell the law, what is wrong, both values, and what to write instead."""
        instead = remedy(self.what)
        lines = [self.headline(), f"  the law: {self.law.statement}", *self._values()]
        return "\n".join([*lines, *([f"  instead: {instead}"] if instead else [])])

    def snippet(self) -> str:
        """Return Python source that builds hook, state and scene, and raises this violation again."""
        from functrain.testing.snippet import snippet

        return snippet(self)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a small file of data, with which :func:`functrain.testing.replay` raises this violation again.

        Raises:
            ValueError: the state holds what is no data, with its place.
        """
        from functrain.testing.violation_file import save_violation

        return save_violation(self, path)

    def _values(self) -> list[str]:
        both: dict[str, Any] = {"expected": self.expected, "found": self.found}
        return [f"  {name}: {value_source(value)}" for name, value in both.items() if value is not MISSING]

    def _witness(self) -> list[str]:
        return ["  witness:", *(f"    {line}" for line in scene_source(self.scene).splitlines())]
