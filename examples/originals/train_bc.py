"""Behaviour cloning with parallel data loading, with the flags of the original script:

    python examples/originals/train_bc.py --epochs 50 --workers 4 --batch-size 256

Runs `hotloop train imitate --stage bc`, where `--workers` is the number of DataLoader workers. Without it,
batches are rows of arrays in memory, which is faster for data that fits there.
"""

import sys

from _translate import train

if __name__ == "__main__":
    sys.exit(train("imitate", ["--stage", "bc", *sys.argv[1:]]))
