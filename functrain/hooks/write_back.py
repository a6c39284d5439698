"""Averages that training goes on from."""

from __future__ import annotations

from functrain._hook import Writes
from functrain._select import Flag, select
from functrain._state import TrainState
from functrain.hooks.average import Average
from functrain.hooks.shadow import led, led_

BEFORE_OTHER_AVERAGES = 45
"""The priority of averages that write: others then average what training goes on from."""


class WritingAverage(Average):
    """An average that is written into the weights at some steps; buffers stay."""

    priority: int = BEFORE_OTHER_AVERAGES
    writes: Writes = frozenset({"params"})

    def followed_up(self, state: TrainState, stepped: Flag) -> TrainState:
        """Write the average back where :meth:`writes_at` says so."""
        slot, weights = state.hooks[self.name], state.params[self.model_key]
        where = self.writes_at(slot, stepped)
        if where is False:
            return state
        if where is True and state.donated:
            led_(weights, slot["shadow"])
            return state
        new = select(where, lambda: led(weights, slot["shadow"]), lambda: weights)
        return state.replace(params=state.params | {self.model_key: new})

    def writes_at(self, slot: object, stepped: Flag) -> Flag:
        """Tell whether this step ends with the average in the weights; the slot is up to date."""
        raise NotImplementedError
