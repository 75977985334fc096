"""Runs another script under torch.profiler from beginning to end."""

import runpy
import sys

import torch

sys.argv = sys.argv[1:]
with torch.profiler.profile():
    runpy.run_path(sys.argv[0], run_name="__main__")
