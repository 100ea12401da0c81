# SPDX-License-Identifier: MIT
"""A benchmark by its name: python scripts/bench.py CASE [OPTION...]. Without a case they are listed."""

import sys

from experiments.start import run

CASES = {  # the module with its function, and what it measures
    "hosts": ("bench.hosts", "from host memory to host memory, beside the program one writes by hand"),
    "check": ("bench.products:check", "what the check of a product costs"),
    "precision": ("bench.products:precision", "products from remainders beside cuBLAS"),
    "types": ("bench.products:types", "complex numbers and integers beside the library's matmul"),
    "cpu": ("bench.cpu", "on CPUs beside NumPy"),
    "nodes": ("bench.nodes", "between nodes beside MPI_Allgatherv and ScaLAPACK"),
    "scaling": ("bench.scaling", "runs on more and more nodes"),
    "ablation": ("bench.ablation", "what each mechanism is worth"),
    "accuracy": ("bench.accuracy", "errors of products in every arithmetic"),
    "detection": ("bench.detection", "which faults the check finds"),
}

case = sys.argv[1] if len(sys.argv) > 1 else ""
if case in CASES:
    sys.argv[:2] = [f"{sys.argv[0]} {case}"]
    run(CASES[case][0])
if case not in ("", "-h", "--help"):
    print(f"bench.py: no benchmark {case}: one of {', '.join(CASES)}", file=sys.stderr)
    sys.exit(2)
print(
    "usage: python scripts/bench.py CASE [OPTION...]\n\n" * bool(case)
    + "\n".join(f"{name:<11}{CASES[name][1]}" for name in CASES)
)
