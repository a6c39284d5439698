"""Hooks that are broken on purpose, each beside the law that it breaks."""
