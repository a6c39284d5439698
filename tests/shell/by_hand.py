"""The training loop that everybody writes by hand, and the same recipe as a pipeline of hooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from functrain import EMA, Accumulate, ClipNorm, ClipValue, Hook, MixedPrecision, SkipNonFinite
from tests.shell.plants import Batch, Plant

FREE = {"min_scale": 2.0**-60, "max_scale": 2.0**100}
"""No bounds on the loss scale: GradScaler has none."""


def clamp(leaves: list[Tensor], limit: float) -> None:
    """Clamp finite elements; what is not finite stays for the finite check."""
    before = [(leaf, leaf.grad.clone()) for leaf in leaves if leaf.grad is not None]
    clip_grad_value_(leaves, limit)
    for leaf, grad in before:
        leaf.grad = torch.where(grad.isfinite(), leaf.grad, grad)


@dataclass(frozen=True)
class Recipe:
    """What a run does, for both ways of doing it."""

    every: int = 1
    partial: str = "flush"
    weighted: bool = False
    precision: str = "fp32"
    scale: tuple[tuple[str, Any], ...] = (("init_scale", 65536.0),)
    clips: tuple[tuple[str, Any], ...] = ()
    skips: bool = False
    average: tuple[tuple[str, Any], ...] | None = None

    def hooks(self, plant: Plant) -> list[Hook]:
        """Return the recipe as hooks, in an order that the priorities have to repair."""
        kinds: dict[str, Any] = {"norm": lambda limit: ClipNorm(max_norm=limit[0], norm_type=limit[1])}
        kinds["value"] = lambda limit: ClipValue(clip_value=limit)
        averages = [] if self.average is None else [EMA(model_key=key, **dict(self.average)) for key in plant.modules]
        precision = MixedPrecision(precision=self.precision, max_consecutive=None, **dict(self.scale), **FREE)
        skips = [SkipNonFinite(max_consecutive=None)] if self.skips else []
        clips = [kinds[kind](limit) for kind, limit in self.clips]
        return [*averages, *skips, *clips, precision, Accumulate(every=self.every, partial=self.partial)]  # type: ignore[arg-type]


class ByHand:
    """zero_grad, autocast, scale, backward, unscale_, clip, step, update, scheduler, average: written out."""

    def __init__(self, plant: Plant, recipe: Recipe) -> None:
        """Set up what the recipes of torch ask for."""
        self.plant, self.recipe = plant, recipe
        self.scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "fp16", **dict(recipe.scale))
        rule = dict(recipe.average or ())
        self.decay, self.rule = rule.pop("decay", 0.5), {"update_every": 1, "start_step": 0, **rule}
        self.averages = {key: self._average(each) for key, each in plant.modules.items()}
        self.completed = dict.fromkeys(plant.modules, 0)
        self.presented, self.entered, self.total, self.unit = 0, 0, 0.0, 0.0
        self.steps = self.skips = 0

    def _average(self, module: nn.Module) -> AveragedModel:
        rule = dict(self.recipe.average or ())
        return AveragedModel(
            module, multi_avg_fn=get_ema_multi_avg_fn(self.decay), use_buffers=rule.get("use_buffers", True)
        )

    def micro(self, batch: Batch, last: bool) -> None:
        """Train on one micro-batch."""
        if not self.presented:
            self._clear()
        kept = [(held, held.clone()) for each in self.plant.modules.values() for held in each.buffers()]
        with self._autocast():
            loss = self.plant.loss_of(batch)
        self.presented += 1
        self.unit = self.unit or 2.0 ** math.ceil(math.log2(batch.weight))  # also of one that is dropped
        if self.recipe.skips and not loss.isfinite():
            for held, copy in kept:
                held.copy_(copy)
        else:
            self._backward(loss, batch.weight)
        if self.presented == self.recipe.every or (last and self.recipe.partial == "flush"):
            self._boundary()
        elif last:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Do with a partial window what the policy says."""
        if self.presented and self.recipe.partial == "flush":
            self._boundary()
        if self.recipe.partial == "drop":
            self._close()
            self._clear()

    def _autocast(self) -> Any:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        kind = kinds.get(self.recipe.precision)
        return nullcontext() if kind is None else torch.autocast("cpu", kind)

    def _clear(self) -> None:
        for optimizer in self.plant.optimizers.values():
            optimizer.zero_grad()

    def _backward(self, loss: Tensor, weight: float) -> None:
        """Divide, or weigh, then scale; fp16 takes weights in units of a power of two."""
        if self.recipe.weighted:
            if self.recipe.precision == "fp16":
                weight = weight / self.unit
            loss = loss * weight
        elif self.recipe.every > 1:
            loss = loss / self.recipe.every
        self.scaler.scale(loss).backward()
        self.entered, self.total = self.entered + 1, self.total + weight

    def _boundary(self) -> None:
        """Unscale, correct, judge, clip, step, update, schedule, average."""
        if not self.entered:
            self.skips += 1
            self._close()
            return
        busy = {key: each for key, each in self.plant.optimizers.items() if list(gradients(each))}
        for optimizer in busy.values():
            self.scaler.unscale_(optimizer)
        self._correct()
        bad = {key for key, each in busy.items() if not all(grad.isfinite().all() for grad in gradients(each))}
        stops = bad == set(busy) if self.scaler.is_enabled() else bool(bad) and self.recipe.skips
        if not stops:
            self._clip(bad)
            self._step(busy, bad if self.scaler.is_enabled() else set())
        if self.scaler.is_enabled():
            self.scaler.update()
        self.steps, self.skips = self.steps + (not stops), self.skips + stops
        self._close()

    def _correct(self) -> None:
        """Make the gradients the mean over what entered."""
        factor = 1.0 / self.total if self.recipe.weighted else self.recipe.every / self.entered
        for optimizer in self.plant.optimizers.values() if factor != 1.0 else ():
            for grad in gradients(optimizer):
                grad.mul_(factor)

    def _clip(self, bad: set[str]) -> None:
        """Clip over everything that will be applied, in the order in which models list their parameters."""
        for grad in (grad for key in bad for grad in gradients(self.plant.optimizers[key])):
            grad.zero_()  # it will not be applied, and must not count
        leaves = [leaf for each in self.plant.modules.values() for leaf in each.parameters()]
        for kind, limit in self.recipe.clips:
            if kind == "norm":
                clip_grad_norm_(leaves, limit[0], norm_type=limit[1])
            else:
                clamp(leaves, limit)

    def _step(self, busy: dict[str, Any], bad: set[str]) -> None:
        """Step each optimizer that did not overflow, its scheduler, and the average of its model."""
        for key, optimizer in self.plant.optimizers.items():
            if key in busy:
                self.scaler.step(optimizer)
            if key not in bad and self.plant.schedulers[key] is not None:
                with_step(optimizer, self.plant.schedulers[key], ran=key in busy)
        for key, module in self.plant.modules.items():
            if self._owners(module) - bad:
                self._follow(key, module)

    def _owners(self, module: nn.Module) -> set[str]:
        own = {id(leaf) for leaf in module.parameters()}
        return {key for key, each in self.plant.optimizers.items() if own & {id(leaf) for leaf in held(each)}}

    def _follow(self, key: str, module: nn.Module) -> None:
        self.completed[key] += 1
        if self.completed[key] >= self.rule["start_step"] and self.completed[key] % self.rule["update_every"] == 0:
            self.averages[key].update_parameters(module)

    def _close(self) -> None:
        self.presented, self.entered, self.total = 0, 0, 0.0


def held(optimizer: Any) -> Iterator[Tensor]:
    """Yield the parameters of an optimizer."""
    return (leaf for group in optimizer.param_groups for leaf in group["params"])


def gradients(optimizer: Any) -> Iterator[Tensor]:
    """Yield the gradients that an optimizer would apply."""
    return (leaf.grad for leaf in held(optimizer) if leaf.grad is not None)


def with_step(optimizer: Any, scheduler: Any, *, ran: bool) -> None:
    """Advance a scheduler; one whose optimizer has nothing to apply still gets its step, as an empty update."""
    if not ran:
        optimizer.step()
    scheduler.step()
