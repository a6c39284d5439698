"""Long traces, windows and flushes, and what cannot be recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import Accumulate, ClipNorm, FixedLimit, MixedPrecision, SkipNonFinite, SkipSpikes, pure, show
from functrain.pure.lanes import stacked
from functrain.show.column import Column
from functrain.show.lanes import FOLDED, SEVERITY, WHOLE, Lane, lanes_grid, windows_grid, windows_of
from functrain.show.text import grid_text
from tests.scalars import Weight, sgd_shell, step
from tests.show.reading import parsed

MARKS = st.sampled_from(SEVERITY)


def lanes_of(marks: list[tuple[str, str]], every: int) -> list[Lane]:
    """Return micro-batches with windows of one length."""
    return [Lane(Column(n, "batch", n, boundary=(n + 1) % every == 0), each) for n, each in enumerate(marks)]


@given(st.lists(st.tuples(MARKS, MARKS), min_size=1, max_size=300), st.integers(1, 5))
def test_every_trace_fits_on_a_screen(marks: list[tuple[str, str]], every: int) -> None:
    """However many micro-batches and whatever happened: few columns, which count every micro-batch once."""
    lanes = lanes_of(marks, every)
    grid = lanes_grid(("one", "other"), lanes)
    assert len(grid.heads) <= 1 + WHOLE
    assert {len(row) for row in grid.rows} == {len(grid.heads)}
    if grid.rows[0][0] == "windows":
        assert len(grid.heads) <= 1 + FOLDED
        assert sum(map(int, grid.rows[0][1:])) == len(windows_of(lanes)) == -(-len(marks) // every)
    assert len(windows_grid(("one", "other"), lanes).heads) <= 1 + WHOLE


def test_ten_thousand_batches_print_in_a_screenful() -> None:
    """Equal windows are one column with a count, and each that differs stands by itself."""
    lanes = lanes_of([("w", "s"), ("x", "x")] * 5000, 2)
    lanes[401] = Lane(lanes[401].column, ("x", "v"))
    assert grid_text(lanes_grid(("accumulate", "spikes"), lanes)).splitlines()[:5] == [
        "batch       0-399  400-401  402-9999",
        "----------  -----  -------  --------",
        "windows     200    1        4799",
        "accumulate  wx     wx       wx",
        "spikes      sx     sv       sx",
    ]
    mixed = grid_text(lanes_grid(("accumulate", "spikes"), lanes_of([("w", "s"), ("x", "v"), ("x", "x")] * 3334, 2)))
    assert len(mixed.splitlines()) < 10
    assert max(map(len, mixed.splitlines())) < 300


def test_a_real_long_trace_is_folded_in_both_twins() -> None:
    """A run of 300 micro-batches with one drop and one flush: a few columns, and a sentence with the counts."""
    traced = show.trace([Accumulate(every=2), SkipNonFinite()])
    shell = sgd_shell(Weight(), traced)
    for place in range(301):
        step(shell, float("nan") if place == 100 else 1e-3)
    shell.flush()
    text = str(traced.trace)
    assert text.splitlines()[0].split() == ["batch", "0-99", "100-101", "102-299", "300-flush"]
    assert text.splitlines()[3].split() == ["accumulate", "wx", "wx", "wx", "w/x"]
    assert "301 micro-batches in 151 windows and 1 flushed: 151 stepped, 151 waited, 1 dropped" in text
    page = parsed(traced.trace._repr_html_())
    assert "301 micro-batches" in page.words


def test_windows_stand_side_by_side() -> None:
    """A partial one is closed by its flush."""
    traced = show.trace([Accumulate(every=3), ClipNorm(max_norm=1.0)])
    shell = sgd_shell(Weight(), traced)
    for _ in range(5):
        step(shell, 1.0)
    shell.flush()
    assert str(traced.trace.windows()).splitlines() == [
        "window      0-2  3-flush",
        "----------  ---  -------",
        "accumulate  wwx  ww/x",
        "clip        ssx  ss/x",
    ]


def test_a_strict_shell_is_traced() -> None:
    """The same lanes as of one that is not."""
    found = []
    for strict in (False, True):
        traced = show.trace([Accumulate(every=2), ClipNorm(max_norm=1.0)], budget=1_000_000)
        shell = sgd_shell(Weight(), traced, strict=strict)
        for _ in range(3):
            step(shell, 1.0)
        found.append((str(traced.trace), traced.trace.kept_batches()))
    assert found[0] == found[1]
    assert found[0][1] == [0, 1, 2]


def loss_fn(params: Any, buffers: Any, batch: torch.Tensor) -> torch.Tensor:
    """Return a loss of one weight."""
    return (params["weight"] * batch).square().mean()


def test_an_empty_trace_says_so() -> None:
    """Before the first micro-batch, and where a step was compiled."""
    assert "no micro-batch is recorded" in str(show.trace(ClipNorm(max_norm=1.0)).trace)
    assert "no micro-batch is recorded" in str(show.trace([]).trace)


def test_a_long_trace_knows_its_batches() -> None:
    """Any micro-batch of two thousand is at hand, and what is missing is said in spans."""
    traced = show.trace([], budget=10_000)
    shell = sgd_shell(Weight(), traced)
    for _ in range(2_000):
        with shell.batch():
            pass
    assert traced.trace[1_999].verdict == "dropped, skipped"
    with pytest.raises(KeyError, match="it holds batches 0 to 1999"):
        _ = traced.trace[2_000]


def test_lanes_of_vmap_are_counted_and_said() -> None:
    """They come to what they come to untraced; the view says that they are not recorded."""
    hooks = [Accumulate(every=2), SkipNonFinite(), ClipNorm(max_norm=1.0)]
    ends = []
    for each in (hooks, show.trace(hooks, budget=1_000_000)):
        init, step_of, flush = pure.train_step(loss_fn, pure.sgd(0.1), each)
        state = stacked([init({"weight": torch.full((1,), 1.0 + lane)}) for lane in range(3)])
        for value in (1.0, float("nan"), 2.0):
            state = torch.func.vmap(step_of, in_dims=(0, None))(state, torch.tensor([value]))
        ends.append(torch.func.vmap(flush)(state).params["main"]["weight"])
    assert torch.equal(*ends)
    traced = each.trace
    assert (len(traced), traced.kept_batches()) == (0, [])
    assert "calls in lanes of vmap are not recorded" in str(traced)
    parsed(traced._repr_html_())


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (SkipSpikes(by=FixedLimit(limit=3.0)), "since loss 5 is not within the limit 3 of 'spikes'"),
        (SkipSpikes(by=FixedLimit(limit=3.0), drop=True), "since loss 5 is not within the limit 3 of 'spikes'"),
        (
            SkipSpikes(by=FixedLimit(limit=3.0), of="grad_norm"),
            "of 'clip' and grad_norm 5 is not within the limit 3 of 'spikes'",
        ),
    ],
)
def test_the_limit_that_was_exceeded_is_in_the_sentence(hook: Any, told: str) -> None:
    """Of a loss, of a dropped loss and of a norm; in both interpreters."""
    hooks = [ClipNorm(max_norm=0.5)] if hook.of == "grad_norm" else []
    traced, pure_traced = show.trace([*hooks, hook]), show.trace([*hooks, hook])
    step(sgd_shell(Weight(1.0), traced), 5.0)
    init, step_of, _ = pure.train_step(lambda params, _b, x: (params["w"] * x).sum(), pure.sgd(0.1), pure_traced)
    step_of(init({"w": torch.ones(1)}), torch.tensor([5.0]))
    for each in (traced, pure_traced):
        sentence = each.trace.why_skipped(0)
        assert sentence.endswith(told)
        assert sentence.count("\n") == 0


def test_an_overflow_is_told_with_the_loss_scale() -> None:
    """A loss scale has no limit; gradients overflow at it."""
    traced = show.trace([MixedPrecision(precision="float16", init_scale=1024.0)])
    step(sgd_shell(Weight(1.0), traced), 3e38)
    assert traced.trace.why_skipped(0).endswith("since gradients overflowed at loss scale 1024 of 'precision'")
