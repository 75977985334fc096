"""SAC over parallel environments, from the clone, with the flags of the original script:

    python examples/originals/train_rl.py --timesteps 100000 --envs 4 --batch-size 256

It runs `hotloop train imitate --stage rl --trainer sb3`: Stable-Baselines3's SAC with SubprocVecEnv, as
there, but with the updates for each env step held equal and the clone really loaded. `--trainer hotloop`
is ours.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "imitate", "--stage", "rl", "--trainer", "sb3", *sys.argv[1:]]))
