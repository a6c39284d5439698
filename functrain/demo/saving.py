"""Where the demo saves its run, and from where it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import functrain
from functrain.demo.digits import ALONE
from functrain.demo.options import Options
from functrain.demo.ranks import Place
from functrain.disk.folder import remove
from functrain.disk.rotation import found_in


class Saving(NamedTuple):
    """What ``fit`` is told about checkpoints.

    Attributes:
        checkpoint: when to save, and where.
        resume: the checkpoint to go on from.
    """

    checkpoint: functrain.Checkpoint | None = None
    resume: Path | None = None


UNSAVED = Saving()


class NothingToResumeError(ValueError):
    """A run was to be gone on with of which there is no checkpoint.

    >>> issubclass(NothingToResumeError, ValueError)
    True
    """


def saving_of(options: Options, place: Place = ALONE) -> Saving:
    """Return how a run saves itself: at the end of each epoch, and when it is interrupted.

    The checkpoints of an earlier run in the same folder are removed, unless it is this one that goes on. Of several
    processes the first one writes, and all go on from what it has written.

    Raises:
        NothingToResumeError: there is no checkpoint in the folder.
        CheckpointError: there are some, and all of them are damaged.
    """
    folder = checkpoints_of(options)
    resume = functrain.latest(folder) if options.resume else None
    if options.resume and resume is None:
        raise NothingToResumeError(f"there is no checkpoint in {folder} to resume from; leave --resume out")
    if not place.is_first:
        return Saving(None, resume)
    for each in [] if options.resume else found_in(folder):
        remove(each.path)
    return Saving(functrain.Checkpoint(folder, each_epoch=True, keep=2), resume)


def checkpoints_of(options: Options) -> Path:
    """Return the folder of the checkpoints.

    >>> checkpoints_of(Options()).as_posix()
    'functrain-demo/checkpoints'
    """
    return options.out / "checkpoints"
