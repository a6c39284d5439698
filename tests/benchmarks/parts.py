"""The parts of the comparison: what is measured on which model, and the rows that come out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.benchmarks import averages, frameworks, whole_updates
from tests.benchmarks.measuring import Column, Contender, Repeated, Row, interleaved, missing, summary
from tests.benchmarks.networks import NETWORKS, Many, perceptron
from tests.benchmarks.peak import alive, peak

Builders = Mapping[str, Callable[..., Contender]]
WARM = 3
TURNS = 5


class Model(NamedTuple):
    """A model, what it is trained on, and how many updates make a block."""

    title: str
    build: Callable[[], nn.Module]
    block: int
    data: Callable[[], Tensor] = lambda: torch.empty(0)


class Part(NamedTuple):
    """What is compared: models, contenders, and the two that ratios are taken to."""

    title: str
    models: tuple[Model, ...]
    contenders: Builders
    bases: Mapping[str, str]
    columns: tuple[Column, ...]
    enter: Callable[[Model, Builders], dict[str, Any]]


def rows(part: Part, rounds: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield each model's title and rows in turn."""
    for model in part.models:
        known: dict[str, Row] = {}
        times: dict[str, list[float]] = {}
        for turn in _turns(part.contenders, rounds):
            for name, (found, row) in _timed(part, model, turn, max(1, rounds // TURNS)).items():
                times[name] = times.get(name, []) + found
                known[name] = row
        medians = {name: summary(found) for name, found in times.items() if found}
        ratios = {name: _ratios(part.bases, medians, name) for name in medians}
        yield (
            model.title,
            [
                {"contender": name, **medians.get(name, {}), **ratios.get(name, {}), **known[name]}
                for name in part.contenders
            ],
        )


def _turns(contenders: Builders, rounds: int) -> Iterator[Builders]:
    """Yield the contenders in several orders: memory that is asked for first is up to a twentieth slower."""
    names, turns = list(contenders), min(TURNS, rounds)
    for turn in range(turns):
        first = turn * len(names) // turns
        yield {name: contenders[name] for name in names[first:] + names[:first]}


def _timed(part: Part, model: Model, builders: Builders, rounds: int) -> dict[str, tuple[list[float], Row]]:
    """Build all contenders in an order, and return the times of each, and what else is known of it."""
    entered = part.enter(model, builders)
    contenders = {name: each for name, (each, _) in entered.items() if each is not None}
    times = interleaved(contenders, rounds, model.block, WARM, model.title)
    known = {name: (times.get(name, []), row) for name, (_, row) in entered.items()}
    del entered, contenders
    gc.collect()
    return known


def _ratios(bases: Mapping[str, str], medians: Mapping[str, Row], name: str) -> Row:
    """Return the ratios of one contender to those that are there."""
    return {key: medians[name]["ms"] / medians[base]["ms"] for key, base in bases.items() if base in medians}


def sharing_weights(model: Model, builders: Builders) -> dict[str, Any]:
    """Build averages of one model, whose weights nobody writes, with the memory that each takes beside a shadow."""
    module = model.build()
    shadow = sum(4 * each.numel() for each in module.parameters())
    return {name: _with_peak(lambda build=build: build(module), shadow) for name, build in builders.items()}


def _with_peak(build: Callable[[], Contender], shadow: int) -> tuple[Contender | None, Row]:
    """Build a contender, make it warm, and measure its memory; or say why it is not there."""
    others = alive()
    contender, why = attempted(build)
    if not isinstance(contender, Repeated):
        return contender, why
    contender.block(WARM)
    return contender, {"above_shadow_mib": (peak(contender.update, others) - shadow) / 2**20}


def on_own_models(model: Model, builders: Builders) -> dict[str, Any]:
    """Build updates, each of a model of its own."""
    batch = model.data()
    return {name: attempted(lambda build=build: build(model.build(), batch)) for name, build in builders.items()}


def attempted(build: Callable[[], Contender]) -> tuple[Contender | None, Row]:
    """Return a contender, or the reason why it is not there."""
    try:
        return build(), {}
    except (ImportError, NotImplementedError) as error:
        return None, missing(error)


def _columns(*others: Column) -> tuple[Column, ...]:
    """Return the columns that both parts have, and others."""
    return (Column("", "contender", ""), Column("ms", "ms"), Column("ms, 10th percentile", "ms_p10"), *others)


RATIOS = {"of_raw": averages.RAW, "of_averaged_model": averages.AVERAGED_MODEL}
OF_RAW, OF_AVERAGED_MODEL = Column("of raw", "of_raw", ".2f"), Column("of AveragedModel", "of_averaged_model", ".2f")
AVERAGES = Part(
    title="One update of an average, medians",
    models=(
        Model("10M in 20 tensors", lambda: Many(20, 500_000), 6),
        Model("10M in 20 tensors, bf16 weights", lambda: Many(20, 500_000, torch.bfloat16), 6),
        Model("100M in 200 tensors", lambda: Many(200, 500_000), 3),
        Model("10M in 2,000 tensors", lambda: Many(2000, 5000), 6),
        Model("32k in 2,000 tensors", lambda: Many(2000, 16), 20),
    ),
    contenders=averages.ALL,
    bases=RATIOS,
    columns=_columns(OF_RAW, OF_AVERAGED_MODEL, Column("peak above a shadow, MiB", "above_shadow_mib", ".1f")),
    enter=sharing_weights,
)
UPDATES = Part(
    title="One whole update, medians",
    models=(
        Model(NETWORKS["mlp"].title, NETWORKS["mlp"].build, 40, lambda: NETWORKS["mlp"].batch[0]),
        Model("10M in 10 tensors", lambda: perceptron(1780, 4), 5, lambda: torch.ones(16, 64)),
        Model("10M in 2,000 tensors", lambda: Many(2000, 5000), 4, lambda: torch.ones(5000)),
    ),
    contenders=frameworks.ALL,
    bases={"of_averaged_model": whole_updates.LOOP, "of_raw": whole_updates.RAW},
    columns=_columns(OF_RAW, OF_AVERAGED_MODEL),
    enter=on_own_models,
)
PARTS = {"averages": AVERAGES, "updates": UPDATES}
