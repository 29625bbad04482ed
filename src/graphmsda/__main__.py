"""``python -m graphmsda`` is the command."""

import sys

from graphmsda.cli import main

sys.exit(main())
