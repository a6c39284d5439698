"""Property-based laws for training-update hooks: strategies, laws, and one call that checks them all; needs Hypothesis.

from functrain.testing import check_hook
check_hook(MyHook(limit=1.0))
"""

from functrain.testing import laws as laws
from functrain.testing.check import check_hook as check_hook
from functrain.testing.check import check_pipeline as check_pipeline
from functrain.testing.law import Law as Law
from functrain.testing.laws import LAWS as LAWS
from functrain.testing.library import hooks as hooks
from functrain.testing.pipelines import pipelines as pipelines
from functrain.testing.report import LawReport as LawReport
from functrain.testing.scene import Scene as Scene
from functrain.testing.scene import scenes as scenes
from functrain.testing.states import batches as batches
from functrain.testing.states import stages as stages
from functrain.testing.states import states as states
from functrain.testing.tensors import losses as losses
from functrain.testing.tensors import tensors as tensors
from functrain.testing.trees import param_trees as param_trees
from functrain.testing.violation import LawViolation as LawViolation
