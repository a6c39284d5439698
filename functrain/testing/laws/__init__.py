"""The laws, one idea a file; :data:`LAWS` lists them in the order in which they are reported."""

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
