"""pure.check: the skip limits of a shell, for those who run the step themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import functrain
from functrain import Accumulate, FixedLimit, Shell, SkipLimitError, SkipNonFinite, SkipSpikes, pure
from functrain.pure.lanes import stacked
from tests.pure.sweeping import tiny

NAN = float("nan")
VALUES = st.sampled_from([1.0, 1.0, 50.0, NAN])


def pipelines() -> Any:
    """Return pipelines with small limits."""
    limits = st.integers(0, 3)
    finite = st.builds(SkipNonFinite, drop=st.booleans(), max_consecutive=limits | st.none())
    spikes = st.builds(lambda limit: SkipSpikes(by=FixedLimit(limit=9.0), max_consecutive=limit), limits)
    windows = st.builds(Accumulate, every=st.integers(1, 3))
    wrapped = finite.map(lambda hook: functrain.every(1, hook))
    return st.one_of(finite.map(lambda hook: [hook]), st.tuples(windows, finite, spikes), st.tuples(windows, wrapped))


class Weight(nn.Module):
    """One weight that is pulled to what a batch holds."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the squared distance."""
        return (self.w - x).square()


def shell_says(shell: Shell, model: Weight, x: torch.Tensor) -> str:
    """Run a micro-batch and return the error, if any."""
    try:
        with shell.batch():
            shell.update(model(x))
    except SkipLimitError as error:
        return str(error)
    return ""


def check_says(state: functrain.TrainState) -> str:
    """Return the error of a check, if any."""
    try:
        pure.check(state)
    except SkipLimitError as error:
        return str(error)
    return ""


@given(pipelines(), st.lists(VALUES, max_size=12))
def test_it_raises_where_the_shell_raises(hooks: Any, values: list[float]) -> None:
    """Asked after every micro-batch it says nothing or the very words of the shell, which stops at the first hook."""
    model, run = Weight(), tiny(hooks, lr=0.01)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.01), [*hooks])
    state = run.init({"w": torch.zeros((), dtype=torch.float64)})
    for value in values:
        x = torch.tensor(value, dtype=torch.float64)
        state = run.step(state, x)
        told = check_says(state)
        assert told.split("\n")[0] == shell_says(shell, model, x)
        assert told == check_says(shell.state)


def test_a_flush_is_checked_like_a_batch() -> None:
    """A partial window of NaN is vetoed when it is flushed, in both."""
    hooks = [Accumulate(every=2), SkipNonFinite(drop=False, max_consecutive=0)]
    model, run = Weight(), tiny(hooks)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
    state = run.step(run.init({"w": torch.zeros((), dtype=torch.float64)}), torch.tensor(NAN))
    assert shell_says(shell, model, torch.tensor(NAN)) == check_says(state) == ""
    with pytest.raises(SkipLimitError) as raised:
        shell.flush()
    assert check_says(run.flush(state)) == str(raised.value)


def test_stacked_states_are_told_by_lane() -> None:
    """One line for each lane past a limit, with the numbers of that lane."""
    run = tiny([SkipNonFinite(max_consecutive=1)])
    states = [run.init({"w": torch.zeros(())})] * 3
    fed = ([1.0, NAN, NAN], [1.0, 1.0, 1.0], [NAN, NAN, NAN])
    for lane, values in enumerate(fed):
        for value in values:
            states[lane] = run.step(states[lane], torch.tensor(value))
    with pytest.raises(SkipLimitError) as raised:
        pure.check(stacked(states))
    first, second = str(raised.value).splitlines()
    assert first.startswith("lane 0: 'finite' skipped again: 2 optimizer steps in a row were skipped since batch 1")
    assert second.startswith("lane 2: 'finite' skipped again: 3 optimizer steps in a row were skipped since batch 0")
    pure.check(stacked([states[1], states[1]]))


def test_lanes_of_lanes_are_told_by_both_numbers() -> None:
    """A sweep of sweeps has two places per lane."""
    run = tiny([SkipNonFinite(max_consecutive=0)])
    good = run.step(run.init({"w": torch.zeros(())}), torch.tensor(1.0))
    bad = run.step(run.init({"w": torch.zeros(())}), torch.tensor(NAN))
    with pytest.raises(SkipLimitError, match=r"^lane 1, 0: 'finite'[^\n]*$"):
        pure.check(stacked([stacked([good, good]), stacked([bad, good])]))


def test_every_hook_past_its_limit_is_named() -> None:
    """Two hooks that both drop a micro-batch give two lines."""
    spikes = SkipSpikes(by=FixedLimit(limit=9.0), drop=True, max_consecutive=0)
    run = tiny([SkipNonFinite(max_consecutive=0), spikes])
    state = run.step(run.init({"w": torch.zeros(())}), torch.tensor(NAN))
    assert [line.split()[0] for line in check_says(state).splitlines()] == ["'finite'", "'spikes'"]


def test_without_limits_there_is_nothing_to_check() -> None:
    """None means no limit, and a state of nothing passes."""
    run = tiny([SkipNonFinite(max_consecutive=None)])
    state = run.init({"w": torch.zeros(())})
    for _ in range(5):
        state = run.step(state, torch.tensor(NAN))
    assert state.clock.consecutive_skips == 5
    assert check_says(state) == check_says(functrain.TrainState()) == ""
