"""The laws, one idea a file; ``LAWS`` lists them in the order in which they are reported, ``THOROUGH`` with one more.

>>> from functrain.testing import laws
>>> names = {getattr(laws, name): name for name in dir(laws)}
>>> for law in laws.THOROUGH:
...     print(f"{names[law]:<12}  {law.name:<19}  {law.statement}")
CONTRACT      L1 contract          returns (TrainState, bool or 0-d bool tensor, scalar tensor or None)
PURITY        L2 purity            writes nothing of its input; equal inputs give bitwise equal outputs
STRUCTURE     L3 structure         structure, shapes, dtypes, devices and static fields stay
LOCALITY      L4 locality          identity outside the stages it claims
FRAME         L5 frame             changes only slot, metrics, loss and what writes declares
VETO_SAFETY   L6 veto safety       a vetoed step moves no gradient, parameter or shadow
TRACEABLE     L7 traceable         the same under compile(fullgraph=True), one graph over many steps
LANES_ALONE   L8 vmap              lane i of a vmapped run equals the run of lane i alone
ROUND_TRIP    L9 round trip        slot and configuration survive save and load bitwise
MONOID        L10 monoid           fold() is the unit, + is associative, order is the stable sort
FOLD          L10 fold             the fold is what calling the members one by one does
VETO          L11 veto             proceeds iff every member proceeds; will_skip only grows
NO_RESCUE     L11 no rescue        adding a hook never turns a skip into a step
EXACTLY_ONCE  L12 exactly once     each claiming hook is called once per stage, veto or not
AGREEMENT     L13 agreement        shell and pure engine do the same
DONATION      L14 donation         a donated call returns bitwise what the undonated one returns
FORMS         forms                written once: Python numbers and 0-d tensors give the same
IDEMPOTENT    clip: idempotent     clipping twice is clipping once, up to 1e-6
DIRECTION     clip: direction      every gradient times one factor between 0 and 1
BOUNDED       clip: bounded        what is applied is at most the limit
BETWEEN       ema: between         the shadow stays between where it was and the weights
FIXED_POINT   ema: fixed point     weights that stand still leave the shadow
FIRST         ema: unbiased start  the first update copies the weights
MICRO         accumulate: k in one  k micro-batches equal one batch
UNSCALING     scaler: identity     unscale after scale is the identity for powers of two
MONOTONE      skip: monotone       what passes a threshold passes a larger one
COMPILED      L7 compiled          the same under compile(fullgraph=True), one graph over many steps, by Inductor
"""

from functrain.testing.law import Law
from functrain.testing.laws.clip import BOUNDED, DIRECTION, IDEMPOTENT
from functrain.testing.laws.contract import CONTRACT
from functrain.testing.laws.donation import DONATION, FORMS
from functrain.testing.laws.ema import BETWEEN, FIRST, FIXED_POINT
from functrain.testing.laws.frame import FRAME
from functrain.testing.laws.lanes import LANES_ALONE
from functrain.testing.laws.locality import LOCALITY
from functrain.testing.laws.monoid import FOLD, MONOID
from functrain.testing.laws.purity import PURITY
from functrain.testing.laws.round_trip import ROUND_TRIP
from functrain.testing.laws.runs import AGREEMENT, MICRO
from functrain.testing.laws.scaler import UNSCALING
from functrain.testing.laws.skip import MONOTONE
from functrain.testing.laws.structure import STRUCTURE
from functrain.testing.laws.traceable import COMPILED, TRACEABLE
from functrain.testing.laws.veto import EXACTLY_ONCE, NO_RESCUE, VETO
from functrain.testing.laws.veto_safety import VETO_SAFETY

LAWS: tuple[Law, ...] = (
    CONTRACT,
    PURITY,
    STRUCTURE,
    LOCALITY,
    FRAME,
    VETO_SAFETY,
    TRACEABLE,
    LANES_ALONE,
    ROUND_TRIP,
    MONOID,
    FOLD,
    VETO,
    NO_RESCUE,
    EXACTLY_ONCE,
    AGREEMENT,
    DONATION,
    FORMS,
    IDEMPOTENT,
    DIRECTION,
    BOUNDED,
    BETWEEN,
    FIXED_POINT,
    FIRST,
    MICRO,
    UNSCALING,
    MONOTONE,
)
"""Every law, L1 to L14 and those of the families; each says itself which hooks it applies to."""

THOROUGH: tuple[Law, ...] = (*LAWS, COMPILED)
"""And with Inductor."""

__all__ = [
    "AGREEMENT",
    "BETWEEN",
    "BOUNDED",
    "COMPILED",
    "CONTRACT",
    "DIRECTION",
    "DONATION",
    "EXACTLY_ONCE",
    "FIRST",
    "FIXED_POINT",
    "FOLD",
    "FORMS",
    "FRAME",
    "IDEMPOTENT",
    "LANES_ALONE",
    "LAWS",
    "LOCALITY",
    "MICRO",
    "MONOID",
    "MONOTONE",
    "NO_RESCUE",
    "PURITY",
    "ROUND_TRIP",
    "STRUCTURE",
    "THOROUGH",
    "TRACEABLE",
    "UNSCALING",
    "VETO",
    "VETO_SAFETY",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
