"""How hooks compose: by priority, any veto wins, later hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import SkipValidation

from functrain._composition import check_composition
from functrain._function_hook import as_hook, is_plain_function
from functrain._hook import Hook, Outcome
from functrain._limits import limits_of
from functrain._select import Flag, both, negate
from functrain._stage import GATED_STAGES, Stage
from functrain._state import EMPTY, TrainState, nothing
from functrain._tree import FrozenMap
from functrain._verdict import checked_loss, checked_outcome

Occasion: TypeAlias = Literal["batch", "flush", "end", "epoch"]
"""What an interpreter tells a pipeline: a micro-batch or a flush begins, it ends, an epoch ends."""


class Pipeline(Hook):
    """Hooks in dispatch order, and itself a hook: at gated stages it proceeds iff every member does.

    Lower ``priority`` runs first, equal priorities keep the order given. Every member that claims a stage is called
    exactly once there, also after a veto. Made by :func:`fold` or ``+``; the empty pipeline is the identity.

    >>> from functrain import ClipNorm, EMA, Accumulate
    >>> [member.name for member in EMA() + Accumulate(every=2) + ClipNorm(max_norm=1.0)]
    ['accumulate', 'clip', 'ema']
    """

    hooks: Annotated[tuple[Hook, ...], SkipValidation] = ()

    @cached_property
    def claims(self) -> dict[Stage, tuple[Hook, ...]]:
        """The members that are called at each stage, in order; sorted out once."""
        return {stage: tuple(each for each in self.hooks if stage in each.stages) for stage in Stage}

    def claimants(self, stage: Stage) -> tuple[Hook, ...]:
        """Return the members that are called at a stage, in order."""
        return self.claims[stage]

    def init(self, state: TrainState) -> Any:
        """Build the slots of all members, by name."""
        return FrozenMap({each.name: each.init(state) for each in self.hooks})

    def prepared(self, state: TrainState) -> TrainState:
        """Return a state that holds every slot, veto, metric and limit of the members: what SETUP does."""
        gated = {stage: {each.name: False for each in self.claims[stage]} for stage in Stage if stage in GATED_STAGES}
        metrics = {name: nothing() for each in self.hooks for name in sorted(each.publishes)}
        # Every init sees the metrics of all members: whether one is published is fixed from here on.
        limits = limits_of(self.hooks)
        state = state.replace(vetoes=FrozenMap(gated), metrics=state.metrics | metrics, limits=limits)
        return state.replace(hooks=state.hooks | self.init(state))

    def scan(
        self, state: TrainState, stage: Stage, will_skip: Flag, members: Iterable[Hook] | None = None
    ) -> Iterator[tuple[TrainState, Flag]]:
        """Yield the state and the verdict so far after each member; the shell keeps what succeeded before an error.

        ``members`` are some of those that claim the stage, by default all.
        """
        gated = stage in GATED_STAGES
        proceed, skipping = negate(will_skip), will_skip
        for member in self.claims[stage] if members is None else members:
            state, verdict = self.call(member, state, stage, skipping)
            if gated and verdict is not True:
                proceed = both(proceed, verdict)
                skipping = negate(proceed)
            yield state, proceed

    def call(self, member: Hook, state: TrainState, stage: Stage, will_skip: Flag) -> tuple[TrainState, Flag]:
        """Call one member, check what it returned, thread its loss and record its veto."""
        try:
            outcome = member.update(state, stage, will_skip)
            if type(outcome) is not Outcome or outcome.proceed is not True or type(outcome.state) is not TrainState:
                outcome = checked_outcome(member, stage, outcome)
        except BaseException as error:
            error.add_note(f"raised by hook {member.name!r} at {stage.name}")
            raise
        after, proceed, loss = outcome
        if stage not in GATED_STAGES:
            return after, proceed
        if stage is Stage.DO_BACKWARD and not loss is after.loss is state.loss:
            threaded = checked_loss(loss, member.name, stage)
            after = after if threaded is after.loss else after.replace(loss=threaded)
        return _with_veto(after, stage, member.name, False if proceed is True else negate(proceed)), proceed

    def notice(self, occasion: Occasion, state: TrainState, take: Callable[[], Any] | None = None) -> None:
        """Hear from the interpreter where it is in the run; nobody listens here, a traced pipeline does.

        ``take()`` gives what the interpreter keeps beside the state, on the tensors of the run.
        """

    def joined(self) -> tuple[Hook, ...]:
        """Return what becomes part of a larger pipeline; one that does more than fold its members refuses."""
        return self.hooks

    def around(self, wrap: Callable[[Hook], Hook]) -> Pipeline:
        """Return the pipeline with every member inside a wrapper, in the same order."""
        return pipeline_of(wrap(each) for each in self)

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Fold the members over the state."""
        proceed = negate(will_skip)
        for state, proceed in self.scan(state, stage, will_skip):  # noqa: B007, B020, PLR1704 - a fold
            pass
        return Outcome(state, proceed, state.loss)

    def reset(self, slot: Any) -> Any:
        """Reset the slots of all members, by name."""
        return slot | {each.name: each.reset(slot[each.name]) for each in self.hooks}

    @property
    def may_drop(self) -> bool:
        """Whether a member may."""
        return any(each.may_drop for each in self.hooks)

    @property
    def keeps_finite(self) -> bool:
        """Whether every member does."""
        return all(each.keeps_finite for each in self.hooks)

    def member(self, exclusive: str) -> Hook | None:
        """Return the member of an exclusive family, or None."""
        return next((each for each in self.hooks if each.exclusive == exclusive), None)

    def __call__(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Fold at any stage."""
        return self.update(state, stage, will_skip)

    def __iter__(self) -> Iterator[Hook]:  # pyright: ignore[reportIncompatibleMethodOverride] - members, not fields
        """Yield the members in dispatch order."""
        return iter(self.hooks)

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self.hooks)

    def __getitem__(self, name: str) -> Hook:
        """Return the member of this name; KeyError lists the names there are."""
        for each in self.hooks:
            if each.name == name:
                return each
        msg = f"no hook named {name!r}; this pipeline has {sorted(each.name for each in self.hooks)}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Show the composition as source text."""
        return f"fold({', '.join(repr(each) for each in self.hooks)})"

    def __str__(self) -> str:
        """Show which member is called at which stage, as a table."""
        from functrain._table import pipeline_table

        return pipeline_table(self)

    def _repr_html_(self) -> str:
        """Show the pipeline in a notebook as a grid of stages by hooks."""
        from functrain.show.pipeline import pipeline

        return pipeline(self).html()


def _with_veto(state: TrainState, stage: Stage, name: str, veto: Flag) -> TrainState:
    """Record a veto under stage and name; the usual case, nothing changed, costs a look-up."""
    here = state.vetoes.get(stage, EMPTY)
    if here.get(name) is veto:
        return state
    return state.replace(vetoes=state.vetoes | {stage: here | {name: veto}})


def fold(*hooks: Any) -> Pipeline:
    """Compose hooks, functions and pipelines into one pipeline; nested pipelines flatten.

    Args:
        hooks: members in any order; a lone pipeline is returned as it is.

    Raises:
        TypeError: something that is no hook.
        ValueError: equal names, the same instance twice, two of an exclusive family, or a
            member that reads a metric before it is published.

    >>> len(fold())
    0
    """
    if len(hooks) == 1 and isinstance(hooks[0], Pipeline):
        return hooks[0]
    members = sorted(_flattened(hooks), key=lambda each: each.priority)
    check_composition(members)
    return pipeline_of(members)


def pipeline_of(members: Iterable[Hook]) -> Pipeline:
    """Return the pipeline of members that are in dispatch order and may stand together."""
    members = tuple(members)
    return Pipeline(
        name="pipeline",
        hooks=members,
        stages=frozenset[Stage]().union(*(each.stages for each in members)),
        writes=frozenset[str]().union({"vetoes"}, *(each.writes for each in members)),
        publishes=frozenset[str]().union(*(each.publishes for each in members)),
        rank_local=any(each.rank_local for each in members),
    )


def _flattened(hooks: Iterable[Any]) -> Iterator[Hook]:
    """Yield the members of all arguments in order."""
    for position, each in enumerate(hooks):
        yield from cast("Iterable[Hook]", each.joined() if isinstance(each, Pipeline) else (as_hook(each, position),))


def compose_or_decline(left: object, right: object) -> Any:
    """Return ``left + right``, or NotImplemented where one of them is no hook, so that Python raises TypeError."""
    if all(isinstance(each, Hook) or is_plain_function(each) for each in (left, right)):
        return fold(left, right)
    return NotImplemented
