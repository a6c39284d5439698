"""What came out of checking laws: a table, as text or as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

from functrain.testing.law import Law
from functrain.testing.violation import LawViolation

Status = Literal["kept", "BROKEN", "not checked", "does not apply"]
HEADINGS = ("law", "status", "examples", "statement")


@dataclass(frozen=True)
class Row:
    """What came out of one law.

    Attributes:
        law: the law.
        examples: on how many scenes it was checked.
        violation: the smallest scene that shows it broken, or None.
        applies: whether it says anything about the hook.

    >>> from functrain.testing import laws
    >>> Row(laws.PURITY, examples=20).status, Row(laws.PURITY, examples=0).status
    ('kept', 'not checked')
    """

    law: Law
    examples: int
    violation: LawViolation | None = None
    applies: bool = True

    @property
    def status(self) -> Status:
        """Whether the law is kept; not checked where the hook failed on every scene."""
        if not self.applies:
            return "does not apply"
        if self.violation is not None:
            return "BROKEN"
        return "kept" if self.examples else "not checked"

    def cells(self) -> tuple[str, str, str, str]:
        """Return the texts of the row."""
        return self.law.name, self.status, str(self.examples), self.law.statement


@dataclass(frozen=True, repr=False)
class LawReport:
    """The laws that were checked on one subject, in order; prints as a table, and in a notebook as HTML.

    Attributes:
        subject: what was checked, as source text.
        rows: one a law.
        seed: with which the same scenes are drawn again.

    >>> from functrain import EMA
    >>> from functrain.testing import check_hook, laws
    >>> report = check_hook(EMA(), laws=[laws.CONTRACT, laws.MONOID], max_examples=5)
    >>> print(report)
    EMA()
    law          status  examples  statement
    L1 contract  kept    5         returns (TrainState, bool or 0-d bool tensor, scalar tensor or None)
    does not apply: L10 monoid
    >>> report.broken
    ()
    """

    subject: str
    rows: tuple[Row, ...]
    seed: int | None = None

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
        """Return the row of a law.

        Raises:
            KeyError: no such law; lists those there are.
        """
        for row in self.rows:
            if row.law.name == name:
                return row
        raise KeyError(f"no law named {name!r}; this report has {[row.law.name for row in self.rows]}")

    @property
    def violations(self) -> tuple[LawViolation, ...]:
        """The violations, in the order of the laws."""
        return tuple(row.violation for row in self.rows if row.violation is not None)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the laws that are broken."""
        return tuple(each.law.name for each in self.violations)

    def raise_if_broken(self) -> None:
        """Raise the first violation, with this report in it.

        Raises:
            LawViolation: some law is broken.
        """
        for violation in self.violations:
            violation.report = self
            raise violation

    def __str__(self) -> str:
        """Print the table, and below it a line for each violation."""
        table = [HEADINGS, *(row.cells() for row in self.rows if row.applies)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
        broken = [each.headline() for each in self.violations]
        return "\n".join([self.subject, *(line.rstrip() for line in lines), *self._others(), *broken])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table as HTML, without a script."""
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in HEADINGS)
        body = "".join(_html_row(row) for row in self.rows if row.applies)
        broken = "".join(f"<pre>{escape(str(each))}</pre>" for each in self.violations)
        others = "".join(f"<p>{escape(line)}</p>" for line in self._others())
        return f"<table><caption>{escape(self.subject)}</caption><tr>{head}</tr>{body}</table>{others}{broken}"

    def _others(self) -> list[str]:
        """Return a line that names the laws that say nothing about the subject, if there are any."""
        names = [row.law.name for row in self.rows if not row.applies]
        return [f"does not apply: {', '.join(names)}"] if names else []


def _html_row(row: Row) -> str:
    style = "color:#b00020;font-weight:bold" if row.violation is not None else ""
    cells = "".join(f"<td style='text-align:left;{style}'>{escape(cell)}</td>" for cell in row.cells())
    return f"<tr>{cells}</tr>"
