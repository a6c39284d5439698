"""One verdict for all ranks: where the verdict of a hook may differ between them, any veto counts for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor

from functrain._collectives import gathering
from functrain._fold import Pipeline
from functrain._hook import Hook
from functrain._select import Flag, both, negate
from functrain._stage import GATED_STAGES, Stage
from functrain._state import TrainState
from functrain.shell.collectives import Ranks

Segment: TypeAlias = tuple[tuple[Hook, ...], tuple[Hook, ...]]
"""Members that run one after the other, and those of them about whose vetoes ranks exchange afterwards."""


class Agreement:
    """A fold whose later members see the verdict of all ranks: one collective behind members that may differ."""

    def __init__(self, pipeline: Pipeline, ranks: Ranks) -> None:
        """Cut the members of each gated stage behind those whose verdicts may differ."""
        self._pipeline, self._ranks = pipeline, ranks
        self._segments = {stage: list(_segments(pipeline.claimants(stage), stage)) for stage in GATED_STAGES}
        differing = {stage for stage, segments in self._segments.items() if any(differing for _, differing in segments)}
        if pipeline.member("accumulate") and pipeline.member("precision"):  # weights get a unit, once
            differing.add(Stage.DO_BACKWARD)
        self._quiet = frozenset(Stage) - differing - {Stage.DO_OPTIMIZER_STEP}

    def scan(self, state: TrainState, stage: Stage, will_skip: Flag) -> Iterator[tuple[TrainState, Flag]]:
        """Return what ``Pipeline.scan`` yields; behind members that may differ, all ranks have one verdict."""
        if stage in self._quiet or (stage is Stage.DO_OPTIMIZER_STEP and not state.window.boundary):
            return self._pipeline.scan(state, stage, will_skip)
        return self._exchanging(state, stage, will_skip)

    def _exchanging(self, state: TrainState, stage: Stage, will_skip: Flag) -> Iterator[tuple[TrainState, Flag]]:
        """Yield state and verdict at a stage where ranks may have to exchange something."""
        proceed = negate(will_skip)
        with gathering(self._ranks.gathered):
            for members, differing in self._segments[stage]:
                for state, proceed in self._pipeline.scan(state, stage, negate(proceed), members):  # noqa: B020, PLR1704 - a fold
                    yield state, proceed
                if differing and will_skip is not True:
                    state, proceed = self._agreed(state, stage, differing, proceed)
                    yield state, proceed

    def _agreed(
        self, state: TrainState, stage: Stage, differing: Sequence[Hook], proceed: Flag
    ) -> tuple[TrainState, Flag]:
        """Return the state with the vetoes of all ranks, and the verdict of all."""
        vetoes = state.vetoes[stage]
        own: list[Flag] = [negate(proceed), *(vetoes[each.name] for each in differing)]
        stop, *found = self._any_of(own)
        agreed = vetoes | {each.name: veto for each, veto in zip(differing, found, strict=True)}
        return state.replace(vetoes=state.vetoes | {stage: agreed}), both(proceed, negate(stop))

    def _any_of(self, flags: Sequence[Flag]) -> list[Flag]:
        """Return flags of which each is set if it is set on some rank; Python's where reading them is free."""
        tensors = [flag for flag in flags if isinstance(flag, Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        own = torch.stack([flag.to(device) if isinstance(flag, Tensor) else torch.tensor(flag) for flag in flags])
        found = self._ranks.any_of(own)
        return cast("list[Flag]", found.tolist()) if found.device.type == "cpu" else [*found.unbind()]

    def absent(self) -> None:
        """Drop a micro-batch on the other ranks because this one has left it without an update."""
        for _, differing in self._segments[Stage.DO_BACKWARD]:
            if differing:
                self._any_of([True, *(False for _ in differing)])

    def with_slots_before(self, before: TrainState, after: TrainState) -> TrainState:
        """Return the state of a dropped micro-batch in which hooks that did not know of the drop have not seen it."""
        names = {each.name for _, differing in self._segments[Stage.DO_BACKWARD] for each in differing}
        return after.replace(hooks=after.hooks | {name: before.hooks[name] for name in names}) if names else after


def _segments(members: Sequence[Hook], stage: Stage) -> Iterator[Segment]:
    """Cut behind each run of members that may differ, so that whoever comes next knows the verdict of all."""
    run: list[Hook] = []
    for place, member in enumerate(members):
        run.append(member)
        following = members[place + 1 :]
        if not following or (member.may_differ(stage) and not following[0].may_differ(stage)):
            yield tuple(run), tuple(each for each in run if each.may_differ(stage))
            run = []
