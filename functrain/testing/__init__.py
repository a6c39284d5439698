"""Property-based laws for training-update hooks, and the strategies that they run on; needs Hypothesis."""

from functrain.testing.library import hooks as hooks
from functrain.testing.pipelines import pipelines as pipelines
from functrain.testing.scene import Scene as Scene
from functrain.testing.scene import scenes as scenes
from functrain.testing.states import batches as batches
from functrain.testing.states import stages as stages
from functrain.testing.states import states as states
from functrain.testing.tensors import losses as losses
from functrain.testing.tensors import tensors as tensors
from functrain.testing.trees import param_trees as param_trees
