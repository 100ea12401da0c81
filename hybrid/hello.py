# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.hello`: every rank greets from its CPU threads and from its GPU."""

import sys

from hybrid.commands.hello import main

if __name__ == "__main__":
    sys.exit(main())
