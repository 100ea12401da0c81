# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.lab run FILE.cu`: is a CUDA kernel that multiplies matrices right, and if not, why?"""

import sys
from typing import Any

from hybrid.commands import entry

main = entry("lab")


def load_ipython_extension(shell: Any) -> None:
    """%load_ext hybrid.lab: notebooks get the magic %%cuda_lab."""
    from hybrid.commands.lab_work import cuda_lab

    shell.register_magic_function(cuda_lab, "cell")


if __name__ == "__main__":
    sys.exit(main())
