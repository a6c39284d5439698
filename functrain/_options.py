"""The options of a configuration: a signature that can be read, and sentences where a name is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import Parameter, Signature
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

COMMON = ("name", "priority", "stages", "writes", "publishes", "reads", "exclusive", "rank_local")
"""What every hook has; the options of one's own come first."""


def signature_of(kind: type[BaseModel]) -> Signature:
    """Return the options of a class with their plain types and defaults, its own ones first; all by name.

    >>> class Half(BaseModel):
    ...     factor: float = 0.5
    >>> print(signature_of(Half))
    (*, factor: float = 0.5)
    """
    return Signature([_parameter(name, field) for name, field in _fields_by_option(kind).items()])


def options_of(kind: type[BaseModel]) -> list[str]:
    """Return the names of all options as they are given, those of the class first, those of every hook last."""
    return [*_fields_by_option(kind)]


def _fields_by_option(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    fields = kind.model_fields
    declared = dict.fromkeys(name for each in kind.__mro__ for name in vars(each).get("__annotations__", ()))
    names = [name for name in declared if name in fields]
    ordered = [each for each in names if each not in COMMON] + [each for each in COMMON if each in names]
    return {fields[name].alias or name: fields[name] for name in ordered}


def _parameter(name: str, field: FieldInfo) -> Parameter:
    default = Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_plain(field.annotation))


def _plain(annotation: Any) -> Any:
    """Return an annotation without the checks that pydantic finds in it."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_plain, get_args(annotation)))]  # noqa: UP007 - of as many as there are
    return annotation


def refuse_positional(kind: type[BaseModel], values: Iterable[Any]) -> None:
    """Refuse options without names.

    Raises:
        TypeError: there are some; says what to write.
    """
    given, names = list(values), options_of(kind)
    if given and not names:
        raise TypeError(f"{kind.__name__} takes no options; write {kind.__name__}()")
    if given:
        msg = (
            f"{kind.__name__} takes its options by name: write {kind.__name__}({names[0]}={given[0]!r}), "
            f"if that is what you mean; {_listed(kind)}"
        )
        raise TypeError(msg)


def explained(kind: type[BaseModel], error: ValidationError) -> ValidationError:
    """Return an error that names, for each option that there is not, the nearest one and all that there are."""
    found = [_explained(kind, each) for each in error.errors(include_url=False)]
    return ValidationError.from_exception_data(error.title, found)


def _explained(kind: type[BaseModel], found: ErrorDetails) -> InitErrorDetails:
    """Return one error as it was, or, of an unknown option, with what to write instead."""
    details = InitErrorDetails(type=found["type"], loc=found["loc"], input=found["input"], ctx=found.get("ctx", {}))
    if found["type"] == "extra_forbidden" and len(found["loc"]) == 1:
        near = get_close_matches(str(found["loc"][0]), options_of(kind))
        hint = f"did you mean {near[0]!r}? " if near else ""
        message = f"{kind.__name__} has no such option; {hint}{_listed(kind)}"
        details["type"] = PydanticCustomError("extra_forbidden", cast("Any", message))
    return details


def _listed(kind: type[BaseModel]) -> str:
    return f"the options of {kind.__name__}: {', '.join(options_of(kind)) or 'none'}"
