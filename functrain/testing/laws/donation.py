"""L14: donation saves memory and changes no number; and the two forms of numbers make no difference either."""

from __future__ import annotations

from dataclasses import replace

from functrain import Outcome
from functrain.testing.breach import Breach, HookFailed, require_same_outcome
from functrain.testing.forms import in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def check_donation(scene: Scene) -> None:
    """Check that a donated call gives what the undonated one gives."""
    kept, given = scene.run(), scene.run(donated=True)
    if not given.state.donated:
        raise Breach("donation was taken back", "state.donated", expected=True, found=False)
    given = given._replace(state=given.state.replace(donated=False))
    require_same_outcome(kept, given, "donated and undonated differ")


def check_forms(scene: Scene) -> None:
    """Check that Python numbers and 0-d tensors make the same decisions and the same tensors."""
    python, tensor = (_outcome_or_failure(replace(scene, form=form)) for form in ("python", "tensor"))
    if isinstance(python, Outcome) and isinstance(tensor, Outcome):
        python = Outcome(*(in_form(part, "tensor") for part in python))
        require_same_outcome(python, tensor, "Python numbers and 0-d tensors differ")
    elif isinstance(tensor, HookFailed):
        if isinstance(python, HookFailed):
            raise python
        raise Breach(f"works on Python numbers and fails on 0-d tensors: {tensor}") from tensor.__cause__
    elif isinstance(python, HookFailed):
        raise Breach(f"works on 0-d tensors and fails on Python numbers: {python}") from python.__cause__


def _outcome_or_failure(scene: Scene) -> Outcome | HookFailed:
    try:
        return scene.run()
    except HookFailed as failure:
        return failure


DONATION = Law("L14 donation", "a donated call returns bitwise what the undonated one returns", check_donation)
FORMS = Law("forms", "written once: Python numbers and 0-d tensors give the same", check_forms)
