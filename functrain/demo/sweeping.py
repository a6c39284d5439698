"""``functrain sweep``: 64 runs at once, over learning rate and decay of the average."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import functrain
from functrain import TrainState, pure
from functrain.demo.digits import Batch, load_digits
from functrain.demo.network import network
from functrain.demo.options import SweepOptions
from functrain.demo.recipe import loss_of
from functrain.demo.trial import one_thread

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
DECAYS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
WIDTH = 8
BATCH_SIZE = 64
EXPLODED = 20.0
"""A loss that no lane comes back from: guessing costs 2.3."""


def hooks() -> functrain.Pipeline:
    """Return the pipeline of every lane: clip, skip NaN, give up after ten exploded losses in a row, average."""
    return functrain.fold(
        functrain.ClipNorm(max_norm=1.0),
        functrain.SkipNonFinite(),
        functrain.SkipSpikes(by=functrain.FixedLimit(limit=EXPLODED), max_consecutive=10),
        functrain.EMA(),
    )


@one_thread()
def swept(options: SweepOptions, *, progress: bool = True) -> pure.SweepTable:
    """Train every pair of rate and decay at once, and measure the averaged weights on digits they never saw.

    Uncompiled: compiling takes longer than these few steps.
    """
    torch.manual_seed(options.seed)
    digits = load_digits(options.seed, options.device)
    order = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(TensorDataset(*digits.train), batch_size=BATCH_SIZE, shuffle=True, generator=order)
    model = network(WIDTH).to(options.device)
    run = pure.train_step(pure.functional(model, loss_fn=loss_of), pure.adamw(), hooks())
    table = pure.sweep(
        run.init,
        run.step,
        over={"lr": RATES, "hooks.ema.decay": DECAYS},
        batches=loader,
        params=pure.parameters(model),
        buffers=pure.buffers(model),
        epochs=options.epochs,
        flush=run.flush,
        progress=progress,
        compile=False,
    )
    return table.measured("accuracy", held_out_accuracy(model, digits.held_out))


def held_out_accuracy(model: torch.nn.Module, examples: Batch) -> Callable[[TrainState], Tensor]:
    """Return what measures the averaged weights of a state, in eval mode, lane by lane under vmap."""
    judge = copy.deepcopy(model).eval()
    images, labels = examples

    def accuracy(state: TrainState) -> Tensor:
        slot = state.hooks["ema"]
        scores: Tensor = torch.func.functional_call(judge, {**slot["shadow"], **slot["buffers"]}, (images,))
        return (scores.argmax(dim=1) == labels).double().mean()

    return accuracy
