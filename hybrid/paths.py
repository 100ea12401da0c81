# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.paths GRAPH --length L`: how many walks of a length lead from where to where?"""

import sys

from hybrid.commands import entry

main = entry("paths")


if __name__ == "__main__":
    sys.exit(main())
