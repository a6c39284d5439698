"""What to write instead, by what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

REMEMBERED = (
    "keep what is remembered in the hook's slot: build it in init(), read state.hooks[name], and return "
    "state.with_slot(name, ...)"
)
UNWRITTEN = "make new tensors, x * y where it says x *= y or x.mul_(y), and return state.replace(...) with them"
REMEDIES: Mapping[str, str] = {
    "the hook failed: TypeError: Outcome.__new__()": "return three values: state, True, state.loss",
    "the hook failed: TypeError: functrain.": "return three values: state, True, state.loss",
    "no verdict": "return True to proceed or False to skip; of tensors (a < b).all()",
    "no loss": "return state.loss, or a 0-d tensor made of it",
    "the loss was dropped": "return state.loss as the third value where the loss is not changed",
    "the loss lost its graph": "make the new loss of state.loss by torch functions, without .item() and .detach()",
    "the hook keeps something on its own object": REMEMBERED,
    "the same input gave another output": f"{REMEMBERED}; noise comes from state.rng, see pure.Noise",
    "an equal input gave another output": f"{REMEMBERED}; noise comes from state.rng, see pure.Noise",
    "the input changed": UNWRITTEN,
    "the input was written to": UNWRITTEN,
    "a container of the input changed": UNWRITTEN,
}
"""Sentences by how the description of what is wrong begins."""


def remedy(what: str) -> str:
    """Return what to write instead, or nothing where the description says so itself.

    >>> remedy("no loss")
    'return state.loss, or a 0-d tensor made of it'
    """
    return next((text for beginning, text in REMEDIES.items() if what.startswith(beginning)), "")
