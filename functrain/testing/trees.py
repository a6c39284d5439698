"""Parameter trees: names, shapes and dtypes of models, whose they are, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from functrain import FrozenMap
from functrain._owners import Owners
from functrain.testing.checking import check_options, strategy
from functrain.testing.tensors import ORDINARY, REAL, SHAPES, Shape, tensor_of

NAMES = ("0.weight", "0.bias", "1.weight", "w")
Tree = FrozenMap[FrozenMap[Tensor]]


@strategy(check_options)
def param_trees(  # noqa: PLR0913 - what can be drawn can be said
    draw: st.DrawFn,
    *,
    models: Sequence[str] = ("main",),
    names: Sequence[str] = NAMES,
    shapes: Sequence[Shape] = SHAPES,
    dtypes: Sequence[torch.dtype] = REAL,
    elements: st.SearchStrategy[float] = ORDINARY,
    min_size: int = 1,
    max_size: int = 3,
) -> Tree:
    """Draw ``{model_key: {name: Tensor}}``, as ``state.params`` holds it.

    Args:
        draw: given by Hypothesis.
        models: keys of the models; all but the first may be empty.
        names: of parameters.
        shapes: shapes to draw from.
        dtypes: dtypes to draw from.
        elements: of each tensor.
        min_size: least number of parameters of the first model.
        max_size: most parameters of a model.

    Raises:
        InvalidArgument: an option that cannot work.

    >>> param_trees(models=("main", "teacher"))
    param_trees(models=('main', 'teacher'))
    """

    def tree(least: int) -> dict[str, Tensor]:
        chosen = draw(st.lists(st.sampled_from(names), min_size=least, max_size=max_size, unique=True))
        kinds = [(draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes))) for _ in chosen]
        return {name: draw(tensor_of(*kind, elements)) for name, kind in zip(chosen, kinds, strict=True)}

    return FrozenMap({model: FrozenMap(tree(0 if place else min_size)) for place, model in enumerate(models)})


@st.composite
def gradients(draw: st.DrawFn, params: Tree, elements: st.SearchStrategy[float]) -> Tree:
    """Draw gradients for most of the parameters."""
    return FrozenMap(
        {
            model: FrozenMap(
                {n: draw(tensor_of(tuple(w.shape), w.dtype, elements)) for n, w in held.items() if draw(FOUR_OF_FIVE)}
            )
            for model, held in params.items()
        }
    )


FOUR_OF_FIVE = st.integers(0, 4)


@st.composite
def owners(draw: st.DrawFn, params: Tree, optimizers: Sequence[str]) -> Owners:
    """Draw which optimizer holds which parameter; some are frozen, and a hand-made state may know nothing of it."""
    if draw(st.integers(0, 5)) == 0:
        return Owners({})
    places = [(model, name) for model, held in params.items() for name in held]
    keys: list[Any] = [optimizers[0], *optimizers, None]
    chosen = [draw(st.sampled_from(keys)) for _ in places]
    return Owners({key: [p for p, owner in zip(places, chosen, strict=True) if owner == key] for key in optimizers})
