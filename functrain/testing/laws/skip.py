"""What a threshold for spikes must do: a larger one lets more pass."""

from __future__ import annotations

from dataclasses import replace

from functrain import Hook, SkipSpikes, Stage
from functrain.testing.breach import Breach
from functrain.testing.law import Law
from functrain.testing.scene import Scene

THRESHOLDS = ("limit", "ratio", "deviations")


def is_spikes(hook: Hook) -> bool:
    """Tell a skipping of spikes that is in no wrapper."""
    return isinstance(hook, SkipSpikes)


def check_monotone(scene: Scene) -> None:
    """Check that what passes one threshold passes every larger one; a window has seen a loss before it is judged."""
    seen = replace(scene, state=scene.run(stage=Stage.DO_BACKWARD, will_skip=False).state)
    for stage, judged in ((Stage.DO_BACKWARD, scene), (Stage.DO_OPTIMIZER_STEP, seen)):
        passed = False
        for more in (0.0, 0.5, 8.0, float("inf")):
            passes = bool(_raised(judged, more).run(stage=stage, will_skip=False).proceed)
            if passed and not passes:
                raise Breach(
                    f"a threshold that is {more} larger lets less pass at {stage.name}", "proceed", True, False
                )
            passed = passes


def _raised(scene: Scene, more: float) -> Scene:
    """Return the scene with a larger threshold in the slot."""
    slot = scene.state.hooks[scene.hook.name]
    statistic = slot["statistic"]
    larger = {name: statistic[name] + more for name in THRESHOLDS if name in statistic}
    changed = slot | {"statistic": statistic | larger}
    return replace(scene, state=scene.state.with_slot(scene.hook.name, changed))


MONOTONE = Law("skip: monotone", "what passes a threshold passes a larger one", check_monotone, is_spikes)
