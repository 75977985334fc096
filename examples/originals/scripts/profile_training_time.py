"""Where the time of a PPO run on the Petri net goes, with the flags of the original script:

    python profile_training_time.py --turbo --batches 5 --breakdown
    python profile_training_time.py --compare --batches 5 --breakdown --detailed

Runs `hotloop train petri` with TorchRL, like the original; use `--trainer hotloop` for our PPO. Shows a
breakdown unless --compare or --detailed is given.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _translate import has_flag, train

if __name__ == "__main__":
    words = sys.argv[1:]
    if not has_flag(words, "--trainer"):
        words += ["--trainer", "torchrl"]
    if not has_flag(words, "--compare", "--detailed", "--breakdown", "-h", "--help"):
        words.append("--breakdown")
    sys.exit(train("petri", words))
