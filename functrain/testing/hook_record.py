"""Hooks as JSON: import paths and configuration; and from there as hooks again, or as source text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

from pydantic import BaseModel

import functrain
from functrain import Hook, Pipeline, fold
from functrain._function_hook import FunctionHook
from functrain.testing.encoding import decoded, encoded
from functrain.testing.reference import decorated, path_of, resolved
from functrain.testing.source import value_source

NAMED = ("class", "function", "decorated")


def hook_record(hook: Any) -> dict[str, Any]:
    """Return what has to be known to build a hook again.

    Raises:
        ValueError: it has no import path, or a field that is no data.

    >>> from functrain import EMA
    >>> hook_record(EMA(decay=0.5))
    {'class': 'functrain.hooks.ema:EMA', 'fields': {'decay': 0.5}}
    """
    if isinstance(hook, Pipeline):
        return {"pipeline": [hook_record(each) for each in hook]}
    if isinstance(hook, FunctionHook) and (known := decorated(hook.function)) is not None:
        path, original = known
        fields = {name: _field(value) for name, value in hook if value != getattr(original, name)}
        return {"decorated": path, "fields": fields}
    return {"class": path_of(type(hook)), "fields": _fields(hook)}


def _fields(model: BaseModel) -> dict[str, Any]:
    """Return the fields that are not as by default, under the names by which they are given."""
    found: dict[str, Any] = {}
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        implied = name == "name" and isinstance(model, Hook) and value == model.default_name()
        if not implied and (info.is_required() or info.default_factory is not None or value != info.default):
            found[info.alias or name] = _field(value, f"{type(model).__name__}.{name}")
    return found


def _field(value: Any, where: str = "field") -> Any:
    match value:
        case Hook():
            return hook_record(value)
        case BaseModel():
            return {"class": path_of(type(value)), "fields": _fields(value)}
        case FunctionType() | BuiltinFunctionType():
            return {"function": path_of(value), "fields": {}}
        case _:
            return encoded(value, where)


def hook_of_record(record: Any) -> Any:
    """Return the hook of a record; imports what the record names, which runs code.

    Raises:
        ValueError: nothing there, or no hook; says what is wrong.

    >>> hook_of_record({"class": "functrain.hooks.ema:EMA", "fields": {"decay": 0.5}})
    EMA(decay=0.5)
    """
    built = _value(record)
    if not isinstance(built, Hook):
        raise ValueError(f"{record!r} is no hook")  # noqa: TRY004 - a damaged file is a wrong value
    return built


def _value(record: Any) -> Any:
    if not isinstance(record, dict):
        return decoded(record)
    content = cast("dict[str, Any]", record)
    if "pipeline" in content:
        return fold(*map(hook_of_record, content["pipeline"]))
    for kind in NAMED:
        if kind in content:
            fields = {name: _value(each) for name, each in content["fields"].items()}
            return BUILDERS[kind](_named(content[kind], kind), fields)
    return decoded(content)


def _named(path: str, kind: str) -> Any:
    """Return what a path names, if it is of the kind that is expected: what is called are classes of models."""
    found: Any = resolved(path)
    fits = {
        "class": _is_model(found),
        "function": isinstance(found, FunctionType | BuiltinFunctionType),
        "decorated": isinstance(found, FunctionHook),
    }
    if not fits[kind]:
        raise ValueError(f"{path} is a {type(found).__name__}, and no {kind} of a hook")
    return found


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _copied(hook: Hook, fields: dict[str, Any]) -> Hook:
    return hook.model_copy(update=fields) if fields else hook


BUILDERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "class": lambda found, fields: found(**fields),
    "function": lambda found, _: found,
    "decorated": _copied,
}


def hook_source(record: Any, modules: set[str]) -> str:
    """Return a record as source text, and add the modules that it needs.

    >>> needed = set()
    >>> hook_source({"class": "functrain.hooks.ema:EMA", "fields": {"decay": 0.5}}, needed), needed
    ('functrain.EMA(decay=0.5)', {'functrain'})
    """
    if not isinstance(record, dict):
        return value_source(decoded(record))
    content = cast("dict[str, Any]", record)
    inner = partial(hook_source, modules=modules)
    if "pipeline" in content:
        modules.add("functrain")
        return f"functrain.fold({', '.join(map(inner, content['pipeline']))})"
    for kind in NAMED:
        if kind in content:
            fields = {name: inner(each) for name, each in content["fields"].items()}
            return SOURCES[kind](_name(content[kind], modules), fields)
    return value_source(decoded(content))


def _name(path: str, modules: set[str]) -> str:
    """Return the shortest name under which something is imported."""
    module, _, name = path.partition(":")
    public = name in functrain.__all__ and getattr(functrain, name) is resolved(path)
    modules.add("functrain" if public else module)
    return f"{'functrain' if public else module}.{name}"


def _call(name: str, fields: dict[str, str]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in fields.items())})"


def _copy(name: str, fields: dict[str, str]) -> str:
    items = ", ".join(f'"{key}": {value}' for key, value in fields.items())
    return f"{name}.model_copy(update={{{items}}})" if fields else name


SOURCES: dict[str, Callable[[str, dict[str, str]], str]] = {
    "class": _call,
    "function": lambda name, _: name,
    "decorated": _copy,
}
