# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.matmul n l m`: C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

import sys

from hybrid.commands.matmul import main

if __name__ == "__main__":
    sys.exit(main())
