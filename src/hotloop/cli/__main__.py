"""`python -m hotloop.cli`."""

import sys

from hotloop.cli.main import main

sys.exit(main())
