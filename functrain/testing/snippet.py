"""A violation as a program of its own: builds hook, state and scene, and checks the law again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from functrain.testing.hook_record import hook_record, hook_source
from functrain.testing.source import scene_source

if TYPE_CHECKING:
    from functrain.testing.law import Law
    from functrain.testing.violation import LawViolation

HOMES = {
    "Clock": "functrain",
    "FrozenMap": "functrain",
    "Owners": "functrain",
    "Stage": "functrain",
    "TrainState": "functrain",
    "Window": "functrain",
    "Scene": "functrain.testing",
    "laws": "functrain.testing",
}


def snippet(violation: LawViolation) -> str:
    """Return source text that raises the violation again where the hook can be imported.

    A hook without an import path (local, or of a notebook) is left to the reader: the text says what to put there,
    and is a NameError until then.

    >>> from functrain import Hook, Stage, TrainState
    >>> from functrain.testing import Breach, LawViolation, Scene, laws
    >>> scene = Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False)
    >>> print(snippet(LawViolation(laws.PURITY, scene, Breach("the input changed"))))
    import functrain
    from functrain import Stage, TrainState
    from functrain.testing import Scene, laws
    <BLANKLINE>
    hook = functrain.Hook()
    scene = Scene(hook=hook, state=TrainState(), stage=Stage.DO_BACKWARD, will_skip=False)
    laws.PURITY.check(scene)
    """
    modules: set[str] = set()
    body = [_hook_line(violation, modules), f"scene = {scene_source(violation.scene)}", _check_line(violation.law)]
    return "\n".join([*_imports("\n".join(body), modules), "", *body])


def _hook_line(violation: LawViolation, modules: set[str]) -> str:
    try:
        return f"hook = {hook_source(hook_record(violation.scene.hook), modules)}"
    except ValueError as error:
        return f"# hook = ...: put {violation.scene.hook.name!r} here. {error}".replace("\n", " ")


def _check_line(law: Law) -> str:
    name = name_of(law)
    return (
        f"laws.{name}.check(scene)"
        if name
        else f"# law = ...: put {law.name!r} here, a law of your own\nlaw.check(scene)"
    )


def name_of(law: Law) -> str | None:
    """Return the name under which ``functrain.testing.laws`` has a law, or None.

    >>> from functrain.testing import laws
    >>> name_of(laws.PURITY)
    'PURITY'
    """
    from functrain.testing import laws

    return next((name for name, value in vars(laws).items() if value is law), None)


def _imports(body: str, modules: set[str]) -> list[str]:
    """Return the lines that import what a text speaks of."""
    text = re.sub(r'"(\\.|[^"\\])*"', '""', body)
    used = [name for name in HOMES if re.search(rf"(?<![\w.]){name}\b", text)]
    if re.search(r"(?<![\w.])torch\.", text):
        modules = modules | {"torch"}
    homes = sorted({HOMES[name] for name in used})
    froms = [f"from {home} import {', '.join(sorted(n for n in used if HOMES[n] == home))}" for home in homes]
    return [*(f"import {module}" for module in sorted(modules)), *froms]
