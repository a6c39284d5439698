"""L2 purity and L5 frame: nothing is written, and nothing is changed that is not declared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functrain import Hook
from functrain.hooks import LIBRARY
from functrain.testing import Law, laws
from functrain.testing.drawn_hooks import library_hooks
from functrain.testing.drawn_pipelines import pipelines
from functrain.testing.scene import scenes

LAWS = [laws.PURITY, laws.FRAME]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("kind", LIBRARY, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_library_hooks(law: Law, kind: type[Hook], data: st.DataObject) -> None:
    """Every hook of the library, bare or in a combinator, keeps the law."""
    law.check(data.draw(scenes(library_hooks(kind))))


@pytest.mark.parametrize("law", LAWS, ids=str)
@given(data=st.data())
def test_pipelines(law: Law, data: st.DataObject) -> None:
    """Drawn pipelines keep the law: it holds of a composition because it holds of the parts."""
    law.check(data.draw(scenes(pipelines())))
