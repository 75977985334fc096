"""`python -m profiling.analyzer`, as in the pixel project."""
