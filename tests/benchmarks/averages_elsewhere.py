"""The update of an average as other packages do it; a builder raises ImportError where its package is not installed."""

from __future__ import annotations

import copy
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.benchmarks.measuring import Contender, Repeated, imported

DECAY = 0.999


def ema_pytorch(model: nn.Module) -> Contender:
    """Return ema-pytorch as it comes."""
    return _ema_pytorch(model)


def ema_pytorch_foreach(model: nn.Module) -> Contender:
    """Return ema-pytorch with its grouped kernels."""
    return _ema_pytorch(model, use_foreach=True)


def _ema_pytorch(model: nn.Module, **options: Any) -> Contender:
    """Return ema-pytorch with a constant decay: no warm-up, every step."""
    built = imported("ema_pytorch").EMA(
        model,
        ema_model=copy.deepcopy(model).float(),
        beta=DECAY,
        min_value=DECAY,
        update_after_step=0,
        update_every=1,
        include_online_model=False,
        coerce_dtype=next(model.parameters()).dtype is not torch.float32,
        **options,
    )
    return Repeated(built.update, model.parameters, built.ema_model.parameters)


def timm_ema(model: nn.Module) -> Contender:
    """Return timm's average, which takes grouped kernels by default."""
    low = next(model.parameters()).dtype is not torch.float32
    average = timm_module().ModelEmaV3(model, decay=DECAY, dtype=torch.float32 if low else None)
    return Repeated(lambda: average.update(model), model.parameters, average.module.parameters)


def timm_module() -> Any:
    """Import the one file of timm that is measured, also where its package cannot be imported.

    Raises:
        ImportError: timm is not installed.
    """
    try:
        return imported("timm.utils.model_ema")
    except ImportError:  # no torchvision, or one that does not fit torch
        return _without_package("timm", "utils/model_ema.py")


def _without_package(package: str, file: str) -> Any:
    """Run one file of a package that is installed, without the package's own code."""
    found: ModuleSpec | None = find_spec(package)
    folders = found.submodule_search_locations if found else None
    spec = spec_from_file_location(f"_{package}", Path(folders[0]) / file) if folders else None
    if spec is None or spec.loader is None:
        msg = f"no {file} in {package}"
        raise ImportError(msg)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lightning_callback(model: nn.Module) -> Contender:
    """Return Lightning's callback, told that a batch has ended and a step was taken."""
    pytorch = imported("lightning.pytorch")
    module = pytorch.LightningModule()
    module.model = model
    trainer = SimpleNamespace(global_step=0)
    callback = pytorch.callbacks.EMAWeightAveraging(decay=DECAY)
    callback.setup(trainer, module, "fit")
    average = callback._average_model.module.float()

    def update() -> None:
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, None, trainer.global_step)

    return Repeated(update, model.parameters, average.parameters)
