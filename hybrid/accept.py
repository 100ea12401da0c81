# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.accept`: does every device multiply right, and as fast as the others?"""

import sys

from hybrid.commands import entry

main = entry("accept")


if __name__ == "__main__":
    sys.exit(main())
