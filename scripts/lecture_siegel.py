"""Matrix multiplication in three programs: python scripts/lecture_siegel.py [--picture FILE.svg]

The CUDA lecture's seq (three loops on one core), matmul1 (a thread an element) and matmul2 (tiles in shared memory) at 8000×8000
in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here its time is extrapolated from smaller
sizes, in both orders of the loops, and so too short where larger matrices leave the caches. Then how often each element is read
from global memory, counted; and several devices, from one process that sets one after the other, and from as many ranks.

Kernels are timed by CUDA events, with allocation and copies beside them. Without a GPU they run on the CPU's CUDA runtime at
200×200, and two devices are pretended: products are checked, and nothing is said of their speed. --quick takes smaller sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ladder import count_loads
from lecture_common import Line, at_least_1, command, lines_of, on, parser_for, present, refuse_too_large, shown, spread
from lecture_names import ORDERS, SIEGEL_PROGRAMS
from lecture_places import Place, place_for
from lecture_several import by_one_process, by_ranks, counts_up_to, places_like
from lecture_siegel_results import COUNTED, DTYPE, N, Results, draw, table
from lecture_timing import kernel_of, kernel_seconds, loops_seconds, matrices, whole_seconds

from hybrid.errors import DeviceUnavailable

NAME = "lecture_siegel"
SEQ_SIZES, SEQ_QUICK = (250, 500, 1000), (100, 200)
SIZES, QUICK = {"cuda": N, "emulate": 200}, {"cuda": 1000, "emulate": 72}
REPEAT, LOOPS_REPEAT, WHOLE_REPEAT = 5, 3, 3


# --- measuring


def measured(place: Place, n: int, seq_sizes: Sequence[int]) -> Iterator[Line]:
    for part in (_seq(seq_sizes), _kernels(place, n), _loads(), _several(place, n)):
        for line in part:
            yield {**on(place), **line}


def _seq(sizes: Sequence[int]) -> Iterator[Line]:
    jobs = [(size, kernel) for size in sizes for kernel in ORDERS]
    for size, kernel in shown(jobs, "seq"):
        a, b = matrices("uniform", DTYPE, size, size, size)
        try:
            seconds = spread(loops_seconds(kernel, a, b, LOOPS_REPEAT))
        except DeviceUnavailable as missing:
            print(f"seq is left out: {missing}", file=sys.stderr)
            return
        yield {"part": "seq", "kernel": kernel, "n": size, "seconds": seconds}


def _kernels(place: Place, n: int) -> Iterator[Line]:
    a, b = matrices("uniform", DTYPE, n, n, n)
    for program, kernel in shown(list(SIEGEL_PROGRAMS.items()), "kernels"):
        seconds = spread(kernel_seconds(place, kernel_of(kernel), a, b, REPEAT))
        repeat = WHOLE_REPEAT if place.device == "cuda" else 1
        whole = spread(whole_seconds(place, kernel_of(kernel), a, b, repeat))
        yield {"part": "kernel", "program": program, "n": n, "seconds": seconds, "whole": whole}


def _loads() -> Iterator[Line]:
    for program, kernel in SIEGEL_PROGRAMS.items():
        try:
            loads = count_loads(kernel_of(kernel), DTYPE, COUNTED)
        except DeviceUnavailable as missing:
            print(f"loads are not counted: {missing}", file=sys.stderr)
            return
        yield {"part": "loads", "program": program, "shape": COUNTED, "a": loads.a, "b": loads.b}


def _several(place: Place, n: int) -> Iterator[Line]:
    kernel = SIEGEL_PROGRAMS["matmul2"]
    places = places_like(place)
    a, b = matrices("uniform", DTYPE, n, n, n)
    for count in shown(counts_up_to(len(places)), "one process"):
        seconds = spread(by_one_process(places[:count], kernel, a, b, REPEAT))
        yield {"part": "several", "way": "one process", "devices": count, "n": n, "seconds": seconds}
    for count in shown(counts_up_to(len(places)), "ranks"):
        run = by_ranks(count, place.device, kernel, n, REPEAT if place.device == "cuda" else 1)
        seconds, total = run["seconds"]["multiply"], run["total"]
        yield {"part": "several", "way": "ranks", "devices": count, "n": n, "seconds": seconds, "total": total}


# --- the command


def work(options: argparse.Namespace) -> int:
    return present(Results(lines_of(options, NAME, _measured(options))), options, table, draw)


def _measured(options: argparse.Namespace) -> Iterator[Line]:
    place = place_for(options.device)
    n = options.size or (QUICK if options.quick else SIZES)[place.device]
    refuse_too_large(n, n, n, 8)
    yield from measured(place, n, SEQ_QUICK if options.quick else SEQ_SIZES)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--size", type=at_least_1, metavar="N", help="of matmul1 and matmul2")
    return command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
