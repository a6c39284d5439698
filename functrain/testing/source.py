"""States and scenes as source text that builds them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from functrain import FrozenMap, Outcome, Stage, TrainState
from functrain._clock import Clock
from functrain._owners import Owners
from functrain._tree import Record
from functrain._window import Window
from functrain.testing.forms import bits

if TYPE_CHECKING:
    from functrain.testing.scene import Scene

WIDTH = 100


def value_source(value: Any) -> str:  # noqa: PLR0911 - one a kind
    """Return a value as source text; what has no source text as Python prints it.

    >>> print(value_source(torch.tensor([0.0, 50.0])))
    torch.tensor([0.0, 50.0])
    >>> print(value_source(TrainState(loss=torch.tensor(1.0))))
    TrainState(loss=torch.tensor(1.0))
    """
    match value:
        case Tensor():
            return _tensor(value)
        case float():
            return _float(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Owners():
            return f"Owners({_mapping(value.table)})"
        case Record():
            return _record(value)
        case Mapping():
            return _mapping(cast("Mapping[Any, Any]", value))
        case Outcome():
            return f"Outcome({', '.join(map(value_source, value))})"
        case tuple() | list():
            return _sequence(cast("tuple[Any, ...]", value))
        case _:
            return repr(value)


def _float(value: float) -> str:
    return repr(value) if abs(value) < float("inf") else f'float("{value}")'


def _sequence(value: tuple[Any, ...] | list[Any]) -> str:
    inner = ", ".join(map(value_source, value))
    if isinstance(value, list):
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _tensor(value: Tensor) -> str:
    """Return the call that makes a tensor; the dtype only where torch would choose another."""
    detached = value.detach().cpu()
    if not detached.numel() and detached.shape != (0,):
        return f"torch.zeros({tuple(detached.shape)}, dtype={detached.dtype})"
    content = cast("Any", detached.tolist())
    default = torch.tensor(content).dtype is detached.dtype
    return f"torch.tensor({_content(content)}{'' if default else f', dtype={detached.dtype}'})"


def _content(content: Any) -> str:
    """Return the numbers of a tensor as nested lists."""
    if isinstance(content, list):
        return f"[{', '.join(map(_content, cast('list[Any]', content)))}]"
    if isinstance(content, complex):
        return f"complex({_float(content.real)}, {_float(content.imag)})"
    return _float(content) if isinstance(content, float) else repr(content)


def _mapping(value: Mapping[Any, Any]) -> str:
    return "{" + ", ".join(f"{value_source(key)}: {value_source(each)}" for key, each in value.items()) + "}"


def _record(value: Record) -> str:
    """Return the call that makes a state, a window or a clock; only with what differs from the default."""
    default = type(value)().__dict__
    given = {name: each for name, each in value.__dict__.items() if not _same(each, default[name])}
    return _call(type(value).__name__, {name: value_source(each) for name, each in given.items()})


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor) or isinstance(default, Tensor):
        return bits(value) == bits(default)
    if isinstance(value, Record):
        return _record(value) == f"{type(value).__name__}()"
    if isinstance(value, FrozenMap):
        return not value and isinstance(default, FrozenMap) and not default
    return value is default or bool(value == default)


def _call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a call on one line, or where that is too long with a line for each argument."""
    flat = f"{name}({', '.join(f'{key}={text}' for key, text in arguments.items())})"
    if len(flat) <= WIDTH and "\n" not in flat:
        return flat
    indented = (f"    {key}={text},".replace("\n", "\n    ") for key, text in arguments.items())
    return "\n".join([f"{name}(", *indented, ")"])


def scene_source(scene: Scene) -> str:
    """Return the call that builds a scene again, given the hook.

    >>> from functrain import Hook
    >>> from functrain.testing import Scene
    >>> print(scene_source(Scene(Hook(), TrainState(), Stage.SETUP, will_skip=False)))
    Scene(hook=hook, state=TrainState(), stage=Stage.SETUP, will_skip=False)
    """
    parts = {"hook": "hook", "state": value_source(scene.state), "stage": repr(scene.stage)}
    parts["will_skip"] = repr(scene.will_skip)
    changed = {"form": ("python", scene.form), "schedule": ((), scene.schedule)}
    return _call("Scene", parts | {name: value_source(now) for name, (was, now) in changed.items() if was != now})


def evaluated(text: str, **names: Any) -> Any:
    """Return what source text of this module builds.

    Args:
        text: of :func:`value_source` or :func:`scene_source`.
        names: what else the text speaks of: ``hook``.

    >>> evaluated("torch.tensor([0.0, 50.0])")
    tensor([ 0., 50.])
    """
    from functrain.testing.scene import Scene

    known = (TrainState, Window, Clock, Owners, FrozenMap, Outcome, Stage, Scene)
    return eval(text, {"torch": torch, **{each.__name__: each for each in known}, **names})  # noqa: S307 - our own text
