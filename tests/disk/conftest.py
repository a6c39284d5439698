"""A process beside that of the tests."""

from tests.disk.process import elsewhere

__all__ = ["elsewhere"]
