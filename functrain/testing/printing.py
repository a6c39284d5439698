"""A report on the screen: as a table of rich where there is rich, else as text."""

from __future__ import annotations

from importlib.util import find_spec

from functrain.testing.report import HEADINGS, LawReport
from functrain.testing.violation import LawViolation

STYLES = {"kept": "green", "BROKEN": "bold red", "not checked": "yellow"}


def print_report(report: LawReport) -> None:
    """Print a report, and the first violation in full, with the program that shows it."""
    print_table(report)
    for violation in report.violations[:1]:
        print(told(violation))


def print_table(report: LawReport) -> None:
    """Print the table."""
    if find_spec("rich") is None:
        print(report, end="\n\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(report.subject), box=SIMPLE_HEAD, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading != "statement")
    for row in report:
        name, status, examples, statement = row.cells()
        table.add_row(name, f"[{STYLES[status]}]{status}[/]", examples, escape(statement))
    Console().print(table)


def told(violation: LawViolation) -> str:
    """Return what is wrong, and how to see it again."""
    snippet = "\n".join(f"    {line}".rstrip() for line in violation.snippet().splitlines())
    return f"{violation.explained()}\n\nTo see it again, run\n\n{snippet}"
