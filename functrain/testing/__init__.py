"""Laws for training-update hooks that anyone can run on their own: strategies, laws, oracles; needs Hypothesis.

One call checks every law on a hook, and says with a minimal example which it breaks::

    from functrain.testing import check_hook

    check_hook(MyHook(limit=1.0))

``LAWS`` are those that it checks, in the order of the report; :mod:`functrain.testing.laws` shows them all.
``HYPOTHESIS`` is the version of Hypothesis that draws them, since a blob of ``reproduce_failure`` needs the same.

>>> from functrain.testing import HYPOTHESIS, LAWS
>>> [law.name for law in LAWS][:3], HYPOTHESIS.count(".")
(['L1 contract', 'L2 purity', 'L3 structure'], 2)

Importing the package imports nothing else, so that the pytest plugin in it costs nothing where it is not used.
"""

from typing import TYPE_CHECKING

from functrain._lazily import lazily

if TYPE_CHECKING:
    from functrain.testing._public import *  # noqa: F403
    from functrain.testing._public import __all__ as __all__
else:
    __getattr__, __dir__ = lazily(__name__)
