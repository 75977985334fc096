"""SAC over parallel environments, starting from the clone, with the flags of the original script:

    python examples/originals/train_rl.py --timesteps 100000 --envs 4 --batch-size 256

Runs `hotloop train imitate --stage rl --trainer sb3`: Stable-Baselines3's SAC with SubprocVecEnv, like the
original, but with a constant number of gradient steps per env step, and the clone is really loaded. Use
`--trainer hotloop` for our SAC.
"""

import sys

from _translate import train

if __name__ == "__main__":
    sys.exit(train("imitate", ["--stage", "rl", "--trainer", "sb3", *sys.argv[1:]]))
