# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.doctor`: are MPI, cores, GPUs and links of this job wired right?"""

import sys

from hybrid.commands import entry

main = entry("doctor")


if __name__ == "__main__":
    sys.exit(main())
