"""The bottom layer: imports nothing of ours."""

HOTLOOP_VERSION = "0.1.0"  # the same as in pyproject.toml
