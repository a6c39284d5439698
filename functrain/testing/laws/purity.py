"""L2: a hook writes nothing that it was given, and remembers nothing that is not in the state."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from functrain import Hook, Outcome, TrainState
from functrain._tree import leaves, paths, structure
from functrain.testing.breach import Breach, require_same, require_same_outcome
from functrain.testing.fingerprint import fingerprint
from functrain.testing.forms import cloned, in_form
from functrain.testing.generators import generators, restored
from functrain.testing.law import Law
from functrain.testing.laws.aliases import check_aliases, check_slots, check_two_calls
from functrain.testing.scene import Scene


def check_purity(scene: Scene) -> None:
    """Check input, hook object, random generators, storage, and that equal inputs give equal outputs."""
    state = cloned(in_form(scene.state, scene.form))
    copy = cloned(state)
    with restored():
        warm = scene.call(cloned(state))  # a hook may compute once what it can derive from its configuration
        _check_surroundings(scene, cloned(state))
        first = _check_input(scene, state, copy)
        check_aliases(state, first.state)
        check_two_calls(warm.state, first.state)
        require_same_outcome(first, warm, "the same input gave another output")
        require_same_outcome(first, scene.call(state), "the same input gave another output")
        require_same_outcome(first, scene.call(copy), "an equal input gave another output")
        for each in scene.members():
            check_slots(each, cloned(scene.state))


def _check_surroundings(scene: Scene, state: TrainState) -> None:
    """Check that a call leaves the hook object and all global random generators alone."""
    before, drawn = _fields(scene.hook), generators()
    scene.call(state)
    for name, now in generators().items():
        if now != drawn[name]:
            raise Breach(f"drew from the global generator {name}; noise comes from state.rng, see pure.Noise", name)
    after = _fields(scene.hook)
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            raise Breach("the hook keeps something on its own object", f"hook.{name}", before[name], after[name])


def _fields(hook: Hook) -> dict[str, Any]:
    held = {**vars(hook), **(hook.__pydantic_private__ or {})}
    return {name: fingerprint(value) for name, value in held.items()}


def _check_input(scene: Scene, state: TrainState, copy: TrainState) -> Outcome:
    """Call the hook, and check contents, versions and containers of what it was given."""
    versions, containers = _versions(state), _containers(state)
    outcome = scene.call(state)
    require_same(copy, state, "the input changed")
    for path, (before, after) in _pairs(state, versions):
        if before != after:
            raise Breach("the input was written to: its version counter moved", path, before[1], after[1])
    if _containers(state) != containers:
        raise Breach("a container of the input changed")
    return outcome


def _versions(state: TrainState) -> list[Any]:
    return [(id(leaf), leaf._version if isinstance(leaf, Tensor) else None) for leaf in leaves(state)]


def _pairs(state: TrainState, versions: list[Any]) -> Any:
    return zip(paths(state), zip(versions, _versions(state), strict=True), strict=True)


def _containers(state: TrainState) -> list[Any]:
    """Return who holds whom: the identity of every field, and the keys inside."""
    return [(name, id(value)) for name, value in state.__dict__.items()] + [structure(state)]


PURITY = Law("L2 purity", "writes nothing of its input; equal inputs give bitwise equal outputs", check_purity)
