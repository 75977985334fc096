"""Runs plans: a fresh process for each run, interleaved, each run saved as soon as it ends."""
