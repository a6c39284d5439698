"""What the demo keeps: a plot, the weights raw and averaged, and a summary; reading them runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import torch as safetensors
from torch import nn

from functrain.demo.report import empty_windows, vetoes
from functrain.demo.trial import Trial


def write_artifacts(trial: Trial) -> list[Path]:
    """Write all files into the folder of the options, which is made if need be; return their paths."""
    folder = trial.options.out
    folder.mkdir(parents=True, exist_ok=True)
    plot, summary = folder / "history.png", folder / "summary.json"
    raw, averaged = folder / "raw.safetensors", folder / "averaged.safetensors"
    trial.history.plot(plot)
    save_weights(trial.setup.model, raw)
    save_weights(trial.setup.shell.averaged_module("ema"), averaged)
    summary.write_text(json.dumps(summary_of(trial), indent=2) + "\n", encoding="utf-8")
    return [plot, raw, averaged, summary]


def save_weights(module: nn.Module, path: Path) -> None:
    """Write parameters and buffers under their plain names, as safetensors: loading them runs no code."""
    safetensors.save_file(
        {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}, path
    )


def summary_of(trial: Trial) -> dict[str, Any]:
    """Return what a run was and what came out of it, as JSON can hold it."""
    clock = trial.clock
    return {
        "options": trial.options.to_json(),
        "pipeline": [repr(hook) for hook in trial.setup.shell.pipeline],
        "clock": {
            "epoch": int(clock.epoch),
            "batch": int(clock.batch),
            "step": int(clock.step),
            "skipped": int(clock.skipped),
        },
        "vetoes": dict(vetoes(trial.history)),
        "empty_windows": empty_windows(trial.history),
        "accuracy": {"raw": trial.raw, "averaged": trial.averaged},
        "milliseconds_per_step": trial.milliseconds_per_step,
    }
