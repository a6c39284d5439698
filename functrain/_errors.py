"""One exception class per kind of failure, each a subclass of the builtin that users would catch."""

from __future__ import annotations


class StructureError(TypeError):
    """A hook changed the structure, a shape, a dtype, a device or a static field of the state.

    >>> issubclass(StructureError, TypeError)
    True
    """


class PurityError(RuntimeError):
    """A hook wrote into its input, or changed a field that it does not declare in ``writes``.

    >>> issubclass(PurityError, RuntimeError)
    True
    """


class SkipLimitError(RuntimeError):
    """More optimizer steps in a row were skipped than a hook allows.

    >>> issubclass(SkipLimitError, RuntimeError)
    True
    """


class CheckpointError(ValueError):
    """A checkpoint is damaged, foreign, or does not fit what it is loaded into; nothing was loaded.

    >>> issubclass(CheckpointError, ValueError)
    True
    """
