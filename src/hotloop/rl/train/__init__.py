"""One file for each algorithm, read from top to bottom."""
