"""How the demo trains: the hooks, the optimizer and the schedule, put into one shell."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR

import functrain
from functrain.demo.digits import Batch
from functrain.demo.options import Options

RATE = 0.02
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
    warm_up = LinearLR(optimizer, start_factor=0.1, total_iters=max(1, steps // 10))
    return functrain.Shell(model, optimizer, hooks(options, steps), schedulers=warm_up)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of a batch under smoothed labels."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels, label_smoothing=0.1)
