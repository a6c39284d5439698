"""The numbers that drive decisions: windows, clocks and loss scalers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from functrain import FrozenMap
from functrain._clock import Clock
from functrain._window import Window


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Draw a window: counted or weighted, empty or not, closing or not."""
    entered, weighted = draw(st.integers(0, 4)), draw(st.booleans())
    weight = draw(st.sampled_from([0.0, 0.5, 3.0, 1000.0])) if weighted else 1.0
    total = draw(st.sampled_from([0.75, 3.0, 1e6])) if weighted and entered else float(entered)
    return Window(
        boundary=draw(st.booleans()),
        last=draw(st.booleans()),
        entered=entered,
        divisor=draw(st.integers(max(entered, 1), 5)),
        weighted=weighted,
        weight=weight,
        total=total,
    )


@st.composite
def clocks(draw: st.DrawFn, keys: Iterable[str]) -> Clock:
    """Draw counters that could belong together."""
    step, skips = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    return Clock(
        step=step,
        batch=step + skips + draw(st.integers(0, 9)),
        epoch_batch=draw(st.integers(0, 3)),
        skipped=skips,
        consecutive_skips=skips,
        skipping_since=step if skips else -1,
        optimizer_steps=FrozenMap({key: draw(st.integers(0, step)) for key in keys}),
    )


@st.composite
def scalers(draw: st.DrawFn, keys: Iterable[str]) -> FrozenMap[Any]:
    """Draw a loss scaler, or none."""
    if not draw(st.booleans()):
        return FrozenMap()
    found = {key: draw(st.booleans()) for key in keys}
    scale = draw(st.sampled_from([1.0, 4.0, 65536.0, 2.0**24]))
    return FrozenMap({"scale": scale, "growth_tracker": draw(st.integers(0, 3)), "found_inf": found})
