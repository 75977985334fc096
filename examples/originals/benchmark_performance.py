"""Compares the locked queue with the fast pipeline, like the original script:

    python examples/originals/benchmark_performance.py --budget 15m

Runs `hotloop train mario --benchmark`: both variants in turn, each run a fresh process, with the same
number of gradient steps per transition. Prints a table and writes mario_benchmark.json and
mario_benchmark.png. All flags of `hotloop train mario` work too.
"""

import sys

from _translate import train

if __name__ == "__main__":
    sys.exit(train("mario", ["--benchmark", *sys.argv[1:]]))
