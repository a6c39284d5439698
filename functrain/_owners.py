"""Which optimizer holds which parameter: fixed when the state is made, equal for every state of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Owners:
    """A static table from optimizer keys to the ``(model_key, name)`` of the parameters they hold.

    >>> owners = Owners({"main": [("main", "weight"), ("main", "bias")]})
    >>> owners.of_model("main"), owners.of_parameter("main", "bias")
    (('main',), 'main')
    """

    __slots__ = ("_by_model", "_by_parameter", "_hash", "table")

    def __init__(self, table: Mapping[str, Iterable[tuple[str, str]]]) -> None:
        """Freeze the table and index it by parameter."""
        self.table: dict[str, tuple[tuple[str, str], ...]] = {key: tuple(held) for key, held in table.items()}
        self._by_parameter = {place: key for key, held in self.table.items() for place in held}
        self._by_model = {
            model: tuple(key for key, held in self.table.items() if any(own == model for own, _ in held))
            for model in dict.fromkeys(model for held in self.table.values() for model, _ in held)
        }
        self._hash = hash(tuple(self.table.items()))

    def __eq__(self, other: object) -> bool:
        """Compare tables; the same object is equal without looking."""
        return self is other or (isinstance(other, Owners) and self.table == other.table)

    def __hash__(self) -> int:
        """Hash what was computed once."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content."""
        return Owners, (self.table,)

    def __repr__(self) -> str:
        """Show how many parameters each optimizer holds."""
        return f"Owners({ {key: len(held) for key, held in self.table.items()} })"

    def of_parameter(self, model_key: str, name: str) -> str | None:
        """Return the optimizer that holds a parameter, or None."""
        return self._by_parameter.get((model_key, name))

    def of_model(self, model_key: str) -> tuple[str, ...]:
        """Return the optimizers that hold a parameter of this model, in the order of the optimizers."""
        return self._by_model.get(model_key, ())
