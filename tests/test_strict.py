"""Strict mode: hooks that write into their input, change the structure, or write what is not theirs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import functrain
from functrain import FrozenMap, Hook, PurityError, Stage, StructureError, TrainState, fold
from functrain._owners import Owners
from functrain._state import FIELDS
from functrain._strict import same, strict_pipeline
from functrain._tree import paths
from functrain._window import Window
from tests.scripted import STEP

Change = Callable[[TrainState], object]
WEIGHT = 'state.params["main"]["0.weight"]'


def sparse(places: list[int], values: list[float]) -> torch.Tensor:
    """Return a sparse vector of two."""
    return torch.sparse_coo_tensor([places], values, (2,), check_invariants=True)


def scene() -> TrainState:
    """Return a state in which everything can be broken."""
    return TrainState(
        params={"main": {"0.weight": torch.ones(2), "scale": torch.ones(())}},
        buffers={"main": {"1.mean": torch.zeros(2)}},
        grads={"main": {"0.weight": torch.ones(2), "scale": torch.ones(())}},
        stepped={"main": True},
        metrics={"theirs": torch.tensor(1.0)},
        hooks={"other": {"count": 1}},
        scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {"main": False}},
        hyper={"main": {"0": {"lr": 0.1}}},
        opt={"main": {"momentum": torch.zeros(2)}},
        batch={"x": [torch.ones(2), torch.zeros(2)]},
        validation={"loss": 1.0},
        window=Window(weight=1.5),
    )


def broken(change: Change, **claims: Any) -> Hook:
    """Return a hook that does something to the state; what gives no state only did it."""

    def breaking(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        changed = change(state)
        after = changed if isinstance(changed, TrainState) else state
        return after, True, after.loss

    slot = FrozenMap({"n": 0, "t": torch.zeros(2), "a": FrozenMap({"x": 1, "y": 2})})
    return functrain.hook(breaking, name="bad", init=lambda _: slot, **{"stages": (Stage.BEFORE_BATCH, STEP), **claims})


def strictly(hook: Hook, stage: Stage = STEP) -> TrainState:
    """Run a hook under watch."""
    pipeline = strict_pipeline(fold(hook))
    return pipeline(pipeline.prepared(scene()), stage, False).state


def with_item(field: str, *keys: Any, value: Any) -> Change:
    """Return a change that puts a value at a place of a field."""

    def put(node: Any, rest: tuple[Any, ...]) -> Any:
        return value if not rest else node | {rest[0]: put(node[rest[0]] if rest[0] in node else FrozenMap(), rest[1:])}

    return lambda state: state.replace(**{field: put(getattr(state, field), keys)})


IN_PLACE: dict[str, tuple[Change, str]] = {
    "in place": (lambda s: s.params["main"]["0.weight"].add_(1.0), WEIGHT),
    "through data": (lambda s: s.params["main"]["0.weight"].data.add_(1.0), WEIGHT),
    "through numpy": (lambda s: s.params["main"]["0.weight"].numpy().fill(3.0), WEIGHT),
    "through a view": (lambda s: s.params["main"]["0.weight"].view(1, 2)[0].zero_(), WEIGHT),
    "by resizing": (lambda s: s.params["main"]["0.weight"].resize_(1), WEIGHT),
    "by swapping the data": (lambda s: setattr(s.params["main"]["0.weight"], "data", torch.zeros(3)), WEIGHT),
    "gradients": (lambda s: s.grads["main"]["scale"].mul_(0.5), 'state.grads["main"]["scale"]'),
    "buffers": (lambda s: s.buffers["main"]["1.mean"].fill_(1.0), 'state.buffers["main"]["1.mean"]'),
    "its own slot": (lambda s: s.hooks["bad"]["t"].fill_(1.0), 'state.hooks["bad"]["t"]'),
    "a metric": (lambda s: s.metrics["theirs"].zero_(), 'state.metrics["theirs"]'),
    "the batch": (lambda s: s.batch["x"][0].zero_(), 'state.batch["x"][0]'),
    "a list grown": (lambda s: s.batch["x"].append(1), 'state.batch["x"][2]'),
    "a list shortened": (lambda s: s.batch["x"].pop(), 'state.batch["x"][1]'),
    "past the frozen map": (lambda s: s.stepped._data.update(main=False), 'state.stepped["main"]'),
    "past the record": (lambda s: s.window.__dict__.update(entered=9), "state.window.entered"),
    "past the state": (lambda s: s.__dict__.update(raw_loss=torch.ones(())), "state.raw_loss"),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_writing_into_the_input_is_refused(case: str) -> None:
    """However the write is done, the error names hook, stage and path, and what to write instead."""
    change, path = IN_PLACE[case]
    with pytest.raises(PurityError) as caught:
        strictly(broken(change, writes=FIELDS))
    assert str(caught.value) == (
        f"hook 'bad' (FunctionHook) at DO_OPTIMIZER_STEP wrote into its input: {path}; return a new tensor instead"
    )


STRUCTURE: dict[str, tuple[Change, str, str]] = {
    "shape": (
        with_item("params", "main", "0.weight", value=torch.ones(3)),
        WEIGHT,
        "changed a tensor (2,) torch.float32 on cpu into a tensor (3,) torch.float32 on cpu",
    ),
    "dtype": (
        with_item("params", "main", "0.weight", value=torch.ones(2).double()),
        WEIGHT,
        "changed a tensor (2,) torch.float32 on cpu into a tensor (2,) torch.float64 on cpu",
    ),
    "dtype of a scalar": (
        with_item("grads", "main", "scale", value=torch.ones((), dtype=torch.float64)),
        'state.grads["main"]["scale"]',
        "changed a 0-d tensor torch.float32 into a 0-d tensor torch.float64",
    ),
    "device": (
        with_item("params", "main", "0.weight", value=torch.ones(2, device="meta")),
        WEIGHT,
        "changed a tensor (2,) torch.float32 on cpu into a tensor (2,) torch.float32 on meta",
    ),
    "a missing gradient": (
        lambda s: s.replace(grads={"main": {"0.weight": s.grads["main"]["0.weight"]}}),
        'state.grads["main"]["scale"]',
        "into nothing",
    ),
    "a new slot": (with_item("hooks", "new", "n", value=1), 'state.hooks["new"]["n"]', "changed nothing into"),
    "a new key in its own slot": (with_item("hooks", "bad", "m", value=1), 'state.hooks["bad"]["m"]', "nothing"),
    "an undeclared metric": (
        with_item("metrics", "mine", value=torch.ones(())),
        'state.metrics["mine"]',
        "changed nothing into",
    ),
    "a flag for a number": (with_item("hooks", "bad", "n", value=True), 'state.hooks["bad"]["n"]', "into a flag"),
    "a real for a whole number": (
        with_item("hooks", "bad", "n", value=1.0),
        'state.hooks["bad"]["n"]',
        "changed a number that is whole into a number that is real",
    ),
    "text for a number": (with_item("hooks", "bad", "n", value="1"), 'state.hooks["bad"]["n"]', "into str"),
    "an empty mapping more": (
        with_item("hooks", "bad", "e", value=FrozenMap()),
        "state.hooks",
        "order or nesting",
    ),
    "another order": (
        with_item("hooks", "bad", "a", value=FrozenMap({"y": 2, "x": 1})),
        "state.hooks",
        "order or nesting",
    ),
}


@pytest.mark.parametrize("case", STRUCTURE)
def test_another_structure_is_refused(case: str) -> None:
    """Shapes, dtypes, devices, keys, kinds of numbers and order of mappings stay, also where writing is declared."""
    change, path, what = STRUCTURE[case]
    with pytest.raises(StructureError) as caught:
        strictly(broken(change, writes=FIELDS))
    assert str(caught.value).startswith("hook 'bad' (FunctionHook) at DO_OPTIMIZER_STEP changed ")
    assert f": {path}; build it in init and keep its kind" in str(caught.value)
    assert what in str(caught.value)


STATIC: dict[str, Any] = {
    "donated": True,
    "autocast": torch.bfloat16,
    "rank": 3,
    "world": 2,
    "owners": Owners({"x": []}),
}


@pytest.mark.parametrize("field", STATIC)
def test_a_static_field_is_refused(field: str) -> None:
    """No stage changes what both interpreters and compiled code take as fixed."""
    with pytest.raises(StructureError, match=rf"'bad' .* changed a static field: state\.{field}; leave it"):
        strictly(broken(lambda s: s.replace(**{field: STATIC[field]})))


OF_OTHERS: dict[str, tuple[Change, str]] = {
    "params": (with_item("params", "main", "0.weight", value=torch.zeros(2)), WEIGHT),
    "buffers": (with_item("buffers", "main", "1.mean", value=torch.ones(2)), 'state.buffers["main"]["1.mean"]'),
    "grads": (with_item("grads", "main", "scale", value=torch.zeros(())), 'state.grads["main"]["scale"]'),
    "raw_loss": (lambda s: s.replace(raw_loss=torch.ones(())), "state.raw_loss"),
    "window": (lambda s: s.replace(window=s.window.replace(entered=1)), "state.window.entered"),
    "clock": (lambda s: s.replace(clock=s.clock.replace(step=1)), "state.clock.step"),
    "hooks": (with_item("hooks", "other", "count", value=2), 'state.hooks["other"]["count"]'),
    "vetoes": (with_item("vetoes", Stage.BEFORE_BATCH, "bad", value=True), 'state.vetoes[Stage.BEFORE_BATCH]["bad"]'),
    "stepped": (with_item("stepped", "main", value=False), 'state.stepped["main"]'),
    "metrics": (with_item("metrics", "theirs", value=torch.zeros(())), 'state.metrics["theirs"]'),
    "scaler": (with_item("scaler", "scale", value=2.0), 'state.scaler["scale"]'),
    "hyper": (with_item("hyper", "main", "0", "lr", value=0.2), 'state.hyper["main"]["0"]["lr"]'),
    "opt": (with_item("opt", "main", "momentum", value=torch.ones(2)), 'state.opt["main"]["momentum"]'),
    "rng": (lambda s: s.replace(rng=s.rng + 1), "state.rng"),
    "batch": (with_item("batch", "x", value=[torch.ones(2), torch.ones(2)]), 'state.batch["x"][1]'),
    "validation": (with_item("validation", "loss", value=2.0), 'state.validation["loss"]'),
}


def test_every_field_of_the_state_is_tried() -> None:
    """A field that is added to the state later must be added here."""
    assert {*OF_OTHERS, "loss"} == set(FIELDS)


@pytest.mark.parametrize("field", OF_OTHERS)
def test_writing_what_is_not_declared_is_refused(field: str) -> None:
    """A field outside ``writes``, another hook's slot and another hook's metric are named by path."""
    change, path = OF_OTHERS[field]
    with pytest.raises(PurityError) as caught:
        strictly(broken(change))
    assert str(caught.value) == (
        f"hook 'bad' (FunctionHook) at DO_OPTIMIZER_STEP changed what it does not own: {path}; "
        f'declare writes={{"{field}"}} or leave it'
    )


@pytest.mark.parametrize("field", OF_OTHERS)
def test_writing_what_is_declared_is_allowed(field: str) -> None:
    """The same change passes once ``writes`` names the field, and it arrives."""
    change, path = OF_OTHERS[field]
    before, after = paths(scene()), paths(strictly(broken(change, writes=field)))
    assert not torch.equal(torch.as_tensor(before.get(path, False)), torch.as_tensor(after[path]))


def test_slot_metrics_and_loss_need_no_declaration() -> None:
    """A hook may always write its own slot, the metrics it publishes, and the loss."""

    def change(state: TrainState) -> TrainState:
        state = state.with_slot("bad", state.hooks["bad"] | {"n": torch.tensor(5)})
        return state.with_metrics({"mine": torch.tensor(2.0)}).replace(loss=torch.tensor(7.0))

    found = strictly(broken(change, publishes="mine", stages=Stage.DO_BACKWARD), Stage.DO_BACKWARD)
    assert (int(found.hooks["bad"]["n"]), found.metrics["mine"].item(), found.loss.item()) == (5, 2.0, 7.0)


def test_nan_stays_nan_and_equal_values_are_no_change() -> None:
    """A new tensor with the old content, NaN included, is no write."""
    same = broken(lambda s: s.replace(raw_loss=s.raw_loss.clone(), rng=s.rng.clone()))
    assert strictly(same).raw_loss.isnan()


@given(st.floats() | st.integers() | st.text() | st.booleans())
@example(float("nan"))
def test_a_number_computed_anew_is_the_same(value: float | str) -> None:
    """Leaves are compared by value, NaN included; another type is another leaf."""
    assert same(value, pickle.loads(pickle.dumps(value)))
    assert not same(value, [value])
    assert not same(1, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor(1.0), 1.0),
        (1.0, torch.tensor(1.0)),
        (sparse([0], [1.0]), sparse([1], [1.0])),
        (sparse([0], [1.0]), sparse([0], [2.0])),
        (sparse([0], [1.0]), sparse([0], [1.0]).to_dense()),
    ],
    ids=["a number", "a tensor", "other places", "other values", "dense"],
)
def test_leaves_that_differ(one: Any, other: Any) -> None:
    """A tensor is no number, and a sparse tensor is both its places and its values."""
    assert not same(one, other)
    assert same(one, one)
    assert same(other, other)


@pytest.mark.parametrize("returned", [None, 5, [1, 2, 3]])
def test_what_is_no_outcome_is_said_by_the_fold(returned: Any) -> None:
    """Strict mode looks for a state in a tuple only, and leaves anything else to the fold's own sentence."""
    careless = functrain.hook(stages=STEP, name="careless")(lambda _state, _stage, _skip: returned)
    pipeline = strict_pipeline(fold(careless))
    state = scene()
    with pytest.raises(TypeError, match=r"must return \(state, proceed, loss\); got"):
        pipeline(state.replace(hooks=state.hooks | pipeline.init(state)), STEP, False)
