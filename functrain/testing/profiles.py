"""Profiles of Hypothesis, and which one the laws are checked with; imports Hypothesis and nothing else."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.errors import InvalidArgument

PROFILES: dict[str, dict[str, Any]] = {
    "dev": {"max_examples": 50, "deadline": None},
    "ci": {"max_examples": 100, "deadline": None, "derandomize": True, "print_blob": True},
    "thorough": {"max_examples": 1000, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]},
}
"""Few examples; the same ones each time; many, and Inductor too."""


def register_profiles() -> None:
    """Register the profiles that nobody has registered, Hypothesis itself included.

    >>> register_profiles()
    >>> settings.get_profile("thorough").max_examples
    1000
    """
    for name, options in PROFILES.items():
        if not is_registered(name):
            settings.register_profile(name, **options)


def is_registered(name: str) -> bool:
    """Tell whether there is a profile of this name."""
    try:
        settings.get_profile(name)
    except InvalidArgument:
        return False
    return True


def chosen_profile(asked: str | None = None) -> str:
    """Return the name of the profile that laws are checked with.

    The one that is asked for; else that of HYPOTHESIS_PROFILE; else the one that was loaded, by a ``conftest.py`` or by
    Hypothesis itself; else ``ci`` where CI is set; else ``dev``.

    Raises:
        ValueError: a name that nobody has registered.

    >>> chosen_profile("thorough")
    'thorough'
    """
    register_profiles()
    loaded = settings.get_current_profile_name()
    by_default = loaded if loaded != "default" else ("ci" if os.environ.get("CI") else "dev")
    name = asked or os.environ.get("HYPOTHESIS_PROFILE") or by_default
    if not is_registered(name):
        raise ValueError(f"Hypothesis knows no profile {name!r}; functrain brings {', '.join(PROFILES)}")
    return name


@contextmanager
def profile(name: str) -> Generator[settings]:
    """Check laws in a profile; the one that was loaded before is loaded again.

    >>> with profile(chosen_profile("thorough")) as loaded:
    ...     loaded.max_examples
    1000
    """
    before = settings.get_current_profile_name()
    settings.load_profile(name)
    try:
        yield settings()
    finally:
        settings.load_profile(before)
