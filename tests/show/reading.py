"""What the tests of views share: a parser that refuses broken HTML, and a tensor that refuses to be read."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import torch

READS = {"item", "tolist", "_local_scalar_dense", "equal", "__bool__", "__float__", "__int__", "numpy", "__repr__"}


class Nested(HTMLParser):
    """Checks that every element that opens closes, in order, and collects what is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which it must be."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.words += data


def parsed(html: str) -> Nested:
    """Return the parsed fragment; it must be well formed and hold no script."""
    found = Nested()
    found.feed(html)
    found.close()
    assert not found.open
    assert "script" not in found.tags
    return found


class Unreadable(torch.Tensor):
    """A tensor that raises when its value is asked for, as a device would make the program wait."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse what reads."""
        if func.__name__ in READS:
            msg = f"{func.__name__} was asked for"
            raise RuntimeError(msg)
        return super().__torch_function__(func, types, args, kwargs or {})
