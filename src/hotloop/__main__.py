"""`python -m hotloop`."""

import sys

from hotloop.cli.main import main

sys.exit(main())
