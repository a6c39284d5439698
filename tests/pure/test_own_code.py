"""Many runs of one process: each is compiled by itself, as often as one wishes."""

from __future__ import annotations

import inspect
import os

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from functrain import pure
from functrain.pure.own_code import with_own_code

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def run_of(factor: float) -> pure.TrainStep:
    """Return a run of one weight whose gradient is a given number."""
    return pure.train_step(lambda params, _, x: params["w"] * x * factor, pure.sgd(1.0), [])


def steps_compile(count: int) -> None:
    """Compile the steps of several runs, each to one graph, in which it computes its own loss."""
    torch._dynamo.reset()
    for place in range(count):
        run, counter = run_of(float(place)), CompileCounter()
        step = torch.compile(run.step, fullgraph=True, backend=counter)
        state = run.init({"w": torch.zeros(())})
        for _ in range(2):
            state = step(state, torch.ones(()))
        assert counter.frame_count == 1
        assert float(state.params["main"]["w"]) == -2.0 * place


@pytest.mark.slow
def test_more_steps_compile_than_torch_recompiles_one_function() -> None:
    """Two runs where torch compiles one function at most once: each has its own graph."""
    with torch._dynamo.config.patch(recompile_limit=1):
        steps_compile(2)


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="takes a minute; HYPOTHESIS_PROFILE=thorough does it")
def test_ten_steps_compile_in_one_process() -> None:
    """The same with torch's own limit of eight."""
    assert torch._dynamo.config.recompile_limit < 10
    steps_compile(10)


@pytest.mark.slow
def test_ten_flushes_compile_in_one_process() -> None:
    """The same for flushes, which are compiled sooner."""
    assert torch._dynamo.config.recompile_limit < 10
    torch._dynamo.reset()
    for _ in range(10):
        run, counter = run_of(1.0), CompileCounter()
        flush = torch.compile(run.flush, fullgraph=True, backend=counter)
        assert int(flush(run.init({"w": torch.zeros(())})).clock.epoch) == 1
        assert counter.frame_count == 1


def test_steps_share_no_code_and_look_as_written() -> None:
    """Two runs have two code objects, of equal names, signatures and documentation, bound to their own engines."""
    first, second = run_of(1.0), run_of(1.0)
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one.__code__ is not other.__code__
        assert one.__self__ is not other.__self__
        assert (one.__qualname__, one.__doc__) == (other.__qualname__, other.__doc__)
        assert inspect.signature(one) == inspect.signature(getattr(one.__self__, one.__name__))
    assert first.step.__self__.pipeline == second.step.__self__.pipeline


def test_a_function_keeps_what_belongs_to_it() -> None:
    """Defaults, keyword defaults, closure and annotations are those of the function itself."""
    base = torch.ones(())

    def shifted(x: Tensor, by: float = 2.0, *, times: float = 3.0) -> Tensor:
        """Say what it does."""
        return (x + by) * times + base

    own = with_own_code(shifted)
    assert own(base) == shifted(base) == 10.0
    assert own(base, 1.0, times=1.0) == 3.0
    assert (own.__doc__, own.__name__, own.__annotations__) == (shifted.__doc__, "shifted", shifted.__annotations__)
