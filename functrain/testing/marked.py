"""What ``@pytest.mark.laws`` does: a test for each law, and the violation as its failure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from functrain.testing.check import check_hook, default_laws
from functrain.testing.law import Law
from functrain.testing.naming import laws_named
from functrain.testing.profiles import chosen_profile, profile
from functrain.testing.subject import Subject, example_of, subject_of
from functrain.testing.violation import LawViolation

OPTIONS = ("laws", "states", "max_examples", "seed", "database")


def expand(metafunc: pytest.Metafunc, mark: pytest.Mark) -> None:
    """Give a test the argument ``law``, with every law that says something about the hook."""
    try:
        with profile(_profile_of(metafunc.config)):
            example, laws = example_of(_subject(mark)), _laws(mark)
    except (TypeError, ValueError) as error:
        pytest.fail(f"{metafunc.definition.nodeid}: @pytest.mark.laws: {error}", pytrace=False)
    applying = [law for law in laws if law.applies_to(example)]
    if "law" not in metafunc.fixturenames:
        metafunc.fixturenames.append("law")
    metafunc.parametrize("law", applying, ids=[law.name for law in applying])


def _profile_of(config: pytest.Config) -> str:
    return chosen_profile(config.getoption("--functrain-profile"))


def _subject(mark: pytest.Mark) -> Subject:
    """Return what a mark is about.

    Raises:
        TypeError: no hook, more than one, or an unknown option.
    """
    given = [*mark.args, *(mark.kwargs[name] for name in mark.kwargs if name == "hook")]
    if len(given) != 1:
        raise TypeError(f"write @pytest.mark.laws(hook), with one hook and not {len(given)}")
    if unknown := sorted(mark.kwargs.keys() - {"hook", *OPTIONS}):
        raise TypeError(f"unknown option {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    return subject_of(given[0])


def _laws(mark: pytest.Mark) -> tuple[Law, ...]:
    """Return the laws that were asked for, as laws or by their names."""
    asked = mark.kwargs.get("laws")
    if asked is None:
        return default_laws()
    return tuple(found for each in asked for found in ([each] if isinstance(each, Law) else laws_named(each)))


def check(item: pytest.Function, mark: pytest.Mark) -> None:
    """Check the law of a test, in the profile; its violation is told in its own words, without a traceback."""
    law = cast("Law", item.callspec.params["law"])
    with profile(_profile_of(item.config)) as chosen:
        options: dict[str, Any] = {"max_examples": chosen.max_examples, "database": chosen.database}
        options |= {name: value for name, value in mark.kwargs.items() if name in OPTIONS} | {"laws": [law]}
        report = check_hook(_subject(mark), if_broken="return", **options)
    for violation in report.violations:
        if violation.law is not law and violation.law in _laws(mark):
            pytest.skip(f"the hook fails: see the test of {violation.law.name}, which fails and says how")
        raise pytest.fail.Exception(told(violation, item), pytrace=False) from None


def told(violation: LawViolation, item: pytest.Function) -> str:
    """Return what is wrong, and three ways to see it again: source, file and blob."""
    lines = [violation.explained(), "", "To see it again, run", "", *_indented(violation.snippet())]
    if path := _saved(violation, item):
        lines += ["", f"or functrain.testing.replay({str(path)!r})"]
    if violation.blob:
        lines += ["", f"or decorate a test of functrain.testing.scenes(hook) with {violation.blob.split(' as a')[0]}"]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.splitlines()]


def _saved(violation: LawViolation, item: pytest.Function) -> Path | None:
    """Write the violation into pytest's cache, if there is one and it can be written down."""
    cache: Any = getattr(item.config, "cache", None)
    if cache is None:
        return None
    name = re.sub(r"[^\w.-]+", "_", item.nodeid)[-120:].strip("_")
    try:
        path = violation.save(cache.mkdir("functrain") / f"{name}.json")
    except (ValueError, OSError):  # no data, or nowhere to write: the snippet is there all the same
        return None
    return path.relative_to(item.config.rootpath) if path.is_relative_to(item.config.rootpath) else path
