# SPDX-License-Identifier: MIT
"""The folder of the CUDA sources: in an installed package beside this file, in a checkout the top-level kernels/."""

from pathlib import Path

_INSTALLED = Path(__file__).resolve().parent / "cuda"
KERNELS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "kernels"
