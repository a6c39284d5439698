"""What a run has done, counted from outside: by whoever presents the micro-batches, and by the optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.optim import Optimizer

from functrain._clock import Clock
from functrain.testing.differences import unlike


@dataclass
class Ledger:
    """Counts beside the clock of the state, which has to say the same.

    Attributes:
        presented: micro-batches.
        boundaries: windows that closed.
        ran: those of them at which an optimizer stepped.
        steps: of each optimizer.
    """

    presented: int = 0
    boundaries: int = 0
    ran: int = 0
    steps: dict[str, int] = field(default_factory=dict[str, int])

    def watch(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Count the steps of real optimizers from now on."""
        for key, optimizer in optimizers.items():
            self.steps[key] = 0
            optimizer.register_step_post_hook(self._counting(key))

    def _counting(self, key: str) -> Any:
        def count(*_: Any) -> None:
            self.steps[key] += 1

        return count

    def copied(self) -> Ledger:
        """Return the counts of this moment."""
        return replace(self, steps=dict(self.steps))

    def go_back(self, saved: Ledger) -> None:
        """Return to the counts of another moment."""
        self.presented, self.boundaries, self.ran = saved.presented, saved.boundaries, saved.ran
        self.steps.update(saved.steps)

    def add(self, *, presented: int, boundary: bool, ran: bool) -> None:
        """Count what has happened."""
        self.presented += presented
        self.boundaries += boundary
        self.ran += ran

    def differences(self, clock: Clock) -> Iterator[str]:
        """Yield a line for each counter of the clock that does not say the same.

        >>> list(Ledger(presented=2).differences(Clock(batch=1)))
        ['state.clock["batch"]: 1 != 2']
        """
        found = {"batch": clock.batch, "step": clock.step, "step + skipped": clock.step + clock.skipped}
        counted = {"batch": self.presented, "step": self.ran, "step + skipped": self.boundaries}
        yield from unlike(found, counted, "state.clock")
        yield from unlike(dict(clock.optimizer_steps), self.steps, "state.clock.optimizer_steps")
