"""Expert demonstrations over a process pool, with the flags of the original script:

    python examples/originals/collect_demonstrations.py --episodes 100 --workers 4

It runs `hotloop train imitate --stage demos`; all its flags work, such as `--folder DIR` or `--speedup`.
"""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "imitate", "--stage", "demos", *sys.argv[1:]]))
