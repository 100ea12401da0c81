# SPDX-License-Identifier: MIT
"""The doctor's examination: MPI, memory, Slurm, tools, placement, GPUs and their links.

For each subject `inspect_…` looks at the machine, on every rank. It never fails: what cannot be determined is Unknown. `judge_…`
makes findings from what all ranks inspected. It is a pure function, with the same result on every rank.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Any, TypeVar

from hybrid.core.installation import install
from hybrid.core.problem import Topology, record
from hybrid.core.text import counted, ranges, readable
from hybrid.devices.cuda_kernels import SHIPPED, trust_own_cache_only
from hybrid.diagnostics import links
from hybrid.diagnostics.finding import Finding, Unknown, attempt, note, ok, ranks_by_value, unknown, wrong
from hybrid.diagnostics.probe_process import run_probe
from hybrid.emulation.build import c_compiler, compiler
from hybrid.emulation.cache import cache_folder
from hybrid.errors import DeviceUnavailable, HybridError, StartError, one_line
from hybrid.host.threads import THREAD_VARIABLES, Threads, core_quota, usable_cores
from hybrid.kernels.catalogue import LEAST_CAPABILITY, dotted
from hybrid.planning.decision import Gpu, RankPlacement, choose_gpus
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.launcher import family_of, launched
from hybrid.ranks.mpi import Library, library_in_use
from hybrid.ranks.team import Team
from hybrid.reporting.run_report import placement_record

_MPI_LIMIT = 30  # seconds for MPI to start alone


@record
class MpiOfRank:
    """What one rank finds."""

    launcher: str  # "" for a process started alone
    mpi: Library | Unknown
    # An mpirun to propose, with its family, where no launcher has started the ranks together: the one on PATH for a process
    # started alone, the one of this Python environment where another launcher has failed.
    mpirun: tuple[str, str] | Unknown | None = None


def inspect_mpi(*, started: bool) -> MpiOfRank:
    """`started`: MPI was started in this process, or is not needed. If it could not be, a child process tries whether MPI starts
    at all."""
    launch = launched()
    library = attempt(library_in_use if launch and started else _library_of_child)
    if launch is None:
        return MpiOfRank("", library, attempt(lambda: _with_family(shutil.which("mpirun") or shutil.which("mpiexec"))))
    return MpiOfRank(launch.name, library, None if started else attempt(lambda: _with_family(_environments_mpirun())))


def _library_of_child() -> Library | Unknown:
    result = run_probe("probes.mpi", limit=_MPI_LIMIT)
    if "library" not in result.report:
        return Unknown(f"MPI does not start in a process alone, which {result.ended or 'reported nothing'}")
    library = result.report["library"]
    return Library(**{**library, "standard": tuple(library["standard"])})


def _environments_mpirun() -> str | None:
    """Where an MPI that pip installs has put its mpirun; None where it has not."""
    path = Path(sys.executable).with_name("mpirun")
    return str(path) if path.exists() else None


def _with_family(path: str | None) -> tuple[str, str] | None:
    with busy():
        return (path, family_of(path)) if path else None


def judge_mpi(mpi_of_ranks: Sequence[MpiOfRank], unstarted: StartError | None) -> list[Finding]:
    """`unstarted`: why the processes that a launcher started are not the ranks of one job."""
    return [_launcher(mpi_of_ranks[0], len(mpi_of_ranks), unstarted), *_libraries([rank.mpi for rank in mpi_of_ranks])]


def _launcher(first: MpiOfRank, size: int, unstarted: StartError | None) -> Finding:
    if unstarted is not None:
        text = unstarted.what
        if isinstance(first.mpi, Library) and first.mpi.name not in text:
            text += f"; mpi4py uses {first.mpi.name}"
        return wrong("launcher", text, unstarted.remedy or _fitting_launcher(first), code=unstarted.code)
    if first.launcher:
        return ok("launcher", f"{first.launcher} started {size}, and MPI sees as many")
    if isinstance(first.mpirun, Unknown):
        return unknown("launcher", f"the mpirun on PATH: {first.mpirun.reason}")
    if first.mpirun is None:
        own = _environments_mpirun() or "pip install mpich brings one"
        return note("launcher", f"started alone; no mpirun on PATH: {own}", code="mpi-missing")
    path, family = first.mpirun
    if isinstance(first.mpi, Library) and family and family != first.mpi.family:
        return wrong(
            "launcher",
            f"{path} is {family}'s, but mpi4py uses {first.mpi.name}: every rank would be 0 of 1",
            "put the mpirun of mpi4py's MPI first on PATH (that of a pip-installed MPI is in the environment's bin folder)",
            code="wrong-mpirun",
        )
    return ok("launcher", f"started alone; {path}{f' ({family})' if family else ''} starts several")


def _fitting_launcher(first: MpiOfRank) -> str:
    """The remedy that names a launcher for the MPI library, as far as one is known."""
    if not isinstance(first.mpi, Library):
        return "then use its mpirun"
    if first.launcher == "srun":
        kind = "pmix" if first.mpi.family == "Open MPI" else "pmi2"
        return f"try srun --mpi={kind} (srun --mpi=list shows which there are)"
    if isinstance(first.mpirun, tuple) and first.mpirun[1] in ("", first.mpi.family):
        return f"try {first.mpirun[0]}"
    return f"try the mpirun that came with {first.mpi.name}"


def _libraries(libraries: Sequence[Library | Unknown]) -> list[Finding]:
    groups = ranks_by_value(libraries)
    if len({library.name for library in libraries if isinstance(library, Library)}) > 1:
        different = "; ".join(
            f"rank {ranges(ranks)}: {library.name if isinstance(library, Library) else library.reason}"
            for library, ranks in groups.items()
        )
        return [wrong("mpi", f"not the same on all ranks: {different}", "use one environment on all hosts", code="mpi-differs")]
    return [_library(library) for library in groups]


def _library(library: Library | Unknown) -> Finding:
    if isinstance(library, Unknown):
        return unknown("mpi", library.reason)
    text = (
        f"{library.name}, standard {library.standard[0]}.{library.standard[1]}, mpi4py for {library.abi}, "
        f"threads {library.provided} ({library.asked} asked for), large counts {'yes' if library.large_counts else 'no'}"
    )
    if not library.threads_suffice:
        return wrong(
            "mpi", text, "install an MPI built with thread support, for example with pip install mpich", code="mpi-threads"
        )
    return ok("mpi", text)


@record
class Limits:
    """The limits of one rank's process."""

    host: str
    lockable: int | Unknown | None  # bytes of memory that it may page-lock; None: without a limit


def inspect_limits(host: str) -> Limits:
    return Limits(host, attempt(_lockable))


def _lockable() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def judge_pinned(limits_of_ranks: Sequence[Limits], pinned: Sequence[tuple[int, str] | None]) -> Finding:
    """`pinned[rank]`: how many bytes could be pinned for the rank's GPU, and why not more; None where it was not tried."""
    for rank, trial in enumerate(pinned):
        if trial is not None and trial[1]:
            limits = limits_of_ranks[rank]
            much = readable(trial[0]) if trial[0] else "none at all"
            return wrong(
                "pinned memory",
                f"rank {rank} on {limits.host} cannot pin enough memory for its GPU ({trial[1]}), but {much}: copies run at a "
                f"third of the link's speed or less; ulimit -l: {_as_text(limits.lockable)}",
                "raise the limit: ulimit -l unlimited (Slurm: LimitMEMLOCK=infinity for slurmd; container: --ulimit memlock=-1)",
                code="pinned-limit",
            )
    least = min(limits_of_ranks, key=lambda limits: limits.lockable if isinstance(limits.lockable, int) else 1 << 62)
    text = f"ulimit -l: {_as_text(least.lockable)}"
    sizes = [trial[0] for trial in pinned if trial is not None]
    if sizes:
        return ok("pinned memory", f"{readable(min(sizes))} pinned for every rank's GPU; {text}")
    if isinstance(least.lockable, Unknown):
        return unknown("pinned memory", least.lockable.reason)
    return ok("pinned memory", f"{text} (without a GPU no memory is pinned)")


def _as_text(lockable: int | Unknown | None) -> str:
    if isinstance(lockable, Unknown):
        return f"unknown ({lockable.reason})"
    return "unlimited" if lockable is None else readable(lockable)


_READ = ("JOB_ID", "JOB_NUM_NODES", "NTASKS", "STEP_NUM_TASKS", "STEP_NUM_NODES", "CPUS_PER_TASK", "GPUS_ON_NODE", "STEP_GPUS",
         "JOB_GPUS")  # fmt: skip


def inspect_slurm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Slurm's variables of this process without their prefix SLURM_; empty outside of a job."""
    return {name: environment[f"SLURM_{name}"] for name in _READ if environment.get(f"SLURM_{name}")}


def judge_slurm(
    variables: Sequence[Mapping[str, str]], cores: Sequence[int], gpus: Sequence[bool], topology: Topology, *, launched: bool
) -> Finding:
    """`variables[rank]`: the rank's, as inspected; `cores[rank]`: how many cores it may use; `gpus[rank]`: whether it has a GPU
    that works; `launched`: a launcher started the ranks, and MPI sees as many.
    """
    job = variables[0]
    if "JOB_ID" not in job:
        return ok("slurm", "not in a job")
    ranks, nodes = len(variables), len(topology.nodes)
    given = [
        counted(job.get(name, "an unknown number of"), word)
        for name, word in (("NTASKS", "task"), ("JOB_NUM_NODES", "node"), ("CPUS_PER_TASK", "CPU"))
    ]
    text = f"job {job['JOB_ID']} has {', '.join(given)} a task; MPI has {counted(ranks, 'rank')} on {counted(nodes, 'node')}"
    few = [rank for rank in range(ranks) if 0 < cores[rank] < _number(variables[rank], "CPUS_PER_TASK")]
    if few:
        return wrong(
            "slurm",
            f"{text}; rank {few[0]} may use {counted(cores[few[0]], 'core')} only",
            f"srun does not take -c from sbatch: srun -c {job['CPUS_PER_TASK']}; for mpirun leave binding out (--bind-to none)",
            code="slurm-cores",
        )
    without = [rank for rank in range(ranks) if _has_gpus(variables[rank]) and not gpus[rank]]
    if without:
        return wrong(
            "slurm",
            f"{text}; the job has GPUs, and rank {without[0]} cannot use any",
            "see the line on gpus; or give the step its GPUs: srun --gpus-per-task=1, or --gpu-bind=none for all of a node",
            code="slurm-gpus",
        )
    tasks = _number(job, "STEP_NUM_TASKS") or _number(job, "NTASKS")
    if tasks > ranks and not launched:
        return note("slurm", f"{text}: this is one process; srun or mpirun starts it as {tasks} ranks", code="slurm-tasks")
    remarks = []
    if tasks > ranks:
        remarks.append("fewer ranks than tasks")
    if 0 < tasks < ranks:
        remarks.append("more ranks than tasks, so ranks share what a task was given")
    if _number(job, "JOB_NUM_NODES") > nodes and "STEP_NUM_NODES" not in job:
        remarks.append("some nodes of the job have no rank (does the mpirun know of Slurm? srun does)")
    return Finding(
        "slurm", "note" if remarks else "ok", ": ".join([text, *filter(None, [", ".join(remarks)])]), code="slurm-tasks"
    )


def _number(job: Mapping[str, str], name: str) -> int:
    text = job.get(name, "")
    return int(text) if text.isdecimal() else 0


def _has_gpus(job: Mapping[str, str]) -> bool:
    return bool(job.get("STEP_GPUS") or job.get("JOB_GPUS") or _number(job, "GPUS_ON_NODE"))


_COMPILER_LIMIT = 30  # seconds to compile a small program
_PROGRAM = b"#include <tuple>\n#include <vector>\nint main() { auto [x, y] = std::tuple{1, 2}; return x + y - 3; }\n"


@record
class Tools:
    """The compiler and the caches of one host."""

    compiler: str  # its path
    compiler_trouble: str  # what is wrong with it; "" for nothing
    compiler_absent: bool
    caches: tuple[str, ...]  # folders
    cache_trouble: str  # why nothing can be kept
    elsewhere: str  # why a cache is not in its usual folder
    without_c: str  # why there is no C compiler; "" if there is one
    shipped: tuple[str, ...]  # the architectures whose machine code comes with the package


def inspect_tools() -> Tools | Unknown:
    return attempt(_tools)


def _tools() -> Tools:
    path, trouble, absent, without_c, cache_trouble = "", "", False, "", ""
    try:
        path = compiler()
        trouble = _try_compiler(path)
    except DeviceUnavailable as missing:
        trouble, absent = str(missing), "CXX" not in os.environ
    try:
        c_compiler()
    except DeviceUnavailable as missing:
        without_c = str(missing)
    caches = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            caches.append(str(cache_folder()))
        except HybridError as error:
            cache_trouble = str(error)
        cupy = util.find_spec("cupy")
        if cupy is not None and cupy.origin:  # a package, not just a folder of that name
            trust_own_cache_only()
            if os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
                caches.append(os.environ["CUPY_CACHE_DIR"])
    elsewhere = "; ".join(str(each.message) for each in said)
    shipped = {file.name.split("-")[1] for file in SHIPPED.glob("*.xz")}
    in_order = tuple(sorted(shipped, key=lambda name: (len(name.rstrip("a")), name)))
    return Tools(path, trouble, absent, tuple(caches), cache_trouble, elsewhere, without_c, in_order)


def _try_compiler(path: str) -> str:
    """Why it does not compile C++17; "" if it does."""
    command = [path, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    try:
        with busy():
            done = subprocess.run(command, input=_PROGRAM, capture_output=True, timeout=_COMPILER_LIMIT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"took more than {_COMPILER_LIMIT} s for four lines"
    except OSError as error:
        return one_line(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").splitlines()
    return next((line for line in lines if "error" in line), f"ends with {done.returncode}").strip()


def judge_tools(tools_of_ranks: Sequence[Tools | Unknown | None], hosts: Sequence[str], *, gpus: bool) -> list[Finding]:
    """`tools_of_ranks[rank]`: for one rank of each host, None for the others. `gpus`: some rank's GPU works, so none is
    emulated."""
    findings = []
    groups = {tools: ranks for tools, ranks in ranks_by_value(tools_of_ranks).items() if tools is not None}
    for tools, ranks in groups.items():
        who = "" if len(groups) == 1 else f"{hosts[ranks[0]]} (rank {ranges(ranks)}): "
        if isinstance(tools, Unknown):
            findings.append(unknown("compiler", f"{who}{tools.reason}"))
            continue
        findings.append(_compiler(tools, who, gpus))
        if tools.cache_trouble:
            what, _, remedy = tools.cache_trouble.rpartition(": ")
            remedy = f"{remedy} to a folder that can be written to"
            findings.append(wrong("kernel cache", f"{who}{what}", remedy, code="kernel-cache"))
        elif tools.elsewhere:
            findings.append(note("kernel cache", f"{who}{tools.elsewhere}", code="kernel-cache"))
        else:
            kept = f"{who}{', '.join(tools.caches)}"
            there = f"; machine code for {', '.join(tools.shipped)} comes with the package" if tools.shipped else ""
            findings.append(ok("kernel cache", kept + there))
    return findings


def _compiler(tools: Tools, who: str, gpus: bool) -> Finding:
    slower = "checks, and copies of new arrays to GPUs, take several times as long without a C compiler"
    and_c = f"; {slower} ({tools.without_c})" if tools.without_c else ""
    if tools.compiler_absent:
        return Finding("compiler", "ok" if gpus else "note", f"{who}none; {tools.compiler_trouble}{and_c}", code="no-compiler")
    if tools.compiler_trouble:
        remedy = "let CXX name a C++17 compiler, or nothing; apt-get install g++"
        return wrong("compiler", f"{who}{tools.compiler or 'none'}: {tools.compiler_trouble}", remedy, code="no-compiler")
    return ok("compiler", f"{who}{tools.compiler}, for the emulated GPU{and_c}")


_HOSTS_SHOWN = 4
_ANY_BINDING = "mpirun --bind-to none"


@record
class BlasLibrary:
    """A BLAS library that this process has loaded."""

    name: str
    threads: int


@record
class Placement:
    """Where one rank runs, and with how many threads."""

    host: str
    cores: tuple[int, ...]  # that it may use
    quota: float | None  # cores' worth of time that its control group allows
    threads: Threads
    blas: tuple[BlasLibrary, ...] | Unknown
    cores_of_host: int = 0


def inspect_placement(host: str, threads: Threads) -> Placement:
    """This rank's placement. This loads NumPy, whose BLAS reads the number of threads from the environment, where it must be set
    before."""
    return Placement(host, usable_cores(), core_quota(), threads, attempt(_blas_libraries), os.cpu_count() or 0)


def _blas_libraries() -> tuple[BlasLibrary, ...]:
    import numpy  # noqa: F401 (brings its BLAS)
    from threadpoolctl import threadpool_info

    return tuple(
        BlasLibrary(f"{library['internal_api']} {library['version'] or ''}".strip(), library["num_threads"])
        for library in threadpool_info()
        if library["user_api"] == "blas"
    )


def judge_placement(placements: Sequence[Placement], topology: Topology) -> list[Finding]:
    return [_where(placements, topology), _threads(placements, topology), _blas(placements)]


def _where(placements: Sequence[Placement], topology: Topology) -> Finding:
    nodes = topology.nodes
    total = f"{counted(len(placements), 'rank')} on {counted(len(nodes), 'host')}"
    if len(nodes) > _HOSTS_SHOWN:
        sizes = sorted({len(node) for node in nodes})
        each = f"{sizes[0]} on each" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} on each"
        return ok("placement", f"{total}, {each} (--json lists them)")
    parts = []
    for node in nodes:
        host = placements[node[0]].host
        for cores, members in ranks_by_value(placements[rank].cores for rank in node).items():
            parts.append(f"{host} rank {ranges([node[member] for member in members])} on cores {ranges(cores)}")
    if len(parts) > 2 * _HOSTS_SHOWN:
        parts = [f"{placements[node[0]].host} rank {ranges(node)}, bound differently (--json lists them)" for node in nodes]
    return ok("placement", f"{total}: {'; '.join(parts)}")


def _threads(placements: Sequence[Placement], topology: Topology) -> Finding:
    counts = ranks_by_value((placement.threads.count, placement.threads.reason) for placement in placements)
    text = "; ".join(
        f"{count} a rank ({reason})" if len(counts) == 1 else f"rank {ranges(ranks)}: {count} ({reason})"
        for (count, reason), ranks in list(counts.items())[:_HOSTS_SHOWN]
    )
    if len(counts) > _HOSTS_SHOWN:
        text += "; …"
    crowded = [found for node in topology.nodes if (found := _crowded([placements[rank] for rank in node]))]
    if crowded:
        what, remedy = crowded[0]
        more = f" (and {counted(len(crowded) - 1, 'host')} more)" if len(crowded) > 1 else ""
        return wrong("threads", f"{text}: too many, {what}{more}", remedy, code="threads-crowded")
    bound = [rank for rank, placement in enumerate(placements) if placement.threads.count > len(placement.cores)]
    if bound:
        first = placements[bound[0]]
        return wrong(
            "threads",
            f"{text}: rank {ranges(bound)} has {counted(first.threads.count, 'thread')}, "
            f"bound to {counted(len(first.cores), 'core')}",
            f"bind ranks to more cores ({_ANY_BINDING} or --map-by slot:PE=N, srun -c N), or lower --threads",
            code="threads-bound",
        )
    return ok("threads", text)


def _crowded(node: Sequence[Placement]) -> tuple[str, str] | None:
    """What is wrong on a node whose ranks have more threads than its cores can run, and what to do."""
    cores = len({core for placement in node for core in placement.cores})
    quotas = [placement.quota for placement in node if placement.quota is not None]
    usable = max(1.0, min([float(cores), *quotas]))  # a rank has at least one thread, whatever the quota
    threads = sum(placement.threads.count for placement in node)
    if threads <= usable + 1e-9:
        return None
    each = int(usable) // len(node)
    remedy = _fewer_threads(each, node[0].threads.reason) if each else f"start at most {counted(int(usable), 'rank')} there"
    whole = max(placement.cores_of_host for placement in node)
    if min([float(whole), *quotas]) > usable:
        remedy += f", or let them use more of its {whole} cores ({_ANY_BINDING}, a larger srun -c)"
    many, ranks, few = counted(threads, "thread"), counted(len(node), "rank"), counted(f"{usable:g}", "core")
    return f"{many} of {ranks} on {few} of {node[0].host}", remedy


def _fewer_threads(count: int, reason: str) -> str:
    """The remedy that lowers the number of threads to `count`. `reason`: where the number comes from."""
    if reason in THREAD_VARIABLES:
        return f"--threads {count}, or {reason}={count}"
    return f"--threads {count}"


def _blas(placements: Sequence[Placement]) -> Finding:
    most: list[int] = []  # for each rank, how many threads the library with the most has
    names: set[str] = set()
    for rank, placement in enumerate(placements):
        if isinstance(placement.blas, Unknown):
            return unknown("blas", f"rank {rank}: {placement.blas.reason}")
        if not placement.blas:
            text = f"rank {rank}: threadpoolctl does not know NumPy's BLAS, so its number of threads is not set"
            return note("blas", text, code="blas-threads")
        most.append(max(library.threads for library in placement.blas))
        names.update(library.name for library in placement.blas)
    more = [rank for rank, placement in enumerate(placements) if most[rank] > placement.threads.count]
    if more:
        return wrong(
            "blas",
            f"{', '.join(sorted(names))} starts {most[more[0]]} threads on rank {ranges(more)}, "
            f"where {placements[more[0]].threads.count} were set",
            "unset what loads NumPy before the command does (sitecustomize, PYTHONSTARTUP), or set OMP_NUM_THREADS",
            code="blas-threads",
        )
    return ok("blas", f"{', '.join(sorted(names))} uses no more threads than were set")


_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LEAST_OF_CUDA = {12: 50, 13: 75}  # the least compute capability, times ten, that its compiler supports
_GPUS_SHOWN = 4
_LEAST_DRIVER = 12000  # the oldest CUDA that hybrid-runner can be installed for
_TRY_NVIDIA_SMI = "see whether nvidia-smi answers; reload the driver, or reboot"
_NEWER_DRIVER = "install a newer driver: CUDA 12 needs 525 or newer, CUDA 13 needs 580"
_OLD_DRIVER = ("cudaErrorInsufficientDriver", "cudaErrorCallRequiresNewerDriver", "cudaErrorUnsupportedPtxVersion")


@record
class VisibleGpus:
    """What one rank sees."""

    usable: tuple[Gpu, ...]
    trouble: tuple[str, str] | None  # what keeps a visible GPU from being used, and what to do
    absent: str = ""  # why there is none, where that is no trouble
    about: str = ""  # driver and CuPy


@record
class Trial:
    """What came of trying a rank's GPU."""

    works: bool
    trouble: str = ""  # why it does not work
    pinned: int = 0  # bytes of host memory that could be pinned for it
    pin_trouble: str = ""  # why not more


def inspect_gpus() -> VisibleGpus | Unknown:
    result = run_probe("probes.gpus")
    report, ended = result.report, result.ended
    if "driver" not in report:
        return Unknown(f"the process that looks for GPUs {ended or 'reported nothing'}")
    if ended and "visible" not in report and report["driver"] is not None:
        return _unusable(f"asking the driver for GPUs {ended}", _TRY_NVIDIA_SMI)
    return interpret_gpus(report, ended, driver_loaded=Path("/proc/driver/nvidia/version").exists(), environment=os.environ)


def interpret_gpus(report: Mapping[str, Any], ended: str, *, driver_loaded: bool, environment: Mapping[str, str]) -> VisibleGpus:
    """What the probe's report means. `ended`: how the probe ended; `driver_loaded`: the Linux kernel has NVIDIA's driver."""
    return (
        _driver_trouble(report, driver_loaded, environment)
        or _cupy_trouble(report, ended)
        or _usable_gpus(report, f"{_driver(report)}, {_cupy(report)}")
    )


def _driver_trouble(report: Mapping[str, Any], driver_loaded: bool, environment: Mapping[str, str]) -> VisibleGpus | None:
    """No driver, a driver that fails, or no GPU; None where the driver shows some."""
    if report["driver"] is None:
        if not driver_loaded:
            return VisibleGpus((), None, "no NVIDIA driver (libcuda.so.1) on this machine")
        return _unusable(
            "the machine has NVIDIA's driver, but libcuda.so.1 is not to be found",
            "start the container with --gpus all (docker) or --nv (apptainer); outside of one install the driver's library",
        )
    if report["status"] == _NO_DEVICE or (report["status"] == 0 and report["visible"] == 0):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        absent = f"{_driver(report)}, but no GPU for this process{why}; in a Slurm job ask for one with --gres=gpu:1"
        return VisibleGpus((), None, absent)
    if report["status"]:
        return _unusable(f"{_driver(report)} fails: {report['status_name']}", _TRY_NVIDIA_SMI)
    return None


def _cupy_trouble(report: Mapping[str, Any], ended: str) -> VisibleGpus | None:
    """What keeps CuPy from using the GPUs that the driver shows; None where it sees them."""
    count = f"{report['visible']} visible"
    packages = report.get("packages", ())
    complete = install("cuda13" if report["driver"] >= 13000 else "cuda12")
    driver_is_enough = report["driver"] >= _LEAST_DRIVER
    if len(packages) > 1:
        text = f"{count}, {_driver(report)}, but {', '.join(packages)} are installed together, each over the other's files"
        return _unusable(text, f"pip uninstall {' '.join(packages)}, then {complete}")
    if "cupy" not in report:
        why = report.get("cupy_error") or f"importing it {ended}"
        remedy = complete if driver_is_enough else f"{_NEWER_DRIVER}; then {complete}"
        return _unusable(f"{count}, {_driver(report)}, but CuPy cannot be used: {why}", remedy)
    about = f"{_driver(report)}, {_cupy(report)}"
    if report["runtime"] // 1000 > report["driver"] // 1000:
        uninstall = f"pip uninstall {' '.join(packages) or 'the cupy-cuda package'}"
        remedy = f"{uninstall}, then {complete}; or a newer driver" if driver_is_enough else _NEWER_DRIVER
        return _unusable(f"{count}, but the {about}: too old for it", remedy)
    if "gpus" not in report:
        why = report.get("missing") or f"the process that looks at them {ended}"
        remedy = f"{complete}, or see whether nvidia-smi answers"
        if any(error in why for error in _OLD_DRIVER):
            remedy = f"a driver for CUDA {_cuda_version(report['runtime'])} or newer, or a CuPy for an older CUDA"
        return _unusable(f"{count}, {about}: {why}", remedy)
    return None


def _usable_gpus(report: Mapping[str, Any], about: str) -> VisibleGpus:
    gpus = tuple(Gpu(**{name: gpu[name] for name in ("index", "uuid", "name", "capability")}) for gpu in report["gpus"])
    least = max(LEAST_CAPABILITY, _LEAST_OF_CUDA.get(report["runtime"] // 1000, 0))
    old = next((gpu for gpu in gpus if gpu.capability < least), None)
    if old is None:
        return VisibleGpus(gpus, None, about=about)
    has = f"{old.name} has compute capability {dotted(old.capability)}"
    if old.capability < LEAST_CAPABILITY:
        return _unusable(
            f"{has}, less than any kernel here supports", "use --device cpu, or set CUDA_VISIBLE_DEVICES to newer GPUs"
        )
    remedy = f"pip uninstall the cupy-cuda package, then {install('cuda12')}"
    return _unusable(f"{has}, which this CUDA no longer supports ({about})", remedy)


def _unusable(trouble: str, remedy: str) -> VisibleGpus:
    return VisibleGpus((), (trouble, remedy))


def _driver(report: Mapping[str, Any]) -> str:
    return f"driver for CUDA {_cuda_version(report['driver'])}"


def _cupy(report: Mapping[str, Any]) -> str:
    return f"CuPy {report['cupy']} for CUDA {_cuda_version(report['runtime'])}"


def chosen_gpus(visible: Sequence[VisibleGpus | Unknown]) -> list[Gpu | None]:
    """Each rank's GPU, chosen as the other commands choose it; None where it sees none. `visible[rank]`: what the rank sees."""
    usable = {rank: gpus for rank, gpus in enumerate(map(usable_of, visible)) if gpus}
    chosen = dict(zip(usable, choose_gpus(list(usable.values())), strict=True))
    return [chosen.get(rank) for rank in range(len(visible))]


def usable_of(visible: VisibleGpus | Unknown) -> tuple[Gpu, ...]:
    """The usable GPUs of what a rank sees."""
    return visible.usable if isinstance(visible, VisibleGpus) else ()


def try_gpu(gpu: Gpu) -> Trial:
    """Compile and run a kernel, copy, and pin memory, in a child process."""
    result = run_probe("probes.gpu_trial", str(gpu.index))
    report = result.report
    if not report.get("works"):
        return Trial(False, f"{report.get('stage', 'starting')}: {result.ended or 'the result is wrong'}")
    return Trial(True, "", report.get("pinned", 0), report.get("pin_error") or result.ended)


def judge_gpus(
    visible: Sequence[VisibleGpus | Unknown], chosen: Sequence[Gpu | None], trials: Sequence[Trial | None],
    hosts: Sequence[str],
) -> list[Finding]:  # fmt: skip
    """For each rank: what it sees, its GPU, the trial of that, and its host."""
    findings = []
    for seen, ranks in ranks_by_value(visible).items():
        who = _who(ranks, len(visible))
        if isinstance(seen, Unknown):
            findings.append(unknown("gpus", f"{who}{seen.reason}"))
        elif seen.trouble:
            findings.append(wrong("gpus", f"{who}{seen.trouble[0]}", seen.trouble[1], code="gpu-failed"))
        elif not seen.usable:
            findings.append(
                Finding("gpus", "ok" if len(ranks) == len(visible) else "note", f"{who}none: {seen.absent}", code="no-gpu")
            )
    for trial, ranks in ranks_by_value(trials).items():
        who = _who(ranks, len(visible))
        if trial is not None and not trial.works:
            remedy = f"{install('cuda13')} (or cuda12) completes CuPy with its compiler; else see nvidia-smi -q"
            findings.append(wrong("gpus", f"{who}the GPU is seen, but does not work: {trial.trouble}", remedy, code="gpu-failed"))
    if any(chosen):
        findings.append(_used_gpus(visible, chosen, hosts))
    return findings


def _used_gpus(visible: Sequence[VisibleGpus | Unknown], chosen: Sequence[Gpu | None], hosts: Sequence[str]) -> Finding:
    """Which ranks are on which GPU, by UUID; GPUs that several ranks share, and GPUs that none uses."""
    users: dict[str, list[int]] = {}
    for rank, gpu in enumerate(chosen):
        if gpu is not None:
            users.setdefault(gpu.uuid, []).append(rank)
    by_uuid = {gpu.uuid: gpu for seen in visible for gpu in usable_of(seen)}
    idle = sorted(set(by_uuid) - set(users))
    shown = [
        f"rank {ranges(ranks)} on {hosts[ranks[0]]}: {uuid} {by_uuid[uuid].name}"
        for uuid, ranks in list(users.items())[:_GPUS_SHOWN]
    ]
    if len(users) > _GPUS_SHOWN:
        shown.append(f"{len(users) - _GPUS_SHOWN} more (--json lists them)")
    about = next(seen.about for seen in visible if isinstance(seen, VisibleGpus) and seen.usable)
    text = f"{len(by_uuid)} usable, {about}; {'; '.join(shown)}"
    shared = [ranks for ranks in users.values() if len(ranks) > 1]
    if shared and idle:  # only where ranks see different GPUs
        return wrong(
            "gpus",
            f"{text}; rank {ranges(shared[0])} share a GPU, and {idle[0]} is idle",
            "let every rank see all GPUs of its host: srun --gpu-bind=none, the same CUDA_VISIBLE_DEVICES for all",
            code="gpu-shared",
        )
    if shared:
        return note("gpus", f"{text}; rank {ranges(shared[0])} share a GPU: one rank a GPU is faster", code="gpu-shared")
    if idle:
        return note("gpus", f"{text}; {len(idle)} idle: start as many ranks as GPUs", code="gpu-idle")
    return ok("gpus", text)


def _who(ranks: Sequence[int], of: int) -> str:
    return "" if len(ranks) == of else f"rank {ranges(ranks)}: "


def _cuda_version(version: int) -> str:
    """A version of CUDA as it is written: 12040 is 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}"


_SLOW = 2.0  # times what the others take: from here on a link between nodes is slow; other jobs may use it, too
T = TypeVar("T")


@record
class Examination:
    """All findings, and what is known of each rank."""

    findings: tuple[Finding, ...]
    placements: tuple[Placement, ...]
    gpus: tuple[Gpu | None, ...]
    measured: links.Measurements = links.Measurements()
    node_links: tuple[links.NodeLink, ...] = ()

    @property
    def ok(self) -> bool:
        return all(finding.verdict != "wrong" for finding in self.findings)


def examine(team: Team, threads: Sequence[Threads], unstarted: StartError | None = None) -> Examination:
    """Examine everything. Every rank calls it and gets the same.

    `threads[rank]`: the rank's number of threads. `unstarted`: why this process, which a launcher started, is no rank of a job.
    """

    def of_all(name: str, inspect: Callable[[], T]) -> list[T]:
        """What `inspect` returns on each rank. `name`: of the phase."""
        with team.phase(name, timed=False) as phase:
            phase.mine = inspect()
        return phase.all

    placements = of_all("placement", lambda: inspect_placement(team.host, threads[team.rank]))
    mpi_of_ranks = of_all("mpi", lambda: inspect_mpi(started=unstarted is None))
    tools = of_all("tools", lambda: inspect_tools() if team.leads_node else None)
    limits_of_ranks = of_all("limits", lambda: inspect_limits(team.host))
    slurm_variables = of_all("slurm", inspect_slurm)
    visible = of_all("gpus", inspect_gpus)
    chosen = chosen_gpus(visible)
    mine = chosen[team.rank]
    trials = of_all("gpu trials", lambda: try_gpu(mine) if mine is not None else None)
    isolation = of_all("isolation", lambda: links.isolation(usable_of(visible[team.rank])))
    works = [trial is not None and trial.works for trial in trials]
    measured = links.measure(team, [gpu if works[rank] else None for rank, gpu in enumerate(chosen)])
    hosts = [rank.host for rank in placements]
    between_nodes = links.measure_node_links(team, hosts)
    pinned = [(trial.pinned, trial.pin_trouble) if trial is not None and trial.works else None for trial in trials]
    launched = unstarted is None and bool(mpi_of_ranks[0].launcher)
    findings = [
        *judge_mpi(mpi_of_ranks, unstarted),
        *judge_placement(placements, team.topology),
        *links.judge_node_links(between_nodes, _SLOW),
        judge_slurm(slurm_variables, [len(rank.cores) for rank in placements], works, team.topology, launched=launched),
        *judge_gpus(visible, chosen, trials, hosts),
        judge_pinned(limits_of_ranks, pinned),
        links.judge_host_links(measured),
        links.judge_peers(measured, chosen, isolation),
        *judge_tools(tools, hosts, gpus=any(works)),
    ]
    return Examination(tuple(findings), tuple(placements), tuple(chosen), measured, tuple(between_nodes))


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, and a last one that counts what is wrong."""
    width = max(len(finding.subject) for finding in findings)
    lines = [finding.line(width) for finding in findings]
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    unknown = sum(finding.verdict == "unknown" for finding in findings)
    last = "nothing is wrong" if not wrong else "1 finding is wrong" if wrong == 1 else f"{wrong} findings are wrong"
    return "\n".join([*lines, last + (f", {unknown} unknown" if unknown else "")])


def as_record(examination: Examination) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "command": "doctor",
        "ranks": len(examination.placements),
        "ok": examination.ok,
        "findings": [vars(finding) for finding in examination.findings],
        "placements": [
            placement_record(RankPlacement(rank, found.host, found.cores, found.threads, gpu))
            for rank, (found, gpu) in enumerate(zip(examination.placements, examination.gpus, strict=True))
        ],
        "links": [asdict(link) for link in examination.measured.links],
        "node_links": [asdict(link) for link in examination.node_links],
        "peer_copies": [asdict(copy) for copy in examination.measured.peer_copies],
    }
