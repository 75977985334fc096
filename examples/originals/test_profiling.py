"""Self-check of the profiler, like the original script: runs `hotloop doctor --selfcheck`."""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["doctor", "--selfcheck", *sys.argv[1:]]))
