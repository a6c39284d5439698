"""JSON that says what it is and whether it is whole: a format, a digest of the content, the content."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn, cast


def sealed(form: str, content: Any, *, indent: int | None = None) -> str:
    """Return content as the text of a file.

    >>> json.loads(sealed("a letter", {"to": "you"}))["format"]
    'a letter'
    """
    whole = {"format": form, "sha256": digest(content), "content": content}
    return json.dumps(whole, indent=indent, allow_nan=False) + "\n"


def digest(content: Any) -> str:
    """Return the SHA-256 of what JSON holds, whatever the order of its keys and its spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parsed(text: str) -> dict[str, Any]:
    """Return an object out of JSON.

    Raises:
        ValueError: no JSON, nested too deeply, with a number that is none, or no object.

    >>> parsed('{"a": 1}')
    {'a': 1}
    """
    try:
        whole: Any = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(whole, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - the content of a file
    return cast("dict[str, Any]", whole)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def unsealed(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the content of what was sealed.

    Raises:
        ValueError: the content is not what was written.

    >>> unsealed(parsed(sealed("a letter", {"to": "you"})))
    {'to': 'you'}
    """
    content = whole.get("content")
    if not isinstance(content, dict) or whole.get("sha256") != _digest_or_nothing(content):
        raise ValueError("its content is not what was written (sha256)")
    return cast("dict[str, Any]", content)


def _digest_or_nothing(content: Any) -> str | None:
    try:
        return digest(content)
    except RecursionError:  # nested more deeply than anything that was written
        return None
