"""The walks that a compiler traces do what optree does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from functrain import FrozenMap, TrainState, _tree, _walk


class Pair(NamedTuple):
    """A node of two."""

    first: Any
    second: Any


LEAVES = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.just("text") | st.just(1j)
KEYS = st.sampled_from(["a", "b", "c"])


def trees(*foreign: Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return a strategy for trees of the nodes that a walk knows, and of others."""
    return st.recursive(
        LEAVES | st.none(),
        lambda inner: st.one_of(
            st.dictionaries(KEYS, inner, max_size=3).map(FrozenMap),
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.builds(Pair, inner, inner),
            st.builds(lambda held: TrainState(batch=held, hooks=FrozenMap({"x": held})), inner),
            st.dictionaries(KEYS, inner, max_size=3),
            *(node(inner) for node in foreign),
        ),
        max_leaves=8,
    )


KNOWN = trees()
TREES = trees(lambda inner: st.dictionaries(KEYS, inner, max_size=1).map(OrderedDict))


def shown(leaf: Any) -> str:
    """Return something of another type than any leaf."""
    return f"<{leaf!r}>"


@given(TREES)
@example({"b": 1, "a": 2})  # a plain dict is walked in the order of its keys
@example(OrderedDict(x=FrozenMap({"y": 1})))  # known to optree only, what it holds to functrain only
def test_walks_agree_with_optree(tree: Any) -> None:
    """Leaves, map and rebuild give what optree gives, on trees of every kind of node."""
    assert list(map(shown, _walk.leaves(tree))) == list(map(shown, _tree.leaves(tree)))
    walked, mapped = _walk.mapped(shown, tree), _tree.map_leaves(shown, tree)
    assert (_tree.structure(walked), _tree.leaves(walked)) == (_tree.structure(mapped), _tree.leaves(mapped))
    assert _tree.leaves(_walk.mapped(lambda a, b: f"{shown(a)}{b}", tree, walked)) == [
        2 * a for a in _tree.leaves(walked)
    ]
    again = _walk.rebuilt(tree, _walk.leaves(walked))
    assert (_tree.structure(again), _tree.leaves(again)) == (_tree.structure(walked), _tree.leaves(walked))


@pytest.mark.parametrize(
    ("tree", "other"),
    [
        (FrozenMap({"a": 1}), FrozenMap({"a": 1, "b": 2})),
        (FrozenMap({"a": 1}), FrozenMap({"b": 1})),
        (FrozenMap({"a": 1}), {"a": 1}),
        ([1, 2], [1]),
        ((1,), 1),
        (Pair(1, 2), (1, 2)),
    ],
)
def test_other_structures_are_refused(tree: Any, other: Any) -> None:
    """Trees that do not fit are an error in a walk as they are in optree."""
    for walk in (_walk.mapped, _tree.map_leaves):
        with pytest.raises((ValueError, KeyError)) as caught:
            walk(lambda a, _b: a, tree, other)
        assert len(str(caught.value)) > 2


@given(KNOWN, KNOWN)
def test_likeness_agrees_with_optree(one: Any, other: Any) -> None:
    """Two trees are alike where optree finds the same structure, each with itself at least."""
    assert _walk.alike(one, one)
    assert _walk.alike(one, other) == _tree.alike(one, other)


def test_one_tensor_per_leaf_under_a_compiler() -> None:
    """Inside a compiled function the walks are taken, and give the same state."""
    state = TrainState(params={"main": {"w": torch.ones(2), "b": torch.zeros(1)}}, stepped={"main": torch.tensor(True)})
    double = torch.compile(lambda tree: _tree.map_leaves(lambda leaf: leaf * 2, tree), backend="eager", fullgraph=True)
    assert torch.equal(double(state.params)["main"]["w"], 2 * torch.ones(2))


def test_what_differs_is_said() -> None:
    """The error names both kinds of nodes, and how much the first one holds."""
    with pytest.raises(ValueError, match=r"^two trees differ in structure: list of 2 and tuple$"):
        _walk.mapped(lambda a, _b: a, [1, 2], (1, 2))
