"""Drawn pipelines of library hooks and strange ones."""

from __future__ import annotations

from hypothesis import strategies as st

from functrain import Pipeline, fold
from functrain.hooks import LIBRARY
from functrain.testing.checking import check_options, strategy
from functrain.testing.drawn_hooks import library_hooks
from functrain.testing.synthetic import synthetic_hooks


@strategy(check_options)
def pipelines(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 5, max_synthetic: int = 2) -> Pipeline:
    """Draw a pipeline of library hooks of different classes, with synthetic ones among them.

    Args:
        draw: given by Hypothesis.
        min_size: least number of library hooks.
        max_size: most library hooks.
        max_synthetic: most synthetic hooks.

    Raises:
        InvalidArgument: a size that is no size, or a minimum above the maximum.

    >>> pipelines(max_size=2)
    pipelines(max_size=2)
    """
    kinds = draw(st.lists(st.sampled_from(LIBRARY), min_size=min_size, max_size=max_size, unique=True))
    strange = [draw(synthetic_hooks(f"synthetic{place}")) for place in range(draw(st.integers(0, max_synthetic)))]
    members = [draw(library_hooks(kind, wrapped=False)) for kind in kinds]
    return fold(*draw(st.permutations([*members, *strange])))
