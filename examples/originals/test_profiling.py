"""The self-check people know from the pixel project: `hotloop doctor --selfcheck`."""

import sys

from hotloop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["doctor", "--selfcheck", *sys.argv[1:]]))
