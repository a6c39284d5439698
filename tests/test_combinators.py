"""Hooks made of hooks: when, every, on, named, prioritized, observe."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import functrain
from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    Hook,
    SkipNonFinite,
    Stage,
    TrainState,
    every,
    fold,
    named,
    observe,
    on,
    prioritized,
    when,
)
from functrain._restriction import chosen, compiled
from functrain._select import wide
from functrain._tree import paths
from functrain._wrapper import innermost
from tests.ids import plain
from tests.scalars import Weight, applied, run, sgd_shell
from tests.scripted import STEP

AFTER = Stage.AFTER_OPTIMIZER_STEP


def gradients(*values: float) -> TrainState:
    """Return a state of one model with a few scalar weights and the gradients given."""
    held = {f"w{place}": torch.tensor(value) for place, value in enumerate(values)}
    return TrainState(params={"main": {name: torch.zeros(()) for name in held}}, grads={"main": held})


def after(hook: Hook, state: TrainState, stage: Stage = STEP) -> TrainState:
    """Prepare a state for a hook, and run the hook at one stage."""
    pipeline = fold(hook)
    return pipeline(pipeline.prepared(state), stage, False).state


def norms(state: TrainState) -> list[float]:
    """Return the gradients."""
    return [grad.item() for grad in state.grads["main"].values()]


@given(st.booleans(), st.booleans())
def test_when_runs_the_hook_only_where_the_predicate_holds(holds: bool, as_tensor: bool) -> None:
    """A bool and a 0-d tensor decide alike."""
    guarded = when(lambda _: wide(holds, torch.zeros(())) if as_tensor else holds, ClipNorm(max_norm=1.0))
    assert norms(after(guarded, gradients(3.0, 4.0))) == pytest.approx([0.6, 0.8] if holds else [3.0, 4.0])


def test_when_with_a_bool_does_not_call_the_hook_elsewhere() -> None:
    """The inner hook costs nothing where it is off."""
    inner = functrain.hook(lambda *_: 1 / 0, name="never")
    state = gradients(1.0)
    assert when(lambda _: False, inner)(state, STEP, False).state is state


@pytest.mark.parametrize("holds", [True, False])
def test_when_with_a_tensor_leaves_donated_gradients_alone_until_it_has_picked(holds: bool) -> None:
    """Both branches are computed, so the one that clips in place must not have written what the other keeps."""
    guarded = when(lambda _: torch.tensor(holds), ClipNorm(max_norm=1.0))
    state = gradients(3.0, 4.0).replace(donated=True)
    found = after(guarded, state)
    assert found.donated
    assert norms(found) == pytest.approx([0.6, 0.8] if holds else [3.0, 4.0])


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_when_passes_vetoes_and_losses_only_where_it_holds(holds: bool, as_tensor: bool) -> None:
    """Elsewhere the hook neither vetoes nor touches the loss."""
    inner = functrain.hook(lambda s, _g, _w: (s, False, s.loss * 2), name="inner")
    guarded = when(lambda _: torch.tensor(holds) if as_tensor else holds, inner)
    found = guarded(TrainState(loss=torch.tensor(3.0)), Stage.DO_BACKWARD, False)
    assert bool(found.proceed) is not holds
    assert found.loss is not None
    assert found.loss.item() == (6.0 if holds else 3.0)


def test_when_follows_the_state() -> None:
    """The predicate is asked at every call, on the state of that call."""
    shell = sgd_shell(Weight(), when(lambda state: state.clock.step >= 1, ClipNorm(max_norm=1.0)))
    run(shell, [5.0, 5.0])
    assert applied(shell) == pytest.approx(6.0)


@pytest.mark.parametrize("selector", ["w1", "w[1]", lambda model, name: (model, name) == ("main", "w1")])
def test_on_shows_only_the_selected_part(selector: Any) -> None:
    """The norm is that of the selected gradients, and only they are scaled."""
    assert norms(after(on(selector, ClipNorm(max_norm=1.0)), gradients(3.0, 4.0))) == pytest.approx([3.0, 1.0])


def test_on_keeps_the_order_and_the_rest() -> None:
    """What was hidden comes back in its place, as the same tensors."""
    state = gradients(1.0, 2.0, 3.0)
    found = after(on("w1", ClipNorm(max_norm=0.5)), state)
    assert list(found.grads["main"]) == ["w0", "w1", "w2"]
    assert found.grads["main"]["w0"] is state.grads["main"]["w0"]
    assert found.params is state.params


def test_on_averages_only_the_selected_part() -> None:
    """The shadow of an EMA holds the selected parameters only."""
    shell = sgd_shell(torch.nn.Linear(2, 1), on("*bias", EMA(decay=0.5)))
    assert list(shell.state.hooks["ema"]["shadow"]) == ["bias"]


def test_on_selects_nothing_quietly() -> None:
    """A pattern that nothing matches makes a hook without work."""
    assert norms(after(on("nothing", ClipNorm(max_norm=1.0)), gradients(3.0, 4.0))) == [3.0, 4.0]


def test_two_limits_for_two_parts() -> None:
    """The same hook class serves two parts under two names, each with its own limit."""
    pipeline = on("w0", ClipNorm(max_norm=1.0)) + on("w1", named("rest", ClipNorm(max_norm=2.0)))
    found = pipeline(pipeline.prepared(gradients(3.0, 4.0)), STEP, False).state
    assert norms(found) == pytest.approx([1.0, 2.0])


def test_named_gives_a_slot_of_its_own() -> None:
    """The renamed hook works on the slot of its new name; the original stays."""
    ema = EMA(decay=0.5)
    slow = named("slow", ema)
    assert (slow.name, ema.name, slow.decay) == ("slow", "ema", 0.5)
    shell = sgd_shell(Weight(), ema + slow)
    run(shell, [1.0])
    assert {name: slot["n_averaged"] for name, slot in shell.state.hooks.items()} == {"ema": 1, "slow": 1}


@pytest.mark.parametrize("wrap", [lambda h: when(lambda _: True, h), lambda h: every(1, h), lambda h: on("*", h)])
def test_named_and_prioritized_reach_through_wrappers(wrap: Any) -> None:
    """A wrapper's inner hook is found under the new name, too."""
    made = prioritized(3, named("mine", wrap(wrap(ClipNorm(max_norm=1.0)))))
    assert (made.name, made.priority) == ("mine", 3)
    assert norms(after(made, gradients(3.0, 4.0))) == pytest.approx([0.6, 0.8])
    assert innermost(made) == ClipNorm(max_norm=1.0, name="mine", priority=3)


def test_prioritized_moves_a_hook() -> None:
    """Lower runs first; slot and configuration stay."""
    pipeline = fold(prioritized(60, ClipNorm(max_norm=1.0)), EMA())
    assert [each.name for each in pipeline] == ["ema", "clip"]


@pytest.mark.parametrize(("function", "value"), [(named, "a b"), (named, 3), (prioritized, True), (prioritized, 1.5)])
def test_bad_names_and_priorities_are_refused(function: Any, value: Any) -> None:
    """Changes of a copy are checked like a hook's own fields."""
    with pytest.raises(ValidationError, match=r"name|priority"):
        function(value, EMA())


def test_a_pipeline_cannot_be_named() -> None:
    """Its members have names of their own, which the error lists."""
    with pytest.raises(TypeError, match=r"cannot name a pipeline; name its members: \['clip', 'ema'\]"):
        named("both", fold(EMA(), ClipNorm(max_norm=1.0)))


@pytest.mark.parametrize(
    "wrap",
    [lambda p: when(lambda _: True, p), lambda p: every(1, p), lambda p: on("*", p), lambda p: prioritized(50, p)],
    ids=["when", "every", "on", "prioritized"],
)
def test_over_a_pipeline_every_member_is_wrapped(wrap: Any) -> None:
    """Names, slots and order stay, so that a wrapped pipeline trains like the bare one."""
    plain = [ClipNorm(max_norm=1.0, priority=50), EMA(decay=0.5), SkipNonFinite(priority=50)]
    bare, wrapped = sgd_shell(Weight(), fold(*plain)), sgd_shell(Weight(), wrap(fold(*plain)))
    assert [each.name for each in wrapped.pipeline] == ["clip", "ema", "finite"]
    for shell in (bare, wrapped):
        run(shell, [5.0, float("nan"), 0.5])
    found = paths(wrapped.state.hooks)
    assert {path: float(leaf) for path, leaf in found.items()} == {
        path: float(leaf) for path, leaf in paths(bare.state.hooks).items()
    }
    assert applied(wrapped) == applied(bare) == pytest.approx(1.5)


def test_wrappers_take_over_the_contract() -> None:
    """Claims, writes, family, skip limit and what the shell asks of a hook are the inner one's."""
    inner = SkipNonFinite(drop=False, max_consecutive=7)
    outer = when(lambda _: True, every(1, inner))
    assert (outer.stages, outer.reads, outer.rank_local) == (inner.stages, inner.reads, True)
    assert (outer.may_drop, outer.keeps_finite, outer.max_consecutive) == (False, True, 7)
    assert every(2, Accumulate(every=2)).exclusive == "accumulate"
    assert not on("*", functrain.hook(lambda s, *_: (s, True, s.loss), name="w", writes={"grads"})).keeps_finite


def always(_state: TrainState) -> bool:
    """Hold everywhere."""
    return True


def test_a_wrapper_prints_as_the_call_that_makes_it() -> None:
    """Printed combinators are source text; what is renamed or moved shows in the hook itself."""
    made = prioritized(60, every(2, on("*.bias", when(always, EMA(decay=0.5)))))
    assert repr(made) == "every(2, on('*.bias', when(always, EMA(priority=60, decay=0.5))))"
    assert repr(fold(named("slow", when(always, EMA())))) == "fold(when(always, EMA(name='slow')))"


@pytest.mark.parametrize("answer", [None, False, 3, torch.tensor(False)], ids=plain)
def test_an_observer_looks_and_changes_nothing(answer: Any) -> None:
    """Whatever the function returns is not read, and an observer never drops."""
    look = observe("look", lambda _state, _stage: answer, stages=STEP, priority=3)
    state = TrainState(loss=torch.tensor(1.0))
    assert look(state, STEP, False) == (state, True, state.loss)
    assert (look.name, look.priority, look.may_drop) == ("look", 3, False)


@given(st.text("ab.*?[]", max_size=5), st.text("abA.", max_size=5))
def test_a_pattern_chooses_as_its_compiled_form_does(pattern: str, name: str) -> None:
    """Compiled or not, a pattern takes the names that fnmatchcase takes."""
    assert chosen(pattern, "main", name) is chosen(compiled(pattern), "main", name) is fnmatchcase(name, pattern)


@pytest.mark.parametrize("pred", [True, torch.tensor(True), torch.tensor(False)], ids=plain)
def test_the_inner_hook_is_told_stage_and_skip(pred: Any) -> None:
    """A condition that is a tensor runs the inner hook, too, at the stage and with the verdict that there are."""
    seen = list[Any]()

    @functrain.hook(stages=STEP)
    def inner(state: Any, stage: Any, will_skip: Any) -> Any:
        seen.append((stage, will_skip))
        return state, True, state.loss

    when(lambda _: pred, inner)(functrain.TrainState(), Stage.DO_OPTIMIZER_STEP, True)
    assert seen == [(Stage.DO_OPTIMIZER_STEP, True)]


def test_what_a_restricted_hook_leaves_alone_is_the_same_object() -> None:
    """Identity tells an interpreter that there is nothing to write, for parameters and for gradients."""
    leaves = {"main": {"w": torch.ones(1), "b": torch.ones(1)}}
    state = TrainState(params=leaves, grads=leaves)
    silent = functrain.hook(stages=STEP, name="silent")(lambda state, _stage, _skip: (state, True, state.loss))
    after = on("w", silent)(state, STEP, False).state
    assert after.params is state.params
    assert after.grads is state.grads
