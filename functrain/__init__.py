"""functrain: the training update of PyTorch models as a composition of pure functions.

A hook maps ``(state, stage, will_skip)`` to ``(state, proceed, loss)`` over one immutable pytree; :func:`fold` composes
hooks by priority, any veto wins, later hooks see it; :class:`Shell` applies the resulting state to real modules,
optimizers, schedulers and loss scalers.

Importing the package imports nothing else; the first name that is asked for imports all of it, torch included.

``GATED_STAGES`` are the stages whose act a hook may veto, ``UPDATE_STAGES`` those that a hook claims by default:

>>> import functrain
>>> [stage.name for stage in functrain.Stage if stage in functrain.GATED_STAGES]
['BEFORE_BATCH', 'DO_BACKWARD', 'DO_OPTIMIZER_STEP']
>>> functrain.UPDATE_STAGES - functrain.GATED_STAGES
frozenset({Stage.AFTER_OPTIMIZER_STEP})
"""

from typing import TYPE_CHECKING

from functrain._lazily import lazily

if TYPE_CHECKING:
    from functrain._public import *  # noqa: F403
    from functrain._public import __all__ as __all__
else:
    __getattr__, __dir__ = lazily(__name__)

__version__ = "0.1.0"
