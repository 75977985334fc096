"""The training script people know from the pixel project, over `hotloop train ricochet`.

    python train_agent.py --obs-mode rgb_image --convlstm --timesteps 50000 --enable-profiling

Pictures are drawn by PIL, as there; `hotloop train ricochet` draws the same pixels compiled.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    if "--convlstm" not in words and not {"-h", "--help"} & set(words):
        words.append("--no-convlstm")
    if "--rendering" not in words:
        words += ["--rendering", "pil"]
    sys.exit(main(["train", "ricochet", *words]))
