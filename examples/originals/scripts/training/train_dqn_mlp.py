"""DQN on vectorised Snake, with the flags of the original script:

    python examples/originals/scripts/training/train_dqn_mlp.py --episodes 1024 --envs 256

Runs `hotloop train snake --variant original`: the slow settings, so that there is something to find. All
flags of `hotloop train snake` work too, for example `--variant fast` or `--push batch`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from _translate import train

if __name__ == "__main__":
    sys.exit(train("snake", ["--variant", "original", *sys.argv[1:]]))
