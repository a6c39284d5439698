"""L4: nothing happens at a stage that a hook does not claim."""

from __future__ import annotations

from functrain import Pipeline, Stage
from functrain.testing.breach import Breach
from functrain.testing.forms import in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene, outcome_of


def check_locality(scene: Scene) -> None:
    """Check that outside the claimed stages the very same state and loss come back."""
    state = in_form(scene.state, scene.form)
    for stage in Stage:
        if stage not in scene.hook.stages:
            for will_skip in (False, True):
                found = outcome_of(scene.hook, state, stage, will_skip)
                if found.state is not state:
                    raise Breach(f"another state at {stage.name}, which it does not claim", "state")
                if found.loss is not state.loss:
                    raise Breach(f"another loss at {stage.name}", "loss", state.loss, found.loss)
                passed = not will_skip if isinstance(scene.hook, Pipeline) else True
                if found.proceed is not passed:
                    raise Breach(f"a verdict at {stage.name}", "proceed", passed, found.proceed)


LOCALITY = Law("L4 locality", "identity outside the stages it claims", check_locality)
