# SPDX-License-Identifier: MIT
"""Does every CUDA kernel compile, and fit, on every GPU? `python scripts/compile_kernels.py --help` says how to ask."""

from experiments.start import run

run("checks.compile_kernels")
