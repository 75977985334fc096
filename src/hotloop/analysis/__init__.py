"""Pure functions from captures to findings. No files, no clock, no plots."""
