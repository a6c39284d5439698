"""One whole update in several hands: accumulate, norm clip, finite skip, AdamW, average.

Each builder takes a model of its own and the batch; the loss is the mean square of what the model returns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipNonFinite
from tests.benchmarks.measuring import Contender, Repeated, Update

DECAY, MAX_NORM = 0.999, 1.0
RAW, LOOP = "loop, raw cached _foreach_lerp_", "loop, AveragedModel"
Builder = Callable[[nn.Module, Tensor], Contender]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all contenders."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the loss of all contenders."""
    return model(x).square().mean()


def through_the_shell(model: nn.Module, x: Tensor) -> Contender:
    """Return the update through hooks."""
    hooks = [Accumulate(every=1), ClipNorm(max_norm=MAX_NORM), SkipNonFinite(drop=False), EMA(decay=DECAY)]
    shell = Shell(model, adamw(model), hooks)

    def update() -> None:
        with shell.batch():
            shell.update(loss_of(model, x))

    return Repeated(update, model.parameters, lambda: shell.averaged_module().parameters())


def loop_with_averaged_model(model: nn.Module, x: Tensor) -> Contender:
    """Return the update as a loop would write it, with torch's averaged model."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    update = _loop(model, x, lambda: average.update_parameters(model))
    return Repeated(update, model.parameters, average.module.parameters)


def loop_with_raw_average(model: nn.Module, x: Tensor) -> Contender:
    """Return the same loop with the one kernel of the average on lists that were made once."""
    weights = [each.detach() for each in model.parameters()]
    shadow: list[Tensor] = []

    def follow() -> None:
        if shadow:
            torch._foreach_lerp_(shadow, weights, 1 - DECAY)
        else:
            shadow.extend(each.clone() for each in weights)

    return Repeated(_loop(model, x, follow), model.parameters, lambda: shadow)


def _loop(model: nn.Module, x: Tensor, follow: Update) -> Update:
    """Return a loop's update around that of the average."""
    optimizer, parameters = adamw(model), list(model.parameters())

    def update() -> None:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        if torch.isfinite(loss) and torch.isfinite(norm):
            optimizer.step()
            follow()

    return update


HERE: dict[str, Builder] = {
    "functrain Shell": through_the_shell,
    LOOP: loop_with_averaged_model,
    RAW: loop_with_raw_average,
}
