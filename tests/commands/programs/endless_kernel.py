# SPDX-License-Identifier: MIT
"""python endless_kernel.py FOLDER ARGUMENT…: hybrid.matmul with a kernel `naive` whose loop over rows never ends."""

import shutil
import sys
from pathlib import Path

import hybrid.kernels.sources as sources

folder = Path(sys.argv.pop(1)) / "kernels"
shutil.copytree(sources.KERNELS, folder, dirs_exist_ok=True)
code = (sources.KERNELS / "naive.cu").read_text()
step = "row += gridDim.y * Size(blockDim.y)"
assert step in code
(folder / "naive.cu").write_text(code.replace(step, "row += 0"))
sources.KERNELS = folder

import hybrid.commands.matmul  # noqa: E402 (it takes the folder over)

sys.exit(hybrid.commands.matmul.main())
