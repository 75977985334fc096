"""The script people know for training with collectors of their own, over `hotloop train mario`:

    python examples/originals/mario_rl_optimized.py --epochs 20

The fast machinery on the built-in platformer. `--env mario` plays Super Mario Bros in the emulator (the extra
`mario`), `--variant original` uses the locked queue; all flags of `hotloop train mario` work.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "mario", *sys.argv[1:]]))
