"""A hook that listens to another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import SkipValidation

from functrain import Hook, Outcome, Pipeline, Stage, TrainState, fold
from functrain._select import Flag
from functrain._wrapper import Wrapper, contract


class Spy(Wrapper):
    """A hook that notes what it was told and what it answered."""

    inner: Annotated[Hook, SkipValidation]
    notes: Annotated[list[Any], SkipValidation]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Pass the call on."""
        outcome = Outcome(*self.inner.update(state, stage, will_skip))
        self.notes.append((self.name, bool(will_skip), outcome.proceed))
        return outcome


def spied(members: Iterable[Hook], notes: list[Any]) -> Pipeline:
    """Return a pipeline with a spy around every member, all of which write into the same notes."""
    return fold(*(Spy(inner=each, notes=notes, **contract(each)) for each in members))
