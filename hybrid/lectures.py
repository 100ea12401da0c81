# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.lectures NAME`: the lectures' figures and programs, from a checkout or an installed package."""

import sys

from hybrid.commands import entry

main = entry("lectures")


if __name__ == "__main__":
    sys.exit(main())
