"""How the demo trains: the hooks, the optimizer and the schedule, put into one shell."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR

import functrain
from functrain.demo.digits import Batch
from functrain.demo.options import Options
from functrain.pure.schedule import Schedule

RATE = 0.02
FIRST = 0.1
"""Fraction of the rate that the first step has."""
SPIKE = 3.0
"""How many times its moving mean a loss must be to count as a spike. Smoothed labels keep the loss of a good
batch from approaching 0, and so this ratio from being met by chance."""


def hooks(options: Options, steps: int) -> functrain.Pipeline:
    """Return the pipeline: accumulate, precision, clip, skip NaN, skip spikes, average.

    The average begins after a quarter of the steps: earlier weights are too far off to be worth averaging.
    """
    return functrain.fold(
        functrain.Accumulate(every=options.accumulate),
        functrain.MixedPrecision(precision=options.precision),
        functrain.ClipNorm(max_norm=1.0),
        functrain.SkipNonFinite(),
        functrain.SkipSpikes(by=functrain.MovingMean(ratio=SPIKE)),
        functrain.EMA(decay=options.decay, start_step=steps // 4),
    )


def build_shell(model: nn.Module, options: Options, steps: int) -> functrain.Shell:
    """Put a model, AdamW and a warm-up over the first tenth of the steps into a shell.

    After the warm-up the rate stays high: the raw weights keep moving, and averaging has something to do.
    """
    optimizer = AdamW(model.parameters(), lr=RATE)
    scheduler = LinearLR(optimizer, start_factor=FIRST, total_iters=warm_up_steps(steps))
    return functrain.Shell(model, optimizer, hooks(options, steps), schedulers=scheduler)


def warm_up_steps(steps: int) -> int:
    """Return how many of the steps the warm-up takes."""
    return max(1, steps // 10)


def warm_up(steps: int) -> Schedule:
    """Return the same warm-up as a function of the step, for the pure engine.

    >>> import torch
    >>> schedule = warm_up(20)
    >>> [round(float(schedule(torch.tensor(step))), 4) for step in range(4)]
    [0.002, 0.011, 0.02, 0.02]
    """
    last = warm_up_steps(steps)
    return lambda step: RATE * (FIRST + (1.0 - FIRST) * step.double().clamp(max=last) / last)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of a batch under smoothed labels."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels, label_smoothing=0.1)
