"""The imperative shell: the only place that writes into real objects."""

from functrain.shell.batch_norm import reestimate_batch_norm as reestimate_batch_norm
from functrain.shell.best import Best as Best
from functrain.shell.fit import fit as fit
from functrain.shell.history import History as History
from functrain.shell.shell import Shell as Shell
from functrain.shell.snapshot import Snapshot as Snapshot
