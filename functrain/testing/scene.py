"""Scenes: a hook or a pipeline, a state that is prepared for it, a stage, and what the caller passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from hypothesis import strategies as st

from functrain import Hook, Outcome, Pipeline, Stage, TrainState, fold
from functrain._function_hook import as_hook
from functrain._hook import HookFunction
from functrain._select import Flag
from functrain.testing.breach import HookFailed
from functrain.testing.events import EVENTS, Event, schedules
from functrain.testing.forms import Form, cloned, in_form
from functrain.testing.states import dtypes_for, lived, stages, states


@dataclass(frozen=True)
class Scene:
    """One call of a hook, in one of the two forms.

    Attributes:
        hook: a hook or a pipeline.
        state: holds the slots; numbers are Python's.
        stage: at which the hook is called.
        will_skip: what the caller says.
        form: the hook is called with Python numbers or with 0-d tensors.
        schedule: what happens to a whole run, for the laws about runs.

    >>> Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False).run().proceed
    True
    """

    hook: Hook
    state: TrainState
    stage: Stage
    will_skip: bool
    form: Form = "python"
    schedule: tuple[Event, ...] = ()

    def run(self, *, donated: bool = False, **changes: Any) -> Outcome:
        """Call the hook on a copy of the state, which may be given away."""
        scene = replace(self, **changes)
        state = cloned(in_form(scene.state, scene.form)).replace(donated=donated)
        return scene.call(state)

    def call(self, state: TrainState) -> Outcome:
        """Call the hook on this very state; numbers of the result are in form again.

        Raises:
            HookFailed: the hook raised, or returned what is no outcome.
        """
        will_skip = torch.tensor(self.will_skip) if self.form == "tensor" else self.will_skip
        return outcome_of(self.hook, state, self.stage, will_skip, self.form)

    def members(self) -> tuple[Hook, ...]:
        """Return the hooks that are called."""
        return members_of(self.hook)


def outcome_of(hook: Hook, state: TrainState, stage: Stage, will_skip: Flag, form: Form = "python") -> Outcome:
    """Call a hook without gradients, and return what it returned if that is an outcome.

    Raises:
        HookFailed: the hook raised, or returned what is no outcome.
    """
    try:
        with torch.no_grad():
            found = Outcome(*hook(state, stage, will_skip))
    except Exception as error:
        raise HookFailed(f"{type(error).__name__}: {error}") from error
    if not isinstance(found.state, TrainState):  # pyright: ignore[reportUnnecessaryIsInstance] - a hook may do anything
        raise HookFailed(f"returned a {type(found.state).__name__} as state")
    return found if form == "python" else Outcome(*(in_form(part, "tensor") for part in found))


def members_of(hook: Hook) -> tuple[Hook, ...]:
    """Return the members of a pipeline, or the hook itself."""
    return tuple(hook) if isinstance(hook, Pipeline) else (hook,)


@st.composite
def scenes(
    draw: st.DrawFn,
    hooks: Hook | HookFunction | st.SearchStrategy[Hook],
    *,
    bare: st.SearchStrategy[TrainState] | None = None,
) -> Scene:
    """Draw one call of a hook; a stage that it claims more often than not.

    Args:
        draw: given by Hypothesis.
        hooks: a hook, a function, or a strategy of hooks.
        bare: what states to draw, if not those of :func:`states`; the slots are added.

    >>> from functrain import EMA
    >>> scenes(EMA())
    scenes(EMA())
    """
    hook = draw(cast("st.SearchStrategy[Hook]", hooks)) if isinstance(hooks, st.SearchStrategy) else as_hook(hooks)
    dtypes = dtypes_for(members_of(hook))
    return Scene(
        hook=hook,
        state=draw(states(hook, dtypes=dtypes) if bare is None else lived(fold(hook), draw(bare))),
        stage=draw(stages(hook)),
        will_skip=draw(st.booleans()),
        form=draw(st.sampled_from(["python", "tensor"])),
        schedule=tuple(draw(schedules(events=EVENTS, max_size=6))),
    )
