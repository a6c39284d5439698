"""Pages that explain, each one docstring: print one with ``help``, or build all with ``python -m tests.pages``."""
