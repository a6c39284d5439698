"""What the command line names: a target, laws, a profile; and the check of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from functrain.testing.check import check_hook, default_laws
from functrain.testing.law import Law
from functrain.testing.naming import laws_named
from functrain.testing.profiles import chosen_profile, profile
from functrain.testing.reference import resolved
from functrain.testing.report import LawReport
from functrain.testing.subject import Subject, example_of, subject_of


class TargetError(Exception):
    """What was named cannot be checked; the text says why and what to write instead."""


def checked(target: str | None, names: Sequence[str] | None, examples: int | None, asked: str | None) -> LawReport:
    """Return the report of a target, without the laws that say nothing about it.

    Raises:
        TargetError: nothing to import, no hook, or an unknown law or profile.

    >>> checked("functrain:EMA", ["L1"], 5, "ci").broken
    ()
    """
    if target is None:
        raise TargetError("which hook? write  functrain laws package.module:hook")
    try:
        with profile(chosen_profile(asked)) as chosen:
            subject, laws = subject_at(target), _laws(names)
            report = check_hook(subject, laws=laws, max_examples=examples or chosen.max_examples, if_broken="return")
    except ValueError as error:  # an unknown name, or a hook that can be prepared for no state
        raise TargetError(str(error)) from error
    return replace(report, subject=target, rows=tuple(row for row in report.rows if row.applies))


def _laws(names: Sequence[str] | None) -> Sequence[Law]:
    return default_laws() if names is None else list(dict.fromkeys(law for name in names for law in laws_named(name)))


def subject_at(target: str) -> Subject:
    """Return what an import path names, if laws can be checked on it.

    Raises:
        TargetError: nothing there, what it calls raises, or no hook.

    >>> subject_at("functrain:EMA")
    from_config(EMA)
    """
    try:
        found = resolved(target)
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from error
    except SystemExit as error:
        raise TargetError(f"{target}: importing it ends the program ({error})") from error
    try:
        subject = subject_of(found)
        example_of(subject)
    except Exception as error:
        reason = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise TargetError(f"{target}: {reason}") from error
    return subject
