"""The HTML views in a real browser, in light and in dark: drawn without an error, and legible."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipNonFinite, show
from functrain.testing import check_hook, laws
from tests.scalars import Weight, sgd_shell, step

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--hide-scrollbars",
)  # fmt: skip
PAGE = '<!doctype html><html style="color-scheme:{scheme}"><meta charset="utf-8"><body>{body}'
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def trained() -> tuple[Any, Shell, Shell]:
    """Return a trace of eight micro-batches, one of them dropped, the shell, and one that has done nothing."""
    hooks = [Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA()]
    traced = show.trace(hooks, budget=10**6)
    shell, fresh = sgd_shell(Weight(), traced), sgd_shell(Weight(), hooks)
    for place in range(8):
        step(shell, float("nan") if place == 5 else 1.0)
    return traced, shell, fresh


def replayed() -> Any:
    """Return a run beside what it would have been without a limit."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)

    def make(hooks: Any) -> Shell:
        return Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)

    def loss_fn(module: Any, batch: Any) -> Any:
        return module(batch["x"]).square().sum()

    traced = show.trace([ClipNorm(max_norm=0.1)], budget=10**6)
    shell = make(traced)
    for _ in range(3):
        with shell.batch({"x": torch.ones(1, 2)}):
            shell.update(loss_fn(model, shell.state.batch))
    return show.replay(traced.trace, [ClipNorm(max_norm=1.0)], make, loss_fn)


VIEWS: dict[str, Callable[[], Any]] = {
    "state": lambda: show.state(trained()[1].state, stats=True),
    "difference": lambda: show.diff(trained()[2].state, trained()[1].state),
    "pipeline": lambda: show.pipeline(trained()[1].pipeline),
    "trace": lambda: trained()[0].trace,
    "replay": replayed,
    "laws": lambda: check_hook(ClipNorm(max_norm=1.0), laws=[laws.CONTRACT, laws.PURITY], max_examples=5),
}


def screenshot(html: str, scheme: str, folder: Path) -> tuple[Image.Image, str]:
    """Return a page as it looks, and what the browser said."""
    (folder / "page.html").write_text(PAGE.format(scheme=scheme, body=html), encoding="utf-8")
    picture, profile = folder / "page.png", folder / "profile"
    own = (f"--user-data-dir={profile}", "--window-size=900,600", f"--screenshot={picture}")
    command = [str(CHROMIUM), *QUIET, *own, (folder / "page.html").as_uri()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Image.open(picture).convert("L"), found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_drawn(name: str, scheme: str, tmp_path: Path) -> None:
    """The page is of the scheme, has a hundred pixels and more of writing that stands out from it, and logs nothing."""
    picture, said = screenshot(VIEWS[name]()._repr_html_(), scheme, tmp_path)
    counts = picture.histogram()
    page = max(range(256), key=counts.__getitem__)
    assert (page > 200) is (scheme == "light")
    assert sum(count for shade, count in enumerate(counts) if abs(shade - page) > 150) > 100
    assert "CONSOLE" not in said


@pytest.mark.slow
def test_an_error_of_a_page_is_seen(tmp_path: Path) -> None:
    """What the test above looks for is there where a page fails."""
    assert "CONSOLE" in screenshot("<script>nowhere()</script>", "light", tmp_path)[1]
