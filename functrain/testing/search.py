"""The search for a scene that breaks a law, with Hypothesis as the engine and not as the reporter."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable

from functrain import Hook
from functrain.testing.breach import HookFailed
from functrain.testing.law import Law
from functrain.testing.laws.contract import CONTRACT
from functrain.testing.report import LawReport, Row
from functrain.testing.scene import Scene
from functrain.testing.simpler import simpler
from functrain.testing.violation import LawViolation

SHRINKS = 400
"""How many times a cheap law is checked at most while its witness is made smaller."""


PHASES = (Phase.reuse, Phase.generate, Phase.shrink)


class _Enough(Exception):  # noqa: N818 - no error: nothing is left to look for
    """Every law is broken."""


@dataclass(frozen=True)
class Search:
    """Where scenes come from, how many are drawn, and how.

    Attributes:
        subject: what is searched, as source text; failing scenes are kept under it.
        scenes: a strategy.
        max_examples: scenes for a law of cost 1.
        seed: of the drawing; None for any, which is what a database needs.
        database: of Hypothesis, in which failing scenes are kept; None for none.
        checked: on how many scenes each law was checked.
        failures: scenes on which a law could not be checked, since the hook failed.
    """

    subject: str
    scenes: st.SearchStrategy[Scene]
    max_examples: int
    seed: int | None
    database: Any = None
    checked: dict[Law, int] = field(default_factory=dict[Law, int])
    failures: list[Scene] = field(default_factory=list[Scene])

    def run(self, function: Callable[[Scene], None], key: str, phases: Sequence[Phase]) -> None:
        """Let Hypothesis call a function on scenes, in silence."""

        def one_scene(scene: Scene) -> None:
            function(scene)

        # Scenes that fail are kept by law and hook, since the code that draws them is always this one.
        one_scene._hypothesis_internal_add_digest = f"{self.subject}: {key}".encode()  # type: ignore[attr-defined]  # noqa: SLF001 # pyright: ignore[reportFunctionMemberAccess]
        quiet = settings(
            max_examples=self.max_examples,
            database=self.database,
            derandomize=False,
            deadline=None,
            verbosity=Verbosity.quiet,
            print_blob=True,  # the blob goes into the violation
            phases=phases,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] - an enum of theirs
            report_multiple_bugs=False,
        )
        test = quiet(given(self.scenes)(one_scene))
        with suppress(SkipTest):  # what Hypothesis raises where a database knows of no scene
            (test if self.seed is None else seeded(self.seed)(test))()

    def broken(self, laws: Sequence[Law]) -> dict[Law, LawViolation]:
        """Return the laws that some scene breaks, in order; every scene serves all of them."""
        found: dict[Law, LawViolation] = {}
        budget = {law: -(-self.max_examples // law.cost) for law in laws}
        self.checked.update(dict.fromkeys(laws, 0))

        def look(scene: Scene) -> None:
            for law in laws:
                if law not in found and self.checked[law] < budget[law]:
                    violation = self._violation(law, scene)
                    found.update({} if violation is None else {law: violation})
            if laws and len(found) == len(laws):
                raise _Enough

        with suppress(_Enough):
            self.run(look, "all laws", (Phase.generate,))
        return {law: found[law] for law in laws if law in found}

    def _violation(self, law: Law, scene: Scene) -> LawViolation | None:
        """Check a law, and count it where it says something and the hook did not fail before."""
        if not law.applies_to(scene.hook):
            return None
        try:
            law.check(scene)
        except HookFailed:
            self.failures.append(scene)
            return None
        except LawViolation as violation:
            self.checked[law] += 1
            return violation
        self.checked[law] += 1
        return None

    def remembered(self, laws: Sequence[Law]) -> dict[Law, LawViolation]:
        """Return the violations that the database knows, made as small as can be."""
        if self.database is None or self.seed is not None:
            return {}
        known = ((law, self.smallest(law, (Phase.reuse, Phase.shrink))) for law in laws)
        return {law: violation for law, violation in known if violation is not None}

    def smallest(self, law: Law, phases: Sequence[Phase] = PHASES) -> LawViolation | None:
        """Return the violation of a law on the smallest scene that shows it, or None."""
        seen: list[LawViolation] = []
        checks = 0

        def check(scene: Scene) -> None:
            nonlocal checks
            checks += 1
            if seen and checks > self.max_examples + SHRINKS // law.cost:
                return  # enough: what would make it smaller is passed over
            if not law.applies_to(scene.hook):
                return
            with suppress(HookFailed):
                try:
                    law.check(scene)
                except LawViolation as violation:
                    seen.append(violation)
                    raise

        try:
            self.run(check, law.name, phases)
        except LawViolation as violation:
            violation.blob = blob_of(violation)
            return violation
        except Flaky:
            pass  # a hook that is no function of its input need not fail twice
        return seen[-1] if seen else None


def blob_of(violation: LawViolation) -> str | None:
    """Take the line that reproduces a violation out of the notes of Hypothesis; the violation says the rest itself."""
    notes: list[str] = getattr(violation, "__notes__", [])
    violation.__notes__ = []
    lines = (line.strip() for note in notes for line in note.splitlines() if "@reproduce_failure" in line)
    return next((line[line.index("@") :] for line in lines), None)


def seed_of(seed: int | None, database: Any = None) -> int | None:
    """Return a seed: the one given, 0 where the profile of Hypothesis is derandomized, else any; none with a database.

    >>> seed_of(3)
    3
    """
    if seed is not None or database is not None:
        return seed
    return 0 if settings().derandomize else secrets.randbits(32)


def report_of(subject: str, hook: Hook, laws: Sequence[Law], search: Search) -> LawReport:
    """Return the report of a search; first which laws are broken, then for each the smallest witness.

    Raises:
        ValueError: the hook's ``init`` refuses every state that was drawn.
    """
    applying = [law for law in laws if law.applies_to(hook)]
    try:
        found = search.remembered(applying)
        found |= search.broken([law for law in applying if law not in found])
    except Unsatisfiable as error:
        raise ValueError(_no_state(hook)) from error
    if search.failures and CONTRACT not in laws and (failed := search.smallest(CONTRACT)):
        # Nobody asked for it, and silence about a hook that fails would read as a law that is kept.
        laws, applying = (CONTRACT, *laws), [CONTRACT, *applying]
        found[CONTRACT] = failed
    first = [law for law in applying if law in found][: None if search.database is not None else 1]
    for law in first:  # the first one is told in full; a database shall know all of them
        found[law] = search.smallest(law) or found[law]
    rows: list[Row] = []
    for law in laws:
        violation = found.get(law)
        small = None if violation is None else simpler(violation)
        rows.append(Row(law, search.checked.get(law, 0), small, law in applying))
    return LawReport(subject, tuple(rows), search.seed)


def _no_state(hook: Hook) -> str:
    return (
        f"{hook.name!r} could be prepared for no drawn state: its init refuses all of them. Give it states that it can "
        'work on: check_hook(hook, states=states(models=["main"])), or a strategy of your own'
    )
