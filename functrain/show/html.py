"""Descriptions as HTML without a script, for notebooks; the page's own colours hold in light and in dark."""

from __future__ import annotations

from html import escape

from functrain.show.node import Grid, Node, Panels

STYLE = (
    "<style>.functrain{font:13px/1.5 ui-monospace,monospace;color-scheme:light dark}"
    ".functrain details>*:not(summary){margin-left:1.4em}.functrain .note{opacity:.65}"
    ".functrain table{border-collapse:collapse}.functrain th,.functrain td{padding:2px 8px;text-align:left;"
    "border:1px solid color-mix(in srgb,currentColor 25%,transparent)}"
    ".functrain .panels{display:flex;flex-wrap:wrap;gap:1.4em}"
    ".functrain .warning{color:light-dark(#a3310b,#ffab70)}</style>"
)


def page(body: str) -> str:
    """Return a fragment in a box with its style.

    >>> page("<p>text</p>").endswith("<p>text</p></div>")
    True
    """
    return f'<div class="functrain">{STYLE}{body}</div>'


def tree_html(node: Node) -> str:
    """Return a tree whose branches open and close.

    >>> tree_html(Node("state.rng", "() int64"))
    '<div>state.rng <span class="note">() int64</span></div>'
    """
    line = f'{escape(node.label)} <span class="note">{escape(node.note)}</span>'
    if not node.children:
        return f"<div>{line}</div>"
    below = "".join(tree_html(child) for child in node.children)
    return f"<details{' open' if node.is_open else ''}><summary>{line}</summary>{below}</details>"


def grid_html(grid: Grid) -> str:
    """Return a grid as a table, and its warnings below.

    >>> grid_html(Grid(("stage",), (("SETUP",),), ("a < b",)))[-41:]
    '</table><p class="warning">! a &lt; b</p>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.heads)
    rows = "".join(f"<tr>{''.join(_cell(cell, grid.colours.get(cell)) for cell in row)}</tr>" for row in grid.rows)
    notes = "".join(f"<p>{escape(each)}</p>" for each in grid.notes)
    warnings = "".join(f'<p class="warning">! {escape(each)}</p>' for each in grid.warnings)
    table = "" if notes and not rows else f"<table><tr>{head}</tr>{rows}</table>"
    return f"{table}{notes}{warnings}"


def panels_html(panels: Panels) -> str:
    """Return grids beside each other, each under its title; they move below each other where there is no room.

    >>> panels_html(Panels((("recorded", Grid(("batch",), ())),)))
    '<div class="panels"><div><p>recorded</p><table><tr><th>batch</th></tr></table></div></div>'
    """
    parts = "".join(f"<div><p>{escape(title)}</p>{grid_html(grid)}</div>" for title, grid in panels.parts)
    return f'<div class="panels">{parts}</div>'


def _cell(text: str, colour: str | None) -> str:
    """Return a cell, white on a colour if it has one."""
    style = "" if colour is None else f' style="background:{colour};color:#fff"'
    return f"<td{style}>{escape(text)}</td>"
