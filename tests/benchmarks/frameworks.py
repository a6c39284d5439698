"""The whole update as frameworks run it; a builder raises ImportError where its framework is not installed."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from tests.benchmarks.measuring import Contender, Repeated, imported
from tests.benchmarks.whole_updates import DECAY, HERE, MAX_NORM, Builder, adamw, loss_of


def accelerate_loop(model: nn.Module, x: Tensor) -> Contender:
    """Return a loop over what Accelerate has prepared, with torch's averaged model."""
    accelerator = imported("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=1)
    model, optimizer = accelerator.prepare(model, adamw(model))
    average = AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=get_ema_multi_avg_fn(DECAY))

    def update() -> None:
        with accelerator.accumulate(model):
            loss = loss_of(model, x)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            if torch.isfinite(loss) and torch.isfinite(norm):
                optimizer.step()
                average.update_parameters(accelerator.unwrap_model(model))
            optimizer.zero_grad()

    return Repeated(update, model.parameters, average.module.parameters)


def nvalchemi_orchestrator(model: nn.Module, x: Tensor) -> Contender:
    """Return nvalchemi-toolkit's orchestrator and averaging hook, with hooks for what it does not bring."""
    imported("nvalchemi.training.hooks")
    driver, user = (imported(f"tests.peer.{name}") for name in ("driver", "user_hooks"))
    clip, average = user.PeerClipNorm(MAX_NORM), driver.EMAHook(decay=DECAY)
    hooks = [user.PeerAccumulate(1), clip, user.PeerFinite(clip), average]
    run = driver.PeerRun({"main": model}, [adamw(model)], hooks)
    found = average.get_averaged_model().module.parameters
    return Repeated(lambda: run.batch(lambda: loss_of(model, x)), model.parameters, found)


def lightning_trainer(model: nn.Module, x: Tensor) -> Contender:
    """Return Lightning's trainer with the average that its EMA callback takes, tensor by tensor."""
    return _Lightning(model, x, {"avg_fn": get_ema_avg_fn(DECAY)})


def lightning_trainer_foreach(model: nn.Module, x: Tensor) -> Contender:
    """Return Lightning's trainer with torch's foreach average."""
    return _Lightning(model, x, {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)})


class _Stamped:
    """A loader of one batch again and again, which notes when it is asked for the next."""

    def __init__(self, batch: Tensor, count: int) -> None:
        self.batch, self.count = batch, count
        self.stamps: list[float] = []

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.count):
            self.stamps.append(time.perf_counter())
            yield self.batch

    def __len__(self) -> int:
        return self.count


class _Lightning:
    """Lightning's trainer, which drives the loop itself: what lies between two batches is one update."""

    def __init__(self, model: nn.Module, x: Tensor, average: dict[str, Any]) -> None:
        self.pytorch = imported("lightning.pytorch")
        self.model, self.x, self.average_options = model, x, average
        self.module = _module(self.pytorch.LightningModule, model)
        self.callback: Any = None
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def block(self, count: int) -> list[float]:
        """Fit for so many updates and one more, which ends the last that is timed."""
        loader = _Stamped(self.x, count + 1)
        self._fit(loader, count + 1)
        return [1e3 * (after - before) for before, after in pairwise(loader.stamps)]

    def _fit(self, loader: _Stamped, steps: int) -> None:
        """Run a trainer without all that is not the update."""
        self.callback = _averaging(self.pytorch.callbacks.WeightAveraging)(**self.average_options)
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = self.pytorch.Trainer(
                accelerator="cpu",
                max_steps=steps,
                gradient_clip_val=MAX_NORM,
                accumulate_grad_batches=1,
                callbacks=[self.callback],
                **dict.fromkeys(quiet, False),
            )
            trainer.fit(self.module, loader)

    def weights(self) -> Iterable[Tensor]:
        """Return the weights after the latest block."""
        return self.model.parameters()

    def average(self) -> Iterable[Tensor]:
        """Return the average over the latest block."""
        return self.callback._average_model.module.parameters()


def _averaging(base: Any) -> Any:
    """Return Lightning's callback, which leaves the raw weights in the model when a block ends."""

    class Averaging(base):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            pass

    return Averaging


def _module(base: Any, model: nn.Module) -> Any:
    """Return a model as Lightning wants it; what is not finite is not stepped."""
    optimizer = adamw(model)

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Tensor, _place: int) -> Tensor | None:
            loss = loss_of(self.model, batch)
            return loss if torch.isfinite(loss) else None

        def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, **_: Any) -> None:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), gradient_clip_val)
            if not torch.isfinite(norm):
                optimizer.zero_grad()

    return Module()


ALL: dict[str, Builder] = {
    **HERE,
    "Accelerate, AveragedModel": accelerate_loop,
    "nvalchemi-toolkit orchestrator": nvalchemi_orchestrator,
    "Lightning, WeightAveraging per tensor": lightning_trainer,
    "Lightning, WeightAveraging foreach": lightning_trainer_foreach,
}
