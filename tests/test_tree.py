"""The immutable tree: FrozenMap, records, both registries, paths as source text."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import optree
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as torch_pytree

from functrain import FrozenMap, Stage, TrainState
from functrain._clock import Clock
from functrain._frozen_map import thaw
from functrain._owners import Owners
from functrain._tree import flattened, leaves, map_leaves, paths, structure
from functrain._window import Window

TEXT = st.text(st.sampled_from("ab.0'\"\\\n{é😀"), max_size=4) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=4
)
KEYS = TEXT | st.integers(-3, 3) | st.sampled_from(Stage)
TREES = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3).map(FrozenMap) | st.lists(inner, max_size=2).map(tuple),
    max_leaves=8,
)
MAPS = st.dictionaries(KEYS, TREES, max_size=4).map(FrozenMap)


def filled_state() -> TrainState:
    """Return a state in which every field holds something."""
    return TrainState(
        params={"main": {"0.weight": torch.ones(2), "0.bias": torch.zeros(1)}},
        buffers={"main": {"1.running_mean": torch.ones(1)}},
        grads={"main": {"0.bias": torch.ones(1)}},
        clock=Clock(step=3, optimizer_steps=FrozenMap({"main": 3})),
        hooks={"ema": {"decay": 0.5, "shadow": {"0.weight": torch.ones(2)}}},
        vetoes={Stage.DO_BACKWARD: {"finite": False}},
        stepped={"main": True},
        metrics={"grad_norm": torch.tensor(1.0)},
        scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {"main": False}},
        batch={"x": [torch.ones(1), (2,)]},
        owners=Owners({"main": [("main", "0.weight"), ("main", "0.bias")]}),
    )


def torch_paths(tree: Any) -> list[tuple[Any, Any]]:
    """Return keys along each path and the leaf, as torch's registry sees them."""
    return [(tuple(map(str, keys)), leaf) for keys, leaf in torch_pytree.tree_flatten_with_path(tree)[0]]


@given(TREES)
def test_both_registries_agree_on_leaves(tree: Any) -> None:
    """Optree and torch's pytree find the same leaves in the same order."""
    assert leaves(tree) == torch_pytree.tree_leaves(tree)


@given(TREES, TREES)
def test_both_registries_agree_on_structure(first: Any, second: Any) -> None:
    """Two trees have one structure for optree iff they have one for torch's pytree."""
    same = torch_pytree.tree_structure(first) == torch_pytree.tree_structure(second)
    assert (structure(first) == structure(second)) is same


@given(TREES)
def test_both_registries_give_a_tree_back(tree: Any) -> None:
    """Flattening and unflattening is the identity in both registries, types and order included."""
    found, spec = optree.tree_flatten(tree, namespace="functrain")
    assert repr(optree.tree_unflatten(spec, found)) == repr(tree)
    assert repr(torch_pytree.tree_unflatten(*torch_pytree.tree_flatten(tree))) == repr(tree)


@given(TREES)
def test_a_path_evaluates_to_its_leaf(tree: Any) -> None:
    """A path is source text: evaluated, it gives the leaf, whatever the keys contain."""
    for path, leaf in paths(tree, "tree").items():
        assert eval(path, {"tree": tree, "Stage": Stage}) is leaf  # noqa: S307 - what a path promises


def test_the_paths_of_a_state_evaluate_to_its_leaves() -> None:
    """Every leaf of a TrainState is found under its own path."""
    state = filled_state()
    found = paths(state)
    assert list(map(id, found.values())) == list(map(id, leaves(state)))
    assert all(eval(path, {"state": state, "Stage": Stage}) is leaf for path, leaf in found.items())  # noqa: S307
    assert 'state.params["main"]["0.weight"]' in found
    assert "state.clock.step" in found
    assert 'state.vetoes[Stage.DO_BACKWARD]["finite"]' in found


def test_torch_and_optree_see_the_same_leaves_of_a_state() -> None:
    """The state flattens to identical leaves in both registries, and both rebuild it."""
    state = filled_state()
    found, spec = torch_pytree.tree_flatten(state)
    assert list(map(id, found)) == list(map(id, leaves(state)))
    by_torch = torch_pytree.tree_unflatten(found, spec)
    by_optree = optree.tree_unflatten(structure(state), leaves(state))
    for again in (by_torch, by_optree):
        assert type(again) is TrainState
        assert list(map(id, leaves(again))) == list(map(id, found))
        assert (again.owners, again.donated, again.world) == (state.owners, False, 1)


def test_torch_names_the_leaves_of_a_state() -> None:
    """Torch's own key paths lead through fields and mappings by name."""
    keys = [keys for keys, _ in torch_paths(filled_state())]
    assert (".params", "['main']", "['0.weight']") in keys
    assert (".window", ".boundary") in keys


@pytest.mark.parametrize("field", ["donated", "autocast", "rank", "world", "owners"])
def test_a_static_field_is_no_leaf_but_part_of_the_structure(field: str) -> None:
    """A changed static field leaves the leaves and changes the structure, for both registries."""
    other = {"donated": True, "autocast": torch.bfloat16, "rank": 1, "world": 2, "owners": Owners({"a": []})}[field]
    state = filled_state()
    changed = state.replace(**{field: other})
    assert list(map(id, leaves(changed))) == list(map(id, leaves(state)))
    assert structure(changed) != structure(state)
    assert torch_pytree.tree_structure(changed) != torch_pytree.tree_structure(state)


@pytest.mark.parametrize("node", [FrozenMap({"a": 1}), Window(), Clock()], ids=lambda node: type(node).__name__)
def test_every_node_type_maps_leaf_by_leaf(node: Any) -> None:
    """Both registries map every node type to its own type."""
    for mapped in (map_leaves(lambda _: 7, node), torch_pytree.tree_map(lambda _: 7, node)):
        assert type(mapped) is type(node)
        assert set(leaves(mapped)) == {7}


def test_a_frozen_map_is_a_mapping_and_no_dict() -> None:
    """FrozenMap is a Mapping, so that dict.__setitem__ cannot be called on it."""
    tree = FrozenMap({"a": 1})
    assert isinstance(tree, Mapping)
    assert not isinstance(tree, dict)
    with pytest.raises(TypeError, match="descriptor '__setitem__' requires a 'dict'"):
        dict.__setitem__(tree, "a", 2)  # pyright: ignore[reportArgumentType]


def test_a_frozen_map_refuses_every_way_of_writing() -> None:
    """Neither items nor attributes can be set or deleted."""
    tree: Any = FrozenMap({"a": 1})
    with pytest.raises(TypeError, match="does not support item assignment"):
        tree["a"] = 2
    with pytest.raises(TypeError, match="does not support item deletion"):
        del tree["a"]
    with pytest.raises(AttributeError, match=r"immutable; cannot set 'b'; write mapping \| \{key: value\}"):
        tree.b = 2
    with pytest.raises(AttributeError):
        del tree._data
    assert dict(tree) == {"a": 1}


def test_a_frozen_map_keeps_no_hold_on_what_it_was_made_of() -> None:
    """Later changes of the dicts that were given, nested ones included, do not show."""
    inner = {"b": 1}
    given_items = {"a": inner}
    tree = FrozenMap(given_items)
    inner["b"], given_items["c"] = 2, {}
    assert thaw(tree) == {"a": {"b": 1}}


@given(MAPS, MAPS)
def test_or_gives_a_new_mapping_like_that_of_dicts(left: FrozenMap[Any], right: FrozenMap[Any]) -> None:
    """``|`` overrides and extends as it does for dicts, order included, and leaves both sides alone."""
    before = (repr(left), repr(right))
    assert list((left | right).items()) == list((dict(left) | dict(right)).items())
    assert (repr(left), repr(right)) == before


@given(MAPS)
def test_copies_are_equal(tree: FrozenMap[Any]) -> None:
    """Pickle, copy and deepcopy give an equal FrozenMap of the same order."""
    for again in (pickle.loads(pickle.dumps(tree)), copy.copy(tree), copy.deepcopy(tree)):
        assert type(again) is FrozenMap
        assert again == tree
        assert repr(again) == repr(tree)


def test_deepcopy_copies_tensors_and_what_was_derived_stays_behind() -> None:
    """A deep copy shares no storage, and derives anew what the original had derived."""
    tree = FrozenMap({"a": torch.ones(1)})
    tree.derived("sum", lambda: 1)
    again = copy.deepcopy(tree)
    again["a"].zero_()
    assert tree["a"].item() == 1.0
    assert again.derived("sum", lambda: 2) == 2


def test_what_is_derived_is_built_once() -> None:
    """The second question is answered from memory."""
    tree = FrozenMap({"a": 1})
    assert [tree.derived("k", lambda found=found: found) for found in (1, 2)] == [1, 1]


def test_a_missing_key_lists_the_keys_there_are() -> None:
    """KeyError names the key and the sorted ones there are."""
    with pytest.raises(KeyError, match=r"'c'; there are \['a', 'b'\]"):
        FrozenMap({"b": 1, "a": 2})["c"]
    assert FrozenMap({"b": 1}).get("c", 5) == 5
    assert "c" not in FrozenMap({"b": 1})


def test_thaw_gives_fresh_plain_dicts() -> None:
    """User code may write into what thaw returns."""
    tree = FrozenMap({"a": {"b": 1}})
    plain = thaw(tree)
    plain["a"]["b"] = 2
    assert type(plain["a"]) is dict
    assert tree["a"]["b"] == 1


def test_equal_maps_hold_equal_tensors() -> None:
    """Maps compare as mappings do, tensors by dtype, shape and every element; NaN is never equal to another."""
    one, nan = FrozenMap({"a": torch.ones(2), "b": {"c": 1}}), FrozenMap({"a": torch.tensor([1.0, float("nan")])})
    assert one == FrozenMap({"b": {"c": 1}, "a": torch.ones(2)})
    assert one == {"a": torch.ones(2), "b": {"c": 1}}
    assert one != one | {"a": torch.tensor([1.0, 2.0])}
    assert one != one | {"a": torch.ones(2, dtype=torch.float64)}
    assert one != one | {"a": torch.ones(1, 2)}
    assert one != one | {"a": 1.0}
    assert one != one | {"d": 1}
    assert FrozenMap({"n": 1}) == FrozenMap({"n": torch.tensor(1)})
    assert one != 3
    assert nan == nan  # noqa: PLR0124 - the same object
    assert nan != FrozenMap({"a": torch.tensor([1.0, float("nan")])})


@given(MAPS)
def test_leaves_and_structure_at_once(tree: FrozenMap[Any]) -> None:
    """What is flattened is what leaves and structure are one by one, for a state as well."""
    for each in (tree, filled_state()):
        found, spec = flattened(each)
        assert spec == structure(each)
        assert all(one is other for one, other in zip(found, leaves(each), strict=True))


def test_paths_are_written_as_people_write() -> None:
    """Letters outside of ASCII stay as they are."""
    assert list(paths(FrozenMap({"größe": {"é": 1}}))) == ['state["größe"]["é"]']
