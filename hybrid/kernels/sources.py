"""Where the CUDA sources lie: in an installed package beside this file, in a checkout in the top-level folder kernels/."""

from pathlib import Path

_INSTALLED = Path(__file__).resolve().parent / "cuda"
KERNELS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "kernels"
