"""Hooks as data: configuration, functions as hooks, equality, printing, pickling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from functrain import (
    EMA,
    UPDATE_STAGES,
    Accumulate,
    ClipNorm,
    FrozenMap,
    Hook,
    Outcome,
    Pipeline,
    Stage,
    TrainState,
    every,
    fold,
    hook,
    named,
    on,
    prioritized,
    when,
)


@hook(priority=7, stages=Stage.DO_BACKWARD, init=lambda _: FrozenMap({"n": 1}))
def decorated(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Double the loss."""
    return state, True, state.loss * 2


def bare(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Change nothing."""
    return state, True, state.loss


def scaled(factor: float, state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Multiply the loss, by a factor that a partial gives."""
    return state, True, state.loss * factor


class Holder:
    """A class whose method is a hook."""

    @hook
    def inside(state: TrainState, _stage: Stage, _skip: Any) -> Any:  # noqa: N805 - a hook is no method
        """Change nothing."""
        return state, True, state.loss


class Counting(Hook):
    """A hook with a number of its own."""

    step: int = 1
    name: str = "counting"


def always(_state: TrainState) -> bool:
    """Hold everywhere; a predicate that can be pickled."""
    return True


def test_the_base_hook_is_the_identity_everywhere() -> None:
    """State and loss pass through, nothing is vetoed, nothing is kept."""
    state = TrainState(loss=torch.tensor(2.0))
    for stage in Stage:
        assert Hook()(state, stage, True) == Outcome(state, True, state.loss)
    assert len(Hook().init(state)) == 0


def test_the_defaults_are_those_of_the_design() -> None:
    """Priority 50, the four update stages, no writes, the class name in lower case."""
    made = Counting()
    assert (made.priority, made.stages, made.writes, made.publishes) == (50, UPDATE_STAGES, frozenset(), frozenset())
    assert (made.exclusive, made.rank_local) == (None, False)
    assert (Hook().name, EMA().name, EMA(model_key="teacher").name) == ("hook", "ema", "ema_teacher")


def test_a_hook_is_called_only_where_it_claims() -> None:
    """At other stages it is the identity, however it is called."""
    seen: list[Stage] = []

    def look(state: TrainState, stage: Stage, _skip: Any) -> Any:
        seen.append(stage)
        return state, True, state.loss

    looking = hook(look, stages=[Stage.SETUP, Stage.AFTER_EPOCH])
    state = TrainState()
    assert all(looking(state, stage, False).state is state for stage in Stage)
    assert seen == [Stage.SETUP, Stage.AFTER_EPOCH]


def test_one_stage_needs_no_set() -> None:
    """A lone stage, field or metric is taken as a set of one."""
    made = Hook(stages=Stage.SETUP, writes="grads", publishes="norm", reads="loss")  # pyright: ignore[reportArgumentType]
    assert made.stages == frozenset({Stage.SETUP})
    assert (made.writes, made.publishes, made.reads) == ({"grads"}, {"norm"}, {"loss"})


def test_a_plain_tuple_is_an_outcome() -> None:
    """Calling a hook gives an Outcome whatever it returned."""
    found = decorated(TrainState(loss=torch.tensor(3.0)), Stage.DO_BACKWARD, False)
    assert isinstance(found, Outcome)
    assert (found.proceed, found.loss.item()) == (True, 6.0)  # pyright: ignore[reportOptionalMemberAccess]


def test_the_decorator_takes_configuration_and_init() -> None:
    """A decorated function is named after itself and builds its slot with what init gives."""
    assert (decorated.name, decorated.priority, decorated.stages) == ("decorated", 7, {Stage.DO_BACKWARD})
    assert decorated.init(TrainState()) == {"n": 1}
    assert hook(bare).init(TrainState()) == {}
    assert hook(name="other")(bare).name == "other"


@pytest.mark.parametrize("field", ["stages", "writes", "publishes", "reads"])
@pytest.mark.parametrize("value", [3, None, [3], True, 1.5], ids=repr)
def test_sets_of_anything_else_are_refused(field: str, value: Any) -> None:
    """What is no set of stages or names is a ValidationError that names the field."""
    with pytest.raises(ValidationError, match=field):
        Hook(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", True, "valid integer"),
        ("priority", "3", "valid integer"),
        ("priority", 1.0, "valid integer"),
        ("name", "a b", "a hook's name must be an identifier, got 'a b'"),
        ("name", 3, "valid string"),
        ("exclusive", 1, "valid string"),
        ("rank_local", 1, "valid boolean"),
        ("stages", "do_backward", "instance of Stage"),
        ("writes", "grds", r"writes names \['grds'\], which are no fields of TrainState; there are \['batch',"),
        ("writes", "donated", "which are no fields"),
        ("nmae", "x", "Hook has no such option; did you mean .name."),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any, message: str) -> None:
    """A value of the wrong type or an unknown field is a ValidationError that says what is expected."""
    with pytest.raises(ValidationError, match=rf"(?s)\n{field}.*{message}"):
        Hook(**{field: value})


@pytest.mark.parametrize("value", [3, [bare], EMA, EMA()], ids=["int", "list", "class", "hook"])
def test_the_decorator_needs_a_function(value: Any) -> None:
    """Anything else is a TypeError that says what to write."""
    with pytest.raises(TypeError, match=r"@hook needs a function, got .*; subclass functrain.Hook"):
        hook(value)


@pytest.mark.parametrize("function", [lambda s, _g, _w: (s, True, s.loss), partial(scaled, 2.0)])
def test_a_function_without_a_name_needs_one(function: Callable[..., Any]) -> None:
    """A lambda or a partial cannot own a slot until it is named."""
    for wrap in (hook, fold):
        with pytest.raises(ValueError, match=r'write functrain.hook\(function, name="..."\)'):
            wrap(function)
    assert hook(function, name="mine").name == "mine"
    assert named("mine", function).name == "mine"


def test_configuration_is_frozen() -> None:
    """A hook cannot be changed, only copied."""
    made: Any = ClipNorm(max_norm=1.0)
    with pytest.raises(ValidationError, match="frozen"):
        made.max_norm = 2.0
    with pytest.raises(ValidationError, match="frozen"):
        fold(made).hooks = ()


def test_hooks_compare_and_hash_by_configuration() -> None:
    """Equal configurations are equal, in pipelines, too."""
    assert ClipNorm(max_norm=1.0) == ClipNorm(max_norm=1.0)
    assert ClipNorm(max_norm=1.0) != ClipNorm(max_norm=2.0)
    assert Counting() != Hook(name="counting")
    assert hook(bare) == hook(bare)
    assert fold(EMA(), ClipNorm(max_norm=1.0)) == fold(ClipNorm(max_norm=1.0), EMA())
    assert fold(EMA()) != fold(EMA(decay=0.5))
    assert len({EMA(), EMA(), fold(EMA()), fold(EMA()), hook(bare), hook(bare)}) == 3


def test_repr_is_source_text_of_what_differs_from_the_defaults() -> None:
    """Printed hooks and pipelines evaluate to themselves."""
    pipeline = ClipNorm(max_norm=1.0) + EMA(decay=0.5, name="slow") + Accumulate(every=2)
    text = "fold(Accumulate(every=2), ClipNorm(max_norm=1.0), EMA(name='slow', decay=0.5))"
    assert repr(pipeline) == text
    assert eval(text) == pipeline  # noqa: S307 - what repr promises
    assert repr(EMA(model_key="teacher")) == "EMA(model_key='teacher')"
    assert (str(EMA()), str(ClipNorm(max_norm=1.0))) == ("EMA()", "ClipNorm(max_norm=1.0)")


def test_repr_of_a_function_is_the_same_in_every_process() -> None:
    """It names the function and holds no address; sets of stages are in order, whatever they hash to."""
    two = hook(bare, stages={Stage.DO_OPTIMIZER_STEP, Stage.DO_BACKWARD}, writes={"params", "grads"}, init=dict)
    assert repr(two) == (
        "hook(bare, stages={Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP}, writes={'grads', 'params'}, init=dict)"
    )
    assert repr(hook(partial(bare), name="x")) == "hook(partial(bare), name='x')"


@pytest.mark.parametrize(
    "made",
    [decorated, hook(bare), Holder.inside, fold(bare), named("x", decorated)],
    ids=["decorated", "bare", "inside", "folded", "renamed"],
)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_functions_copy_and_pickle(made: Any, copied: Callable[[Any], Any]) -> None:
    """Decorated, bare and renamed functions come back equal, with their names and claims."""
    again = copied(made)
    assert again == made
    assert (again.name, again.priority, again.stages) == (made.name, made.priority, made.stages)


def test_a_decorated_function_pickles_by_reference() -> None:
    """The name means the hook: unpickling gives the very same object; only changes travel."""
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    again = pickle.loads(pickle.dumps(prioritized(3, named("renamed", decorated))))
    assert (again.name, again.priority, again.function) == ("renamed", 3, decorated.function)
    assert again.init(TrainState()) == {"n": 1}


@pytest.mark.parametrize("function", [partial(scaled, 2.0), max], ids=["partial", "builtin"])
def test_callables_without_a_home_pickle_by_themselves(function: Any) -> None:
    """A partial has no qualified name, and pickles as what it is."""
    again = pickle.loads(pickle.dumps(hook(function, name="mine")))
    assert (again.name, type(again.function)) == ("mine", type(function))


def test_a_local_function_says_that_it_cannot_be_pickled() -> None:
    """A function that no module holds raises pickle's own error instead of losing itself."""

    def local(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, state.loss

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(hook(local))


@pytest.mark.parametrize(
    "made",
    [
        fold(),
        ClipNorm(max_norm=1.0) + decorated + bare,
        when(always, EMA()) + every(3, ClipNorm(max_norm=1.0)) + on("*.bias", bare),
        fold(every(2, when(always, EMA(name="slow")))),
    ],
    ids=["empty", "functions", "combinators", "nested"],
)
def test_pipelines_pickle(made: Pipeline) -> None:
    """A pipeline comes back equal, in order, and knows again who claims what."""
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert [each.name for each in again] == [each.name for each in made]
    for stage in Stage:
        assert again.claimants(stage) == made.claimants(stage)


def test_a_slot_is_made_of_the_state() -> None:
    """The ``init`` of a function is given the first state, as that of a class is."""

    def plain(state: TrainState, _stage: Stage, _will_skip: Any) -> Any:
        return state, True, state.loss

    made = hook(plain, init=lambda state: {"rank": state.rank})
    assert dict(made.init(TrainState(rank=3))) == {"rank": 3}
