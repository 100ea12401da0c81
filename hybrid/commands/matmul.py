# SPDX-License-Identifier: MIT
"""The command: python -m hybrid.matmul n l m. C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from typing import TYPE_CHECKING

from hybrid.commands.cli import Command, agree, answer_failed
from hybrid.commands.parser import Parser, add_settings, at_least, file_name, settings_of, whole_number
from hybrid.core.problem import DTYPES, FILLS, Problem
from hybrid.core.settings import OPTIONS, Settings, one_of
from hybrid.core.text import aligned
from hybrid.core.timeline import wall
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import rank_by_launcher
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from hybrid.runs.operands import TypedProduct


# The largest machine and node that --explain accepts: larger than any that exists, and still explained in seconds.
_MOST_RANKS, _MOST_GPUS = 10**5, 128
_PRINTED = 10  # rows and columns that --print shows without a number

_EXAMPLES = """\
examples:
  mpirun -n 2 python -m hybrid.matmul 8000 8000 8000
  mpirun -n 4 python -m hybrid.matmul 4000 3000 2000 --dtype float32 --fill uniform --repeat 5
  python -m hybrid.matmul --a A.npy --b B.npy --out C.npy
  python -m hybrid.matmul --a A.h5:/group/name --b B.zarr --out C.h5:/name
  mpirun -n 2 python -m hybrid.matmul 80000 80000 80000 --out C.npy --resume
  python -m hybrid.matmul 100000 100000 100000 --explain --ranks 8 --gpus-per-node 8 --gpu-memory 141G

exit codes: 0 all well, 1 a failure, 2 wrong usage, 3 the product failed its check, 143 asked to end (SIGTERM)
Every option that controls how a product is computed is also an environment variable HYBRID_<NAME>.
"""


def _capability(text: str) -> int:
    """For argparse: ten times a compute capability."""
    if (found := re.fullmatch(r"(\d+)\.(\d)", text)) is None:
        raise UsageError(f"{text!r} is not a compute capability (such as 8.0)", code="number")
    return 10 * int(found[1]) + int(found[2])


def rate(text: str) -> float:
    """For argparse: bytes a second, such as 25GB/s or 100Gbit/s. Units are powers of 1000, as usual for networks."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(B|bit)/s", text)
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no rate (such as 25GB/s or 100Gbit/s)", code="number")
    return float(found[1]) * {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]] / (8 if found[3] == "bit" else 1)


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m hybrid.matmul",
        description="Multiply two matrices by all ranks of the job: C (n×m) = A (n×l) · B (l×m).",
        epilog=_EXAMPLES,
    )
    parser.add_argument("sizes", nargs="*", type=at_least(0), metavar="n l m", help="rows of A, columns of A, columns of B")
    what = parser.add_argument_group("what is multiplied")
    dtype = f"type of A, B and C: {', '.join(DTYPES)} (float64, or NumPy's promotion of the files' types)"
    what.add_argument("--dtype", choices=DTYPES, metavar="DTYPE", help=dtype)
    what.add_argument("--fill", choices=FILLS, default="lecture", metavar="FILL", help=f"{', '.join(FILLS)} (lecture)")
    what.add_argument("--seed", type=whole_number, default=0, help="of the random numbers (0)")
    formats = ".npy, .h5:/name, .zarr:/name, .mtx or .bed"
    what.add_argument("--a", type=file_name, metavar="A.npy", help=f"read A from a file, {formats}; each rank reads its rows")
    what.add_argument("--b", type=file_name, metavar="B.npy", help="read B from a file")
    what.add_argument("--out", type=file_name, metavar="C.npy", help="write C to a file, which appears whole or not at all")
    part = "with --out (not .mtx): compute C in parts that fit into memory, and resume where an earlier job stopped"
    what.add_argument("--resume", action="store_true", help=part)
    add_settings(what, "resume_rows")
    how = parser.add_argument_group("how")
    add_settings(how, *(name for name in OPTIONS if name != "resume_rows"))
    how.add_argument("--no-check", dest="check", action="store_const", const="off", help="the same as --check off")
    how.add_argument("--repeat", type=at_least(1), default=1, metavar="R", help="number of timed products (1)")
    how.add_argument("--warmup", type=at_least(0), metavar="W", help="products before these (0 on a CPU, 1 on a GPU)")
    shown = parser.add_argument_group("what is shown")
    corners = f"print the top-left K×K of A, B and C ({_PRINTED})"
    shown.add_argument("--print", dest="printed", type=at_least(1), nargs="?", const=_PRINTED, metavar="K", help=corners)
    shown.add_argument("--json", type=file_name, metavar="FILE", help="append the run as a JSON line; - for standard output")
    shown.add_argument("--trace", type=file_name, metavar="FILE", help="write Chrome trace events, for Perfetto")
    shown.add_argument("--explain", action="store_true", help="show the plan and its memory, compute nothing")
    shown.add_argument("--ranks", type=at_least(1, _MOST_RANKS), metavar="P", help="with --explain: P ranks")
    shown.add_argument("--nodes", type=at_least(1, _MOST_RANKS), metavar="N", help="with --explain: N nodes")
    link = "with --explain: rate of a node's link, such as 25GB/s or 100Gbit/s"
    shown.add_argument("--network", type=rate, default=0.0, metavar="RATE", help=link)
    gpus = at_least(0, _MOST_GPUS)
    shown.add_argument("--gpus-per-node", type=gpus, default=0, metavar="G", help="with --explain: G GPUs per node")
    shown.add_argument("--capability", type=_capability, metavar="C", help="with --explain: GPUs of compute capability C (9.0)")
    shown.add_argument("--gpu", metavar="NAME", help='with --explain: this GPU, by published rates: "RTX 4090", B200, …')
    return parser


def parse() -> tuple[argparse.Namespace, Settings]:
    """Options and settings; UsageError for what is wrong on any machine."""
    options = build_parser().parse_args()
    from_files = bool(options.a and options.b)
    if options.kernel == "list":
        return options, Settings()
    if bool(options.a) != bool(options.b) and not options.sizes:
        raise UsageError("with only one of --a and --b the sizes n l m are needed", code="sizes")
    if len(options.sizes) not in ((0, 3) if from_files else (3,)):
        raise UsageError(f"three sizes n l m are needed, {len(options.sizes)} given; --help shows the usage", code="sizes")
    _refuse_combinations(options)
    settings = settings_of(options)
    if settings.kernel != "auto":
        one_of("kernel", settings.kernel, [kernel.name for kernel in CATALOGUE])
    return options, settings


def _refuse_combinations(options: argparse.Namespace) -> None:
    """UsageError for options that do not go together."""
    ranks, nodes, gpus, resume = options.ranks, options.nodes, options.gpus_per_node, options.resume
    assumed = ("--ranks", "--nodes", "--network", "--gpus-per-node", "--capability", "--gpu")
    describes = any(getattr(options, name[2:].replace("-", "_")) for name in assumed)
    # With --resume the plan is for a part, and depends on the existing parts of C.
    written = [f"--{name}" for name in ("out", "json", "trace") if getattr(options, name) and not (name == "out" and resume)]
    for wrong, why in (
        (describes and not options.explain, f"{', '.join(assumed)} describe a machine one does not have: only with --explain"),
        (options.explain and written, f"--explain runs nothing, so leave out {', '.join(written)}"),
        (nodes and ranks and nodes > ranks, f"{ranks} ranks are too few for {nodes} nodes: one each, at least"),
        (nodes and gpus and ranks and nodes * gpus < ranks, f"{nodes} nodes of {gpus} GPUs are too few for {ranks} ranks"),
        (options.gpu and options.capability, "--gpu says the compute capability: leave out --capability"),
        (options.resume_rows and not resume, "--resume-rows is about the parts that --resume computes: add --resume"),
        (resume and not options.out, "--resume goes on with the file of --out, which is not given"),
        (resume and (options.repeat > 1 or options.warmup), "--resume computes every part once: no --repeat and --warmup"),
        (resume and options.trace, "--trace shows one product, and with --resume each part is one: leave one out"),
    ):
        if wrong:
            raise UsageError(why, code="option-combination")


_REAL_TYPES = {"complex64": "float32", "complex128": "float64"}


def product_asked_for(options: argparse.Namespace, ranks_of_node: int = 1, *, load: bool = False) -> TypedProduct:
    """The product that the options ask for. UsageError if files do not match the sizes, or the operands' types each other.

    `ranks_of_node`: how many ranks will read the files. `load`: read files now that can only be read as a whole.
    """
    import numpy as np

    from hybrid.arrays.gemm import numpy_type
    from hybrid.runs.operands import FileElements, GeneratedElements, TypedProduct

    files = {key: FileElements(path, ranks_of_node) for key, path in (("A", options.a), ("B", options.b)) if path}
    n, l, m = options.sizes or (*files["A"].shape, files["B"].shape[1])
    shapes = {"A": (n, l), "B": (l, m)}
    for key, file in files.items():
        if file.shape != shapes[key]:
            shape, wanted = ("×".join(map(str, each)) for each in (file.shape, shapes[key]))
            raise UsageError(f"{file.path} is {shape}, but {key} must be {wanted}", code="shapes")
    asked = options.dtype or ""
    for file in files.values():
        if file.held.kind == "V" and asked != "bfloat16":
            raise UsageError(f"{file.path} holds unnamed 16-bit numbers: read them with --dtype bfloat16", code="dtype")
        of_file = asked if file.held.kind == "c" else _REAL_TYPES.get(asked, asked)  # real numbers stay real
        file.convert_to(numpy_type(of_file) if asked else file.held)
        if load:
            file.load()
    made = numpy_type(asked) if asked else next((file.dtype for file in files.values()), np.dtype(np.float64))
    a, b = (files.get(key) or GeneratedElements(shapes[key], options.fill, options.seed, key, made) for key in "AB")
    return TypedProduct.of(a, b, asked)


NAME = "hybrid.matmul"


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    wall.enter("agree")
    agree(team, options, settings)
    wall.enter("imports")
    # From here on NumPy may be loaded: BLAS reads the number of threads from the environment.
    from hybrid.commands.matmul_run import Job

    gc.enable()
    wall.enter("agree")
    job = Job(team, options, settings)
    return job.resume() if options.resume else job.multiply()


def how_computed(product: TypedProduct, decided: Problem | None = None) -> str:
    """A line about the real products, `decided` or planned, that compute the product asked for; "" if it is real itself."""
    if product.is_plain:
        return ""
    problem, primes = decided or product.problem, len(product.types.primes)
    if problem.short_operands:
        return f"  computed with sums in {problem.dtype}"
    how = ", exactly" * (product.types.exact is not None) + f", modulo each of {primes} primes" * (primes > 1)
    return f"  computed as {problem}{how}"


def asked() -> tuple[argparse.Namespace, Settings]:
    """Options and settings. If the list of kernels or the plan is asked for, rank 0 prints it, and every rank exits."""
    options, settings = parse()
    if options.kernel != "list" and not options.explain:
        return options, settings
    if rank_by_launcher() == 0:
        try:
            if options.kernel == "list":
                rows = [(kernel.name, kernel.device, " ".join(kernel.dtypes), kernel.summary) for kernel in CATALOGUE]
                print(*aligned(rows, "llll"), sep="\n")
            else:
                from hybrid.commands.explain import explain

                explain(options, settings)
            sys.stdout.flush()
        except Exception as error:  # on rank 0 alone, so MPI need not start
            sys.exit(answer_failed(NAME, error))
    sys.exit()


main = Command(NAME, asked, work).run
