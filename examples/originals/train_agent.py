"""PPO on Ricochet Robots from pixels, with the flags of the original script:

    python train_agent.py --obs-mode rgb_image --convlstm --timesteps 50000 --enable-profiling

Runs `hotloop train ricochet` with images drawn by PIL, like the original; our default draws the same pixels
with compiled code.
"""

import sys

from _translate import has_flag, train

if __name__ == "__main__":
    words = sys.argv[1:]
    if not has_flag(words, "--convlstm", "--no-convlstm", "-h", "--help"):
        words.append("--no-convlstm")
    if not has_flag(words, "--rendering"):
        words += ["--rendering", "pil"]
    sys.exit(train("ricochet", words))
