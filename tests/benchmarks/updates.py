"""One training update in several hands: norm clip, finite and spike veto, AdamW, average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from functrain import EMA, ClipNorm, MovingMean, SkipNonFinite, SkipSpikes, TrainState, _tree, pure
from tests.benchmarks.measuring import Update
from tests.benchmarks.networks import Batch, Network

DECAY, MAX_NORM, RATIO = 0.999, 1.0, 3.0
HOOKS = (
    ClipNorm(max_norm=MAX_NORM),
    SkipNonFinite(drop=False),
    SkipSpikes(by=MovingMean(ratio=RATIO)),
    EMA(decay=DECAY),
)
Compiled = Callable[[Any], Any]


def eager_loop(network: Network) -> Update:
    """Return the update as a loop would write it."""
    return _loop(network, lambda model: model, lambda step: step)


def compiled_loop(network: Network) -> Update:
    """Return the same loop with a compiled model and a compiled optimizer."""
    return _loop(network, torch.compile, torch.compile)


def _loop(network: Network, forward_of: Compiled, step_of: Compiled) -> Update:
    """Return a loop's update."""
    model = network.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    parameters, mean = list(model.parameters()), torch.tensor(float("inf"))
    forward, step = forward_of(model), step_of(optimizer.step)
    inputs, target = network.batch

    def update() -> None:
        nonlocal mean
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(inputs), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        if torch.isfinite(norm) and loss <= RATIO * mean:
            step()
            average.update_parameters(model)
            mean = torch.where(mean.isinf(), loss.detach(), 0.9 * mean + 0.1 * loss.detach())

    return update


def torch_compiled(network: Network) -> Update:
    """Return one pure step under ``torch.compile``."""
    step, state = _pure(network)
    return _updating(torch.compile(step, fullgraph=True), state(0), network.batch)


def compiled(network: Network) -> Update:
    """Return one pure step under ``pure.compiled``."""
    step, state = _pure(network)
    return _updating(pure.compiled(step), state(0), network.batch)


def donated(network: Network, **options: Any) -> Update:
    """Return the same, with results written over the state that is given."""
    step, state = _pure(network)
    return _updating(pure.compiled(step, **options), state(0).replace(donated=True), network.batch)


def donated_to_cpp(network: Network) -> Update:
    """Return the same, called from C++."""
    return donated(network, options={"cpp_wrapper": True})


def lanes(network: Network, count: int, chunk: int) -> Update:
    """Return one compiled step of many models at once, some at a time, donated."""
    step, state = _pure(network)
    every = pure.compiled(torch.func.vmap(step, in_dims=(0, None)))
    seeds = [range(first, min(first + chunk, count)) for first in range(0, count, chunk)]
    starts = [_stacked([state(seed) for seed in part]).replace(donated=True) for part in seeds]
    parts = [_updating(every, start, network.batch) for start in starts]

    def update() -> None:
        for each in parts:
            each()

    return update


def _pure(network: Network) -> tuple[Any, Callable[[int], TrainState]]:
    """Return the pure step of a network, and its first state by seed."""
    template = network.build()

    def loss_fn(params: dict[str, Tensor], _buffers: dict[str, Tensor], batch: Batch) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(template, params, (batch[0],)), batch[1])

    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-3), HOOKS)
    return step, lambda seed: init(dict(network.build().named_parameters()), seed=seed)


def _stacked(states: list[TrainState]) -> Any:
    return _tree.map_leaves(lambda *leaves: torch.stack(leaves), *states)


def _updating(step: Callable[[Any, Batch], Any], state: Any, batch: Batch) -> Update:
    """Return an update that takes a state along."""

    def update() -> None:
        nonlocal state
        state = step(state, batch)

    return update
