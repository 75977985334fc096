"""The script people know for the time of a PPO run on the Petri net, over `hotloop train petri`.

    python profile_training_time.py --turbo --batches 5 --breakdown
    python profile_training_time.py --compare --batches 5 --breakdown --detailed

TorchRL trains, as there; `--trainer hotloop` is ours. Without --compare and --detailed a breakdown is shown.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    if "--trainer" not in words:
        words += ["--trainer", "torchrl"]
    if not {"--compare", "--detailed", "--breakdown", "-h", "--help"} & set(words):
        words.append("--breakdown")
    sys.exit(main(["train", "petri", *words]))
