"""A pipeline in the shell beside the same recipe written by hand with torch: bitwise, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import Shell
from tests.shell.by_hand import ByHand, Recipe
from tests.shell.plants import LOSSES, MODELS, OPTIMIZERS, SCHEDULERS, WIDTH, Batch, Plant, built

PLANTS = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "scheduler": st.sampled_from(sorted(SCHEDULERS)),
        "seed": st.integers(0, 2**31),
        "loss": st.sampled_from(sorted(LOSSES)),
    }
)
SCALES = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([1.0, 1000.0, 2.0**16, 2.0**24]),
        "growth_factor": st.sampled_from([2.0, 1.7]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 3),
    }
)
NORMS = st.tuples(st.sampled_from([0.0, 0.1, 1.0, float("inf")]), st.sampled_from([2.0, 1.0, float("inf")]))
CLIPS = st.one_of(st.tuples(st.just("norm"), NORMS), st.tuples(st.just("value"), st.sampled_from([0.0, 0.01, 0.1])))
AVERAGES = st.fixed_dictionaries(
    {
        "decay": st.sampled_from([0.5, 0.9, 0.999]),
        "update_every": st.integers(1, 3),
        "start_step": st.integers(0, 3),
        "use_buffers": st.booleans(),
    }
)
RECIPES = st.builds(
    Recipe,
    every=st.integers(1, 3),
    partial=st.sampled_from(["flush", "carry", "drop"]),
    weighted=st.booleans(),
    scale=SCALES.map(lambda rule: tuple(rule.items())),
    clips=st.lists(CLIPS, max_size=2, unique_by=lambda clip: clip[0]).map(tuple),
    skips=st.booleans(),
    average=st.none() | AVERAGES.map(lambda rule: tuple(rule.items())),
)


@st.composite
def epochs(draw: st.DrawFn, seed: int, kinds: list[str], models: int) -> list[list[Batch]]:
    """Draw epochs of micro-batches, some of them poisoned in one of the ways given."""
    source = torch.Generator().manual_seed(seed)
    wrong = st.sampled_from(["", "", *kinds])

    def batch() -> Batch:
        size, used = draw(st.integers(2, 4)), draw(st.sets(st.sampled_from(range(models)), min_size=1))
        inputs, targets = torch.randn(size, WIDTH, generator=source), torch.randn(size, 2, generator=source)
        poison = {place: kind for place in sorted(used) if (kind := draw(wrong))}
        return Batch(inputs, targets, tuple(used), draw(st.integers(1, 40)), poison)

    return [[batch() for _ in range(draw(st.integers(1, 6)))] for _ in range(draw(st.integers(1, 2)))]


def look(plant: Plant, scaling: Any) -> dict[str, Any]:
    """Return everything that a run has changed so far."""
    found: dict[str, Any] = {"scale and growth": scaling}
    for key, module in plant.modules.items():
        found |= {f"{key}.{name}": leaf.detach().clone() for name, leaf in module.state_dict().items()}
    for key, optimizer in plant.optimizers.items():
        stored = optimizer.state_dict()
        found[f"lr of {key}"] = [group["lr"] for group in stored["param_groups"]]
        for place, held in stored["state"].items():
            numbers = {name: torch.as_tensor(value).clone() for name, value in held.items() if value is not None}
            found |= {f"{name} of {key} {place}": value for name, value in numbers.items()}
    return found


def looks(
    run: list[list[Batch]],
    micro: Callable[[Batch, bool], object],
    end: Callable[[], object],
    see: Callable[[], dict[str, Any]],
    tells: bool,
) -> list[dict[str, Any]]:
    """Train, and look after every micro-batch and every epoch; ``tells`` says which micro-batch is the last."""
    seen: list[dict[str, Any]] = []
    for epoch in run:
        for place, batch in enumerate(epoch):
            micro(batch, tells and place == len(epoch) - 1)
            seen.append(see())
        end()
        seen.append(see())
    return seen


def run_by_hand(plant: Plant, recipe: Recipe, run: Any, tells: bool) -> tuple[ByHand, list[dict[str, Any]]]:
    """Train by hand."""
    loop = ByHand(plant, recipe)

    def scaling() -> Any:
        return (loop.scaler.get_scale(), loop.scaler._get_growth_tracker()) if loop.scaler.is_enabled() else None

    return loop, looks(run, loop.micro, loop.end_epoch, lambda: look(plant, scaling()), tells)


def run_shell(shell: Shell, plant: Plant, recipe: Recipe, run: Any, tells: bool) -> list[dict[str, Any]]:
    """Train in the shell."""

    def micro(batch: Batch, last: bool) -> None:
        with shell.batch(last=last):
            shell.update(plant.loss_of(batch), batch.weight if recipe.weighted else None)

    def scaling() -> Any:
        scaler = shell.state.scaler
        return (scaler["scale"], scaler["growth_tracker"]) if scaler else None

    return looks(run, micro, shell.flush, lambda: look(plant, scaling()), tells)


def assert_same(found: dict[str, Any], right: dict[str, Any], where: str) -> None:
    """Compare bitwise, NaN equal to NaN."""
    assert found.keys() == right.keys()
    for name, value in right.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=0, equal_nan=True, msg=lambda text, name=name: f"{where}, {name}: {text}"
        )


def assert_same_averages(shell: Shell, loop: ByHand) -> None:
    """Compare the averages that have been updated; AveragedModel averages counts, too, which are no weights."""
    for key, average in loop.averages.items():
        name = "ema" if key == "main" else f"ema_{key}"
        assert shell.state.slot(name)["n_averaged"] == int(average.n_averaged)
        if int(average.n_averaged):
            right = {name: leaf for name, leaf in average.module.state_dict().items() if leaf.is_floating_point()}
            found = shell.averaged_module(name).state_dict()
            assert_same({name: found[name] for name in right}, right, f"average of {key}")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@given(data=st.data(), name=st.sampled_from(sorted(MODELS)), parts=PLANTS, drawn=RECIPES, strict=st.booleans())
def test_a_pipeline_is_the_loop_by_hand(
    data: st.DataObject, precision: str, name: str, parts: dict[str, Any], drawn: Recipe, strict: bool
) -> None:
    """Any model, recipe and batches, overflows included: the same bits after every micro-batch and every epoch."""
    recipe = replace(drawn, precision=precision)
    kinds = ["loss", "gradient"] if precision == "fp16" or recipe.skips else []
    run = data.draw(epochs(parts["seed"], kinds, len(MODELS[name])))
    compare(lambda: built(name, **parts), recipe, run, data, strict)


@given(data=st.data(), parts=PLANTS, drawn=RECIPES, strict=st.booleans())
def test_one_of_two_optimizers_overflows(
    data: st.DataObject, parts: dict[str, Any], drawn: Recipe, strict: bool
) -> None:
    """Two models that overflow each for itself: only the optimizer of the other one steps, schedules and averages."""
    run = data.draw(epochs(parts["seed"], ["gradient"], 2))
    recipe = replace(drawn, precision="fp16", skips=False, every=min(drawn.every, 2))
    compare(lambda: built("two", **parts), recipe, run, data, strict)


def compare(build: Callable[[], Plant], recipe: Recipe, run: Any, data: st.DataObject, strict: bool) -> None:
    """Train twice alike, by hand and in the shell, and compare."""
    tells, own = data.draw(st.booleans()), data.draw(st.booleans())
    loop, right = run_by_hand(build(), recipe, run, tells)
    plant = build()
    scaler = torch.amp.GradScaler("cpu", **dict(recipe.scale)) if own and recipe.precision == "fp16" else None
    shell = Shell(plant.modules, plant.optimizers, recipe.hooks(plant), plant.schedulers, scaler, strict)
    for place, (mine, theirs) in enumerate(zip(run_shell(shell, plant, recipe, run, tells), right, strict=True)):
        assert_same(mine, theirs, f"look {place}")
    assert (shell.state.clock.step, shell.state.clock.skipped) == (loop.steps, loop.skips)
    assert scaler is None or scaler.get_scale() == loop.scaler.get_scale()
    if recipe.average is not None:
        assert_same_averages(shell, loop)
