"""The script people know for comparing the locked queue with the fast path, over `hotloop train mario`:

    python examples/originals/benchmark_performance.py --budget 15m

Both variants in turn, in fresh processes, at equal updates for each transition; prints the table and writes
mario_benchmark.json and mario_benchmark.png. All flags of `hotloop train mario` work.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "mario", "--benchmark", *sys.argv[1:]]))
