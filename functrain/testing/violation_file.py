"""A violation as a small file of data, and the same violation again out of the file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from functrain import Hook, Stage
from functrain._function_hook import as_hook
from functrain._sealed import parsed, sealed, unsealed
from functrain.testing.encoding import decoded, encoded
from functrain.testing.hook_record import hook_of_record, hook_record
from functrain.testing.law import Law
from functrain.testing.scene import Scene
from functrain.testing.violation import LawViolation

FORMAT = "a violation of a law of functrain, version 1"


def save_violation(violation: LawViolation, path: str | PathLike[str]) -> Path:
    """Write a violation as JSON: law, hook, state and stage; folders are made.

    Raises:
        ValueError: the state holds what is no data, with its place.
    """
    scene = violation.scene
    content = {
        "law": _law_record(violation.law),
        "hook": _hook_or_reason(scene.hook),
        "scene": {
            "state": encoded(scene.state),
            "stage": scene.stage.name,
            "will_skip": scene.will_skip,
            "form": scene.form,
            "schedule": list(scene.schedule),
        },
        "told": violation.headline(),
        "blob": violation.blob,
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(sealed(FORMAT, content, indent=1), encoding="utf-8")
    return target


def _law_record(law: Law) -> dict[str, str]:
    return {"name": law.name, "statement": law.statement}


def _hook_or_reason(hook: Hook) -> dict[str, Any]:
    try:
        return hook_record(hook)
    except ValueError as error:
        return {"text": repr(hook), "reason": str(error)}


def replay(path: str | PathLike[str], hook: Any = None, *, law: Law | None = None) -> None:
    """Check a law again on the scene that a file holds, and so raise the violation again if it is still there.

    The file is data: reading it builds tensors, numbers and containers. **Without** ``hook`` the hook is imported by
    the name that the file gives, which runs the module of that name, and is built from the file's configuration: leave
    it out only for a file that you trust. **With** ``hook`` nothing is imported that the file names.

    Args:
        path: of a file that :meth:`LawViolation.save` or the pytest plugin has written.
        hook: the hook, or function, to check instead of importing one; of the same name: the state holds its slot.
        law: the law, if it is none of ``functrain.testing.laws``.

    Raises:
        LawViolation: the law is still broken.
        HookFailed: the hook raises before that can be seen.
        ValueError: a damaged or foreign file, an unknown law, or a hook that cannot be imported.
        OSError: no such file.

    >>> import tempfile
    >>> from functrain import Stage, TrainState
    >>> from functrain.testing import Breach, laws
    >>> scene = Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False)
    >>> violation = LawViolation(laws.PURITY, scene, Breach("a false alarm"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replay(violation.save(f"{folder}/violation.json"))
    """
    content = _content(Path(path))
    try:
        chosen = _known_law(content["law"]) if law is None else law
        found = _known_hook(content["hook"]) if hook is None else as_hook(hook)
        scene = _scene(content["scene"], found)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    chosen.check(scene)


def _content(path: Path) -> dict[str, Any]:
    """Return what a file holds, if it is what was written."""
    try:
        whole = parsed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no file of a violation: {error}") from error
    if whole.get("format") != FORMAT:
        raise ValueError(f"{path} is no file of a violation: its format is not {FORMAT!r}")
    try:
        return unsealed(whole)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _known_law(record: dict[str, str]) -> Law:
    from functrain.testing.laws import THOROUGH

    for law in THOROUGH:
        if _law_record(law) == record:
            return law
    raise ValueError(f"{record['name']!r} is no law of functrain.testing.laws; write replay(path, law=...)")


def _known_hook(record: dict[str, Any]) -> Hook:
    if "reason" in record:
        raise ValueError(f"{record['text']} could not be named ({record['reason']}); write replay(path, hook=...)")
    return hook_of_record(record)


def _scene(record: dict[str, Any], hook: Hook) -> Scene:
    return Scene(
        hook=hook,
        state=decoded(record["state"]),
        stage=Stage[record["stage"]],
        will_skip=record["will_skip"] is True,
        form=record["form"],
        schedule=tuple(record["schedule"]),
    )
