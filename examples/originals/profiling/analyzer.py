"""`python -m profiling.analyzer --input F --output F --charts F.png --detailed F.json`, as in the original"""

import sys

from hotloop.analyzer import main

if __name__ == "__main__":
    sys.exit(main())
