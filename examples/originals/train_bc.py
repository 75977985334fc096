"""Behaviour cloning with parallel data loading, with the flags of the original script:

    python examples/originals/train_bc.py --epochs 50 --workers 4 --batch-size 256

It runs `hotloop train imitate --stage bc`, where `--workers` are loading processes of torch's DataLoader.
Leave them out and batches are rows of arrays in memory, which is faster for data that fit there.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "imitate", "--stage", "bc", *sys.argv[1:]]))
