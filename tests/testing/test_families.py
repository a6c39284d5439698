"""The laws of families, of lanes, of tracing and of saving, on every hook of the library and on drawn pipelines."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functrain import Accumulate, Hook
from functrain.hooks import LIBRARY
from functrain.testing import LAWS, Law, laws, pipelines, scenes
from functrain.testing.drawn_hooks import library_hooks

FAMILIES = [law for law in LAWS if ": " in law.name]
FEW = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def kinds_of(law: Law) -> st.SearchStrategy[Hook]:
    """Return hooks of the classes to which a law may apply, with drawn configuration and in no combinator."""
    return st.sampled_from(LIBRARY).flatmap(lambda kind: library_hooks(kind, wrapped=False)).filter(law.applies_to)


@pytest.mark.parametrize("law", [law for law in FAMILIES if law.cost == 1], ids=str)
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_families(law: Law, data: st.DataObject) -> None:
    """Each family keeps what it promises, whatever its configuration."""
    law.check(data.draw(scenes(data.draw(kinds_of(law)))))


@pytest.mark.parametrize("every", [1, 2, 3, 4, 6])
def test_micro_batches(every: int) -> None:
    """Micro-batches update as the whole batch, for every length into which its rows divide."""
    from functrain import Stage, TrainState
    from functrain.testing import Scene

    laws.MICRO.check(Scene(Accumulate(every=every), TrainState(), Stage.BEFORE_BATCH, will_skip=False))


@pytest.mark.parametrize("law", [laws.LANES_ALONE, laws.ROUND_TRIP], ids=str)
@pytest.mark.parametrize("kind", LIBRARY, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_lanes_and_round_trips(law: Law, kind: type[Hook], data: st.DataObject) -> None:
    """Every hook of the library, bare or in a combinator."""
    law.check(data.draw(scenes(library_hooks(kind))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIBRARY, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_tracing(kind: type[Hook], data: st.DataObject) -> None:
    """Every hook of the library is one graph at each of its stages."""
    laws.TRACEABLE.check(data.draw(scenes(library_hooks(kind))))


@pytest.mark.parametrize("law", [laws.LANES_ALONE, laws.ROUND_TRIP], ids=str)
@FEW
@given(scene=scenes(pipelines()))
def test_pipelines(law: Law, scene: object) -> None:
    """Drawn pipelines keep the law, too."""
    law.check(scene)  # pyright: ignore[reportArgumentType]
