"""Scenes: a hook or a pipeline, a state that is prepared for it, a stage, and what the caller passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from functrain import UPDATE_STAGES, ClipValue, Hook, Outcome, Pipeline, Stage, TrainState, fold
from functrain._tree import FrozenMap
from functrain._wrapper import innermost
from functrain.hooks import LIBRARY
from tests.laws.configured import library_hooks
from tests.laws.forms import Form, cloned, in_form
from tests.laws.states import bare_states
from tests.laws.synthetic import synthetic_hooks

UPDATES = tuple(stage for stage in Stage if stage in UPDATE_STAGES)


@dataclass(frozen=True)
class Scene:
    """One call of a hook, in one of the two forms."""

    hook: Hook
    state: TrainState
    stage: Stage
    will_skip: bool
    form: Form = "python"

    def run(self, *, donated: bool = False, **changes: Any) -> Outcome:
        """Call the hook on a copy of the state, which may be given away."""
        scene = replace(self, **changes)
        state = cloned(in_form(scene.state, scene.form)).replace(donated=donated)
        return scene.call(state)

    def call(self, state: TrainState) -> Outcome:
        """Call the hook on this very state; numbers of the result are in form again."""
        will_skip = torch.tensor(self.will_skip) if self.form == "tensor" else self.will_skip
        with torch.no_grad():
            found = self.hook(state, self.stage, will_skip)
        return Outcome(*found) if self.form == "python" else Outcome(*in_form(tuple(found), "tensor"))

    def members(self) -> tuple[Hook, ...]:
        """Return the hooks that are called."""
        return tuple(self.hook) if isinstance(self.hook, Pipeline) else (self.hook,)


@st.composite
def pipelines(draw: st.DrawFn, least: int = 0, most: int = 5) -> Pipeline:
    """Draw a pipeline of library hooks of different classes, with up to two synthetic ones among them."""
    kinds = draw(st.lists(st.sampled_from(LIBRARY), min_size=least, max_size=most, unique=True))
    strange = [draw(synthetic_hooks(f"synthetic{place}")) for place in range(draw(st.integers(0, 2)))]
    members = [draw(library_hooks(kind, wrapped=False)) for kind in kinds]
    return fold(*draw(st.permutations([*members, *strange])))


@st.composite
def prepared_states(draw: st.DrawFn, pipeline: Pipeline) -> TrainState:
    """Draw a state with every slot, and lead it through a few calls, so that the slots have lived."""
    clamps = any(isinstance(innermost(each), ClipValue) for each in pipeline)
    state = pipeline.prepared(draw(bare_states(complex_too=not clamps)))
    for stage, will_skip, norm in draw(st.lists(st.tuples(st.sampled_from(UPDATES), st.booleans(), NORMS), max_size=4)):
        with torch.no_grad():
            after = pipeline(with_norm(state, norm), stage, will_skip).state
        state = state.replace(hooks=after.hooks)
    return with_norm(state, draw(NORMS))


NORMS = st.none() | st.sampled_from([0.0, 0.5, 3.0, float("inf")])


def with_norm(state: TrainState, norm: float | None) -> TrainState:
    """Return the state with a gradient norm, if some hook publishes one."""
    if norm is None or "grad_norm" not in state.metrics:
        return state
    return state.replace(metrics=state.metrics | FrozenMap({"grad_norm": torch.tensor(norm)}))


@st.composite
def scenes(draw: st.DrawFn, hooks: st.SearchStrategy[Hook]) -> Scene:
    """Draw one call of a hook; a stage that it claims more often than not."""
    hook = draw(hooks)
    pipeline = hook if isinstance(hook, Pipeline) else fold(hook)
    claimed = [stage for stage in Stage if stage in hook.stages] or list(Stage)
    return Scene(
        hook=hook,
        state=draw(prepared_states(pipeline)),
        stage=draw(st.sampled_from(claimed) | st.sampled_from(UPDATES)),
        will_skip=draw(st.booleans()),
        form=draw(st.sampled_from(["python", "tensor"])),
    )
