"""One update of an average in several hands: the hook here, torch's own ways, and the loop that Composer runs.

Each builder takes a model whose weights it only reads. The shadow is float32, also beside bfloat16 weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from functrain import EMA, Shell, Stage
from tests.benchmarks import averages_elsewhere as elsewhere
from tests.benchmarks.measuring import Contender, Repeated

DECAY = elsewhere.DECAY
RAW, AVERAGED_MODEL = "raw _foreach_lerp_, cached lists", "AveragedModel, foreach average"


def functrain_hook(model: nn.Module) -> Contender:
    """Return the hook at its stage, on the donated state of a shell whose optimizer has just stepped."""
    hook = EMA(decay=DECAY)
    state = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hook).state
    state = state.replace(stepped=dict.fromkeys(state.stepped, True))

    def update() -> None:  # on detached tensors, as the raw kernel: neither needs a mode
        nonlocal state
        state = hook(state, Stage.AFTER_OPTIMIZER_STEP, False).state

    def average() -> Iterable[Tensor]:
        return state.slot(hook.name)["shadow"].values()

    return Repeated(update, model.parameters, average)


def raw(model: nn.Module) -> Contender:
    """Return the one kernel that does the work, on lists that were made once; bf16 is staged in float32 first."""
    weights = [each.detach() for each in model.parameters()]
    shadow = [each.float().clone() for each in weights]
    if weights[0].dtype is torch.float32:
        return Repeated(lambda: torch._foreach_lerp_(shadow, weights, 1 - DECAY), model.parameters, lambda: shadow)
    staged = [torch.empty_like(each) for each in shadow]

    def update() -> None:
        torch._foreach_copy_(staged, weights)
        torch._foreach_lerp_(shadow, staged, 1 - DECAY)

    return Repeated(update, model.parameters, lambda: shadow)


def averaged_model(model: nn.Module) -> Contender:
    """Return torch's averaged model with its foreach average.

    Raises:
        NotImplementedError: bf16 weights, which its kernel does not take beside a float32 shadow.
    """
    if next(model.parameters()).dtype is not torch.float32:
        msg = "the foreach average wants weights and shadow of one dtype"
        raise NotImplementedError(msg)
    return _through(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)), model)


def averaged_model_per_tensor(model: nn.Module) -> Contender:
    """Return torch's averaged model with its average per tensor."""
    return _through(AveragedModel(model, avg_fn=get_ema_avg_fn(DECAY)), model)


def _through(average: AveragedModel, model: nn.Module) -> Contender:
    """Return a contender that updates an averaged model."""
    average.module.float()
    return Repeated(lambda: average.update_parameters(model), model.parameters, average.module.parameters)


def composer_loop(model: nn.Module) -> Contender:
    """Return the loop over tensors of Composer's EMA, written by hand: Composer wants an older torch."""
    average = copy.deepcopy(model).float()

    def tensors_of(module: nn.Module) -> Iterable[Tensor]:
        return chain(module.parameters(), module.buffers())

    @torch.no_grad()
    def update() -> None:
        for mean, weight in zip(tensors_of(average), tensors_of(model), strict=True):
            mean.copy_(mean * DECAY + (1.0 - DECAY) * weight.detach())

    return Repeated(update, model.parameters, average.parameters)


HERE: dict[str, Callable[[nn.Module], Contender]] = {
    "functrain EMA": functrain_hook,
    RAW: raw,
    AVERAGED_MODEL: averaged_model,
    "AveragedModel, per-tensor average": averaged_model_per_tensor,
    "Composer's loop, by hand": composer_loop,
}
ALL = {
    **HERE,
    "ema-pytorch": elsewhere.ema_pytorch,
    "ema-pytorch, use_foreach": elsewhere.ema_pytorch_foreach,
    "timm ModelEmaV3": elsewhere.timm_ema,
    "Lightning EMAWeightAveraging": elsewhere.lightning_callback,
}
