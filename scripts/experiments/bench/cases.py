# SPDX-License-Identifier: MIT
"""A benchmark by its name: python scripts/bench.py CASE [OPTION...]

Without a case they are listed.
"""

import sys

from experiments.common.frame import command, option, parser_of
from experiments.start import main_of

CASES = {  # the module with its function, and what it measures
    "hosts": ("bench.hosts:main", "from host memory to host memory, beside the program one writes by hand"),
    "check": ("bench.products:check", "what the check of a product costs"),
    "precision": ("bench.products:precision", "products from remainders beside cuBLAS"),
    "types": ("bench.products:types", "complex numbers and integers beside the library's matmul"),
    "cpu": ("bench.cpu:main", "on CPUs beside NumPy"),
    "nodes": ("bench.nodes:main", "between nodes beside MPI_Allgatherv and ScaLAPACK"),
    "scaling": ("bench.scaling:main", "runs on more and more nodes"),
    "ablation": ("bench.ablation:main", "what each mechanism is worth"),
    "accuracy": ("bench.accuracy:main", "errors of products in every arithmetic"),
    "detection": ("bench.detection:main", "which faults the check finds"),
}


def main() -> int:
    case, *words = sys.argv[1:] or [""]
    if case not in CASES:
        named = option("case", nargs="?", choices=tuple(CASES), metavar="CASE", help=", ".join(CASES))
        return command(parser_of(__doc__, named), lambda _: _list())
    sys.argv = [f"{sys.argv[0]} {case}", *words]
    return main_of(CASES[case][0])()


def _list() -> int:
    print(*(f"{name:<11}{about}" for name, (_, about) in CASES.items()), sep="\n")
    return 0
