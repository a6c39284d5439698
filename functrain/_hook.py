"""What a hook is: configuration as data, and one pure function over the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, model_validator
from torch import Tensor

from functrain._configuration import Configuration
from functrain._select import Flag
from functrain._stage import UPDATE_STAGES, Stage
from functrain._state import FIELDS, TrainState
from functrain._tree import FrozenMap


class Outcome(NamedTuple):
    """What a hook returns; a plain tuple of the three is accepted.

    >>> Outcome(TrainState(), True, None).proceed
    True
    """

    state: TrainState
    proceed: Flag
    loss: Tensor | None


HookFunction: TypeAlias = Callable[[TrainState, Stage, Flag], tuple[TrainState, Flag, Tensor | None]]


def _identifier(name: str) -> str:
    if not name.isidentifier():
        msg = f"a hook's name must be an identifier, got {name!r}: state.hooks is addressed by it"
        raise ValueError(msg)
    return name


def _known_fields(names: frozenset[str]) -> frozenset[str]:
    if unknown := sorted(names - set(FIELDS)):
        msg = f"writes names {unknown}, which are no fields of TrainState; there are {sorted(FIELDS)}"
        raise ValueError(msg)
    return names


def _as_set(value: Any) -> Any:
    """Return a set of what was given, one value or several; what is neither is left for pydantic to refuse."""
    try:
        return frozenset((value,)) if isinstance(value, str | Stage) else frozenset(value)
    except TypeError:
        return value


Name = Annotated[str, AfterValidator(_identifier)]
Stages = Annotated[frozenset[Stage], BeforeValidator(_as_set)]
Names = Annotated[frozenset[str], BeforeValidator(_as_set)]
Writes = Annotated[frozenset[str], BeforeValidator(_as_set), AfterValidator(_known_fields)]


class Hook(Configuration):
    """The identity: subclasses override :meth:`update` to map ``(state, stage, will_skip)`` to an :class:`Outcome`.

    Configuration is data: frozen, compared by value, printable, picklable. What changes lives in the slot,
    ``state.hooks[name]``, which :meth:`init` builds.

    Attributes:
        priority: lower runs first; 10 accumulation, 20 precision, 30 clipping, 40 spike skipping, 50 the rest.
        name: the key of the slot; by default the class name in lower case.
        stages: the stages it claims; it is not called at others.
        writes: fields of the state it may change besides its slot, its metrics and the loss.
        publishes: metrics it sets.
        reads: metrics it looks at, if someone publishes them.
        exclusive: key of a family of which a pipeline may hold one member.
        rank_local: its verdict may differ between the ranks of a distributed run.

    Raises:
        pydantic.ValidationError: a value out of bounds, of the wrong type, or an unknown option.
        TypeError: an option without its name.

    >>> state = TrainState()
    >>> Hook()(state, Stage.BEFORE_BATCH, False).state is state
    True
    >>> import torch
    >>> class Scaled(Hook):
    ...     stages: frozenset[Stage] = frozenset({Stage.DO_BACKWARD})
    ...     factor: float = 0.5
    ...     def update(self, state, stage, will_skip):
    ...         return Outcome(state, True, self.factor * state.loss)
    >>> Scaled(factor=2.0)
    Scaled(factor=2.0)
    >>> Scaled(factor=2.0)(state.replace(loss=torch.tensor(3.0)), Stage.DO_BACKWARD, False).loss
    tensor(6.)
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, validate_default=False)

    priority: int = 50
    name: Name = ""
    stages: Stages = UPDATE_STAGES
    writes: Writes = frozenset()
    publishes: Names = frozenset()
    reads: Names = frozenset()
    exclusive: str | None = None
    rank_local: bool = False

    @model_validator(mode="after")
    def _named(self) -> Self:
        """Give a nameless hook its default name; a frozen model can be filled here and nowhere else."""
        if not self.name:
            vars(self)["name"] = self.default_name()
        return self

    def default_name(self) -> str:
        """Return the name of a hook that was given none."""
        return type(self).__name__.lower()

    @property
    def may_drop(self) -> bool:
        """Whether it may veto DO_BACKWARD; only then does the shell back buffers up before the forward."""
        return Stage.DO_BACKWARD in self.stages

    def may_differ(self, stage: Stage) -> bool:
        """Tell whether ranks must agree on its verdict at a gated stage; by default wherever it may veto."""
        return self.rank_local and (self.may_drop if stage is Stage.DO_BACKWARD else stage in self.stages)

    @property
    def keeps_finite(self) -> bool:
        """Whether finite gradients stay finite; if not, the loss scaler looks again after a hook that writes them."""
        return "grads" not in self.writes

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - for overriding
        """Build the slot from the first state, and refuse what this hook cannot work on.

        Returns:
            a tree of tensors and numbers; dicts are frozen. The base hook keeps nothing.
        """
        return FrozenMap[Any]()

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - for overriding
        """Map a state at a claimed stage; must be pure. The base hook is the identity."""
        return Outcome(state, True, state.loss)

    def reset(self, slot: Any) -> Any:
        """Return what the slot becomes when the open window is discarded: by default what it is."""
        return slot

    def __call__(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Map a state at any stage: :meth:`update` where claimed, else the identity."""
        if stage not in self.stages:
            return Outcome(state, True, state.loss)
        return Outcome(*self.update(state, stage, will_skip))

    def __add__(self, other: object) -> Any:
        """Compose with another hook, function or pipeline, as ``fold(self, other)``."""
        from functrain._fold import compose_or_decline

        return compose_or_decline(self, other)

    def __radd__(self, other: object) -> Any:
        """Compose with a function on the left."""
        from functrain._fold import compose_or_decline

        return compose_or_decline(other, self)

    def __str__(self) -> str:
        """Print a hook as its source text; pydantic would print a hook of defaults as nothing."""
        return repr(self)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show only what differs from the defaults."""
        defaults = {name: info.default for name, info in type(self).model_fields.items()}
        for name, value in super().__repr_args__():
            if name is not None and value != defaults.get(name) and (name != "name" or value != self.default_name()):
                yield name, value
