"""Every public name of functrain.testing; imported at the first one that is asked for."""

from functrain.testing.needs import HYPOTHESIS  # isort: skip - says what to install, before anything else fails

from functrain.testing import laws
from functrain.testing.breach import Breach, HookFailed
from functrain.testing.check import check_hook, check_pipeline
from functrain.testing.differences import Disagreement
from functrain.testing.drawn_configuration import from_config
from functrain.testing.drawn_hooks import hooks
from functrain.testing.drawn_pipelines import pipelines
from functrain.testing.drawn_states import batches, stages, states
from functrain.testing.drawn_tensors import losses, tensors
from functrain.testing.events import schedules
from functrain.testing.law import Law
from functrain.testing.laws import LAWS
from functrain.testing.machine import TrainingMachine
from functrain.testing.machine_of import training_machine
from functrain.testing.micro_batches import check_micro_batches
from functrain.testing.oracles import check_compiled, check_interpreters, check_lanes
from functrain.testing.report import LawReport, Row
from functrain.testing.resuming import check_restored
from functrain.testing.scene import Scene, scenes
from functrain.testing.shell_laws import check_shell
from functrain.testing.source import evaluated, scene_source, value_source
from functrain.testing.training import Training
from functrain.testing.trees import param_trees
from functrain.testing.violation import LawViolation
from functrain.testing.violation_file import replay

__all__ = [
    "HYPOTHESIS",
    "LAWS",
    "Breach",
    "Disagreement",
    "HookFailed",
    "Law",
    "LawReport",
    "LawViolation",
    "Row",
    "Scene",
    "Training",
    "TrainingMachine",
    "batches",
    "check_compiled",
    "check_hook",
    "check_interpreters",
    "check_lanes",
    "check_micro_batches",
    "check_pipeline",
    "check_restored",
    "check_shell",
    "evaluated",
    "from_config",
    "hooks",
    "laws",
    "losses",
    "param_trees",
    "pipelines",
    "replay",
    "scene_source",
    "scenes",
    "schedules",
    "stages",
    "states",
    "tensors",
    "training_machine",
    "value_source",
]
