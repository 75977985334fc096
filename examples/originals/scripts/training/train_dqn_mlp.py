"""DQN on vectorised Snake with the flags of the original script:

    python examples/originals/scripts/training/train_dqn_mlp.py --episodes 1024 --envs 256

It runs `hotloop train snake --variant original`: the slow settings, so that there is something to find. All
flags of `hotloop train snake` work, for example `--variant fast` or `--push batch`.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "snake", "--variant", "original", *sys.argv[1:]]))
