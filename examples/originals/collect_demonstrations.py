"""Expert demonstrations from a process pool, with the flags of the original script:

    python examples/originals/collect_demonstrations.py --episodes 100 --workers 4

Runs `hotloop train imitate --stage demos`; all its flags work too, such as `--folder DIR` or `--speedup`.
"""

import sys

from _translate import train

if __name__ == "__main__":
    sys.exit(train("imitate", ["--stage", "demos", *sys.argv[1:]]))
