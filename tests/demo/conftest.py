"""One short run of the demo, shared by the tests that look at what came out of it."""

from __future__ import annotations

import pytest

from functrain.demo.options import Options
from functrain.demo.trial import Trial, prepare, run


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Run the demo for three epochs, without a bar."""
    options = Options(epochs=3, out=tmp_path_factory.mktemp("demo"))
    return run(options, prepare(options), progress=False)
