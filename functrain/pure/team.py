"""The processes that share the lanes of a sweep: all ranks of ``torch.distributed`` where it runs, or this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from functrain import _tree
from functrain._fold import Pipeline
from functrain._state import TrainState
from functrain.pure.lanes import Seen, part_size
from functrain.pure.over import Lane
from functrain.shell.alike import refuse_different, settings_of
from functrain.shell.collectives import Ranks

T = TypeVar("T")
REMEDY = "give every rank the same init, step, over, batches and settings"
WORDS = {1: torch.uint8, 2: torch.int16}


class Team:
    """What ranks tell one another in a sweep: before it, and when it is over; never in between.

    Attributes:
        rank: of this process.
        world: how many there are.

    >>> Team().dealt([{"lr": 0.1}, {"lr": 0.2}], None)
    ([{'lr': 0.1}, {'lr': 0.2}], 2)
    """

    def __init__(self) -> None:
        """Find the others, if there are any."""
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._ranks = Ranks(dist.group.WORLD, _meeting_place()) if several else None
        self.rank, self.world = (self._ranks.rank, self._ranks.world) if self._ranks else (0, 1)
        self._presented: list[Tensor] = []

    def agreed(self, what: Callable[[], T]) -> T:
        """Return what a function gives, unless it has raised on some rank: then it raises on every one.

        Raises:
            RuntimeError: it has raised on another rank; says which, and what.
        """
        if self._ranks is None:
            return what()
        found, error = _attempted(what)
        said = self._ranks.objects(error and f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, each in enumerate(said):
            if each is not None:
                msg = f"the sweep has failed on rank {rank}: {each}"
                raise RuntimeError(msg)
        return cast("T", found)

    def dealt(self, lanes: Sequence[Lane], max_lanes: int | None) -> tuple[list[Lane], int]:
        """Return the lanes of this rank, and how many of them run at once."""
        return dealt(lanes, max_lanes, self.rank, self.world)

    def refuse_different(self, start: Callable[[], TrainState], pipeline: Pipeline | None, given: Any) -> None:
        """Refuse ranks that would train something else, on all of them at once.

        Raises:
            ValueError: the first thing that differs, and both values.
        """
        if self._ranks is None:
            return
        settings = {} if pipeline is None else settings_of(pipeline)
        first = {path: kind_of(leaf) for path, leaf in _tree.paths(self.agreed(start)).items()}
        refuse_different(self._ranks, {**given, "settings": settings, "start": first}, REMEDY)

    def present(self, batch: Any) -> None:
        """Note a batch, to compare it with those of the others in the end."""
        if self._ranks is not None:
            marks = [mark(leaf) for leaf in _tree.leaves(batch) if isinstance(leaf, Tensor)]
            self._presented.append(sum(marks, torch.zeros((), dtype=torch.long)))

    def refuse_other_batches(self) -> None:
        """Refuse lanes that have seen other batches than those of rank 0.

        Raises:
            ValueError: which batch, or how many there were.
        """
        if self._ranks is None:
            return
        own, *others = self._ranks.objects([int(each) for each in self._presented])
        for rank, other in enumerate(others, start=1):
            if len(own) != len(other):
                raise ValueError(f"rank {rank} had {len(other)} batches, and rank 0 had {len(own)}; {SAME_BATCHES}")
            odd = next((place for place, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), None)
            if odd is not None:
                raise ValueError(f"batch {odd} of rank {rank} is not that of rank 0; {SAME_BATCHES}")

    def gathered(self, states: TrainState, seen: Seen, count: int) -> tuple[TrainState, Seen]:
        """Return the first lanes of all ranks, on every rank."""
        if self._ranks is None:
            return states, seen

        def join(leaf: Tensor) -> Tensor:
            return self._joined(leaf, count)

        return _tree.map_leaves(join, states), Seen(*map(join, seen))

    def _joined(self, own: Tensor, count: int) -> Tensor:
        """Return one tensor of all ranks, lane after lane; as bytes, which every backend can send."""
        shape = (self.world * own.shape[0], *own.shape[1:])
        if not own.numel() or self._ranks is None:
            return own.new_empty(shape)[:count]
        rows = self._ranks.gathered(own.contiguous().reshape(-1).view(torch.uint8))
        return rows.view(own.dtype).reshape(shape)[:count]


def dealt(lanes: Sequence[Lane], max_lanes: int | None, rank: int, world: int) -> tuple[list[Lane], int]:
    """Return the lanes of one rank, and how many of them run at once.

    Every rank has as many parts as the others, all of one size, filled up with the last lane: their graphs are the
    same, and parts are those of one process with that ``max_lanes``.

    >>> [dealt(["a", "b", "c"], None, rank, 2) for rank in range(2)]
    [(['a', 'b'], 2), (['c', 'c'], 2)]
    """
    size = part_size(-(-len(lanes) // world), max_lanes)
    share = size * -(-len(lanes) // (size * world))
    filled = [*lanes, *[lanes[-1]] * (share * world - len(lanes))]
    return (filled if world > 1 else list(lanes))[rank * share :][:share], size


def _meeting_place() -> torch.device:
    """Return where the backend exchanges tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


SAME_BATCHES = (
    "every lane sees every batch, so every rank needs all of them in the same order: no DistributedSampler, and a "
    "seeded generator where a loader shuffles"
)


def _attempted(what: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what a function gives, or what it raises."""
    try:
        return what(), None
    except Exception as error:  # noqa: BLE001 - raised again once the others know
        return None, error


def kind_of(leaf: Any) -> str:
    """Return a leaf as a text that is the same for the same values only, as good as.

    >>> kind_of(torch.ones(2))
    '(2,) torch.float32, checksum 4261412864'
    """
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{tuple(leaf.shape)} {leaf.dtype}, checksum {int(mark(leaf))}"


def mark(leaf: Tensor) -> Tensor:
    """Return a whole number that changes with any element of a tensor, as good as; reads no device.

    >>> bool(mark(torch.tensor([1.0, 2.0])) == mark(torch.tensor([2.0, 1.0])))
    False
    """
    flat = (leaf.to_dense() if leaf.is_sparse else leaf).detach().contiguous().reshape(-1)
    words = flat.view(WORDS.get(leaf.element_size(), torch.int32)).long()
    return (words * torch.arange(1, 1 + 2 * len(words), 2, device=words.device)).sum()
