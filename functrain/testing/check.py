"""One call that checks every law on a hook, a pipeline or a shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st

from functrain import TrainState, fold
from functrain._function_hook import as_hook
from functrain.testing.law import Law
from functrain.testing.laws import LAWS, THOROUGH
from functrain.testing.report import LawReport
from functrain.testing.scene import scenes
from functrain.testing.search import Search, report_of, seed_of

Then = Literal["raise", "return"]


def check_hook(
    hook: Any,
    *,
    laws: Sequence[Law] | None = None,
    states: st.SearchStrategy[TrainState] | None = None,
    max_examples: int = 100,
    seed: int | None = None,
    database: Any = None,
    if_broken: Then = "raise",
) -> LawReport:
    """Check a hook against every law that says something about it.

    States are drawn, and prepared with the hook's ``init``. Laws that take long get fewer examples. A hook that
    raises breaks L1, and the exception is the cause.

    Args:
        hook: a hook, or a plain function ``(state, stage, will_skip) -> (state, proceed, loss)``.
        laws: by default :data:`LAWS`, in Hypothesis's profile ``thorough`` with Inductor.
        states: bare states, for a hook that needs others than those drawn; see :func:`states`.
        max_examples: scenes for a law that is checked quickly.
        seed: of the drawing; the report names the one that was used.
        database: an ``ExampleDatabase`` of Hypothesis, which like Hypothesis's own is not used with a ``seed``; by
            default nothing is kept.
        if_broken: "raise" at the end, or "return" the report all the same.

    Returns:
        the report, a row a law.

    Raises:
        LawViolation: some law is broken; the first one in full, and the report with all of them.
        TypeError: no hook and no function.
        ValueError: the hook's ``init`` refuses every state that was drawn.

    >>> from functrain import Stage, hook
    >>> @hook(stages=Stage.DO_OPTIMIZER_STEP, writes={"grads"})
    ... def halve(state, stage, will_skip):
    ...     for grad in state.grads["main"].values():
    ...         grad.mul_(0.5)
    ...     return state, True, state.loss
    >>> check_hook(halve, seed=0, if_broken="return").broken[0]
    'L2 purity'
    """
    subject = as_hook(hook)
    chosen = tuple(laws) if laws is not None else default_laws()
    search = Search(repr(subject), scenes(subject, bare=states), max_examples, seed_of(seed, database), database)
    report = report_of(repr(subject), subject, chosen, search)
    if if_broken == "raise":
        report.raise_if_broken()
    return report


def default_laws() -> tuple[Law, ...]:
    """Return the laws that are checked unless somebody says which; with Inductor in the profile ``thorough``.

    >>> len(default_laws()) >= len(LAWS)
    True
    """
    return THOROUGH if settings.get_current_profile_name() == "thorough" else LAWS


def check_pipeline(*hooks: Any, **options: Any) -> LawReport:
    """Check a pipeline as a whole: as a hook, and the laws of composition.

    Args:
        hooks: hooks, functions and pipelines, folded.
        options: as of :func:`check_hook`.

    Returns:
        the report, a row a law.

    Raises:
        LawViolation: some law is broken.

    >>> from functrain import ClipNorm, EMA
    >>> from functrain.testing import laws
    >>> check_pipeline(ClipNorm(max_norm=1.0), EMA(), laws=[laws.MONOID], max_examples=5).broken
    ()
    """
    return check_hook(fold(*hooks), **options)
