"""Laws by what they are called."""

from __future__ import annotations

from functrain.testing.law import Law
from functrain.testing.laws import THOROUGH


def laws_named(name: str) -> list[Law]:
    """Return the law of a name such as ``"L2 purity"``, or all that begin with a word such as ``"L2"`` or ``"clip:"``.

    Raises:
        ValueError: no such law; lists those there are.

    >>> laws_named("L2"), laws_named("L10")
    ([Law('L2 purity')], [Law('L10 monoid'), Law('L10 fold')])
    """
    found = [law for law in THOROUGH if law.name == name] or [law for law in THOROUGH if law.name.split()[0] == name]
    if not found:
        raise ValueError(f"no law named {name!r}; there are {', '.join(repr(law.name) for law in THOROUGH)}")
    return found
