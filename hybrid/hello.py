# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.hello`: every rank greets from its CPU threads and from its GPU."""

import sys

from hybrid.commands import entry

main = entry("hello")


if __name__ == "__main__":
    sys.exit(main())
