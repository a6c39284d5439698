"""What researchers write: hooks that keep every law."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from functrain import FrozenMap, Hook, Outcome, Stage, TrainState, hook, select
from functrain.pure.noise import Noise

STEP, BACKWARD, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.DO_BACKWARD, Stage.AFTER_OPTIMIZER_STEP
EVERY, SLOW = 5, 0.5


def on_gradients(state: TrainState, will_skip: Any, function: Any) -> Outcome:
    """Return the outcome of a transform of gradients: each mapped, unless the step is off."""

    def mapped() -> Any:
        models = state.grads.items()
        return FrozenMap({model: FrozenMap({n: function(n, g) for n, g in held.items()}) for model, held in models})

    return Outcome(state.replace(grads=select(will_skip, lambda: state.grads, mapped)), True, state.loss)


@hook(stages=STEP, writes={"grads"})
def gradient_noise(state: TrainState, _stage: Stage, will_skip: Any) -> Outcome:
    """Add noise that depends on seed and batch only."""
    noise = Noise(state.rng, state.clock.batch)
    return on_gradients(state, will_skip, lambda _, grad: grad + 0.01 * noise.normal(grad.shape, grad.dtype))


@hook(stages=BACKWARD)
def weight_decay(state: TrainState, _stage: Stage, _skip: Any) -> Outcome:
    """Add the squares of the weights to the loss."""
    squares = [leaf.square().sum().to(state.loss.dtype) for held in state.params.values() for leaf in held.values()]
    return Outcome(state, True, state.loss + 0.01 * sum(squares, torch.zeros_like(state.loss)))


@hook(stages=BACKWARD)
def normalised_loss(state: TrainState, _stage: Stage, _skip: Any) -> Outcome:
    """Divide the loss by its own size."""
    return Outcome(state, True, state.loss / (1.0 + state.loss.detach().abs()))


class WarmUp(Hook):
    """Raise every learning rate linearly over the first steps."""

    steps: int = 4
    stages: Any = frozenset({STEP})
    writes: Any = frozenset({"hyper"})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Multiply what the schedule has set, for this step."""
        step = state.clock.step

        def warmed(rate: Any) -> Any:
            return select(step < self.steps, lambda: rate * (step + 1) / self.steps, lambda: rate)

        hyper = {
            key: {group: {**values, "lr": warmed(values["lr"])} for group, values in groups.items()}
            for key, groups in state.hyper.items()
        }
        return Outcome(state.replace(hyper=FrozenMap(hyper)), True, state.loss)


class FreezeUntil(Hook):
    """No gradient for some parameters until a step."""

    step: int = 3
    prefix: str = "0."
    stages: Any = frozenset({STEP})
    writes: Any = frozenset({"grads"})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Put zeros in their place."""
        frozen = state.clock.step < self.step

        def held(name: str, grad: Tensor) -> Tensor:
            if not name.startswith(self.prefix):
                return grad
            return select(frozen, lambda: torch.zeros_like(grad), lambda: grad)

        return on_gradients(state, will_skip, held)


@hook(stages=AFTER, publishes={"weight_norm"})
def weight_norm(state: TrainState, _stage: Stage, _skip: Any) -> Outcome:
    """Log the norm of all weights."""
    squares = [leaf.float().square().sum() for held in state.params.values() for leaf in held.values()]
    return Outcome(state.with_metrics({"weight_norm": sum(squares, torch.zeros(())).sqrt()}), True, state.loss)


@hook(stages=STEP, writes={"grads"})
def centralised(state: TrainState, _stage: Stage, will_skip: Any) -> Outcome:
    """Subtract from each row of a matrix its mean."""

    def centred(_: str, grad: Tensor) -> Tensor:
        return grad - grad.mean(dim=tuple(range(1, grad.ndim)), keepdim=True) if grad.ndim > 1 else grad

    return on_gradients(state, will_skip, centred)


@hook(stages=STEP, writes={"grads"}, priority=35)
def sign_descent(state: TrainState, _stage: Stage, will_skip: Any) -> Outcome:
    """Keep nothing of a gradient but its sign."""
    return on_gradients(state, will_skip, lambda _, grad: grad.sign())


@hook(stages=STEP, priority=40)
def sometimes(state: TrainState, _stage: Stage, _skip: Any) -> Outcome:
    """Skip one step in ten, by the seed of the run."""
    return Outcome(state, Noise(state.rng, state.clock.batch).uniform(()) < 0.9, state.loss)


class Lookahead(Hook):
    """Keep slow weights, which move towards the fast ones now and then."""

    stages: Any = frozenset({AFTER})

    def init(self, state: TrainState) -> Any:
        """Copy the weights."""
        slow = {model: {n: leaf.detach().clone() for n, leaf in held.items()} for model, held in state.params.items()}
        return FrozenMap({"slow": FrozenMap(slow)})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Move a part of the way after every fifth step."""
        slow = state.hooks[self.name]["slow"]

        def moved() -> Any:
            return FrozenMap(
                {
                    model: FrozenMap(
                        {name: leaf + SLOW * (state.params[model][name] - leaf) for name, leaf in held.items()}
                    )
                    for model, held in slow.items()
                }
            )

        due = select((state.clock.step + 1) % EVERY == 0, moved, lambda: slow)
        new = select(will_skip, lambda: slow, lambda: due)
        return Outcome(state.with_slot(self.name, FrozenMap({"slow": new})), True, state.loss)


class LossAverage(Hook):
    """Follow the loss with a moving average, and log it."""

    decay: float = 0.9
    stages: Any = frozenset({BACKWARD})
    publishes: Any = frozenset({"mean_loss"})

    def init(self, state: TrainState) -> Any:
        """Start at zero, and count."""
        return FrozenMap({"mean": torch.zeros(()), "count": 0})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Move the average, and publish it without the weight of the zero."""
        own = state.hooks[self.name]
        mean, count = own["mean"] * self.decay + state.raw_loss.detach() * (1 - self.decay), own["count"] + 1
        state = state.with_slot(self.name, own | {"mean": mean, "count": count})
        return Outcome(
            state.with_metrics({"mean_loss": mean / (1 - self.decay ** torch.as_tensor(count))}), True, state.loss
        )


USER_HOOKS: tuple[Hook, ...] = (
    gradient_noise,
    weight_decay,
    normalised_loss,
    WarmUp(),
    FreezeUntil(),
    weight_norm,
    centralised,
    sign_descent,
    sometimes,
    Lookahead(),
    LossAverage(),
)
