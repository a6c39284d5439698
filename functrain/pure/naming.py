"""Which tensors of real modules a pure run holds, and under which names a module wants them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from functrain.pure.protocol import taken_in
from functrain.shell.names import named_buffers, named_parameters

Named: TypeAlias = dict[str, dict[str, Tensor]]


def parameters_of(modules: Mapping[str, nn.Module]) -> Named:
    """Return parameters by model key and plain name, each once, also where two models share it.

    Raises:
        ValueError: a parameter without a shape.
    """
    held = _once({key: named_parameters(module) for key, module in modules.items()})
    for key, leaves in held.items():
        for name, leaf in leaves.items():
            if is_lazy(leaf):
                msg = f'parameter "{name}" of model "{key}" has no shape yet; run one batch through the module first'
                raise ValueError(msg)
    return held


def buffers_of(modules: Mapping[str, nn.Module]) -> Named:
    """Return buffers by model key and plain name, each once."""
    return _once(
        {key: {name: at[own] for name, (at, own) in named_buffers(each).items()} for key, each in modules.items()}
    )


def _once(held: Mapping[str, Mapping[str, Tensor]]) -> Named:
    """Return tensors by model key and name, each under the first of its names."""
    seen: set[int] = set()
    found: Named = {key: {} for key in held}
    for key, leaves in held.items():
        for name, leaf in leaves.items():
            if id(leaf) not in seen:
                seen.add(id(leaf))
                found[key][name] = leaf
    return found


def places_of(whole: nn.Module) -> dict[int, list[str]]:
    """Return all names of each tensor; a part that occurs twice counts once, or it would not be restored."""
    found: dict[int, list[str]] = {}
    for prefix, part in cast("Iterator[tuple[str, nn.Module]]", whole.named_modules()):
        held: dict[str, Tensor | None] = part._parameters | part._buffers  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - with tied ones
        for name, leaf in held.items():
            if leaf is not None:
                found.setdefault(id(leaf), []).append(f"{prefix}.{name}")
    return found


def placed(held: Named, places: Mapping[int, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Return, by model key and plain name, the names that ``functional_call`` wants."""
    return {key: {name: places[id(leaf)] for name, leaf in leaves.items()} for key, leaves in held.items()}


def filled(wanted: Mapping[str, Mapping[str, list[str]]], given: Any, what: str) -> dict[str, Tensor]:
    """Return tensors under the names that ``functional_call`` wants.

    Raises:
        KeyError: other names than the modules have; torch would go on with the module's own tensors.
    """
    held = taken_in(given or {})
    for key, names in wanted.items():
        there = held.get(key, {})
        if names.keys() != there.keys():
            missing, unknown = sorted(names.keys() - there.keys()), sorted(there.keys() - names.keys())
            msg = (
                f'{what} of model "{key}" lack {missing} and have {unknown} beyond its own; '
                f"start from functrain.pure.{'parameters' if what == 'params' else what}(models)"
            )
            raise KeyError(msg)
    if strangers := sorted(key for key in held.keys() - wanted.keys() if held[key]):
        msg = f"{what} of models {strangers}, which are not among {sorted(wanted)}"
        raise KeyError(msg)
    return {real: held[key][name] for key, names in wanted.items() for name, at in names.items() for real in at}
