"""Mario DQN with parallel collectors, with the flags of the original script:

    python examples/originals/mario_rl_optimized.py --epochs 20

Runs `hotloop train mario` on the built-in platformer. `--env mario` plays Super Mario Bros in the emulator
(extra `mario`), `--variant original` uses one locked queue. All flags of `hotloop train mario` work too.
"""

import sys

from _translate import train

if __name__ == "__main__":
    sys.exit(train("mario", sys.argv[1:]))
