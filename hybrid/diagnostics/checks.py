# SPDX-License-Identifier: MIT
"""The doctor's examination: MPI, memory, Slurm, tools, placement, GPUs and their links.

`examine_…` makes findings on one rank alone; equal findings of several ranks become one line. If a finding needs all ranks,
`inspect_…` looks at the machine on every rank, and `judge_…`, a pure function with the same result on every rank, makes the
finding. Nothing here raises: a value that cannot be determined is Unknown.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, TypeVar

from hybrid.core.installation import install
from hybrid.core.problem import Topology, record
from hybrid.core.text import counted, ranges, readable
from hybrid.devices.cuda_kernels import SHIPPED, trust_own_cache_only
from hybrid.diagnostics import links
from hybrid.diagnostics.finding import Finding, Unknown, attempt, merged, note, ok, ranks_by_value, unknown, wrong
from hybrid.diagnostics.probe_process import run_probe
from hybrid.diagnostics.probes import PINNED_BYTES
from hybrid.emulation.build import c_compiler, compiler
from hybrid.emulation.cache import cache_folder
from hybrid.errors import DeviceUnavailable, HybridError, StartError
from hybrid.host.threads import THREAD_VARIABLES, Threads, core_quota, usable_cores
from hybrid.kernels.catalogue import LEAST_CAPABILITY, dotted
from hybrid.planning.decision import Gpu, RankPlacement, choose_gpus
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.launcher import family_of, launched
from hybrid.ranks.mpi import Library, library_in_use
from hybrid.ranks.team import Team


@record
class MpiOfRank:
    """One rank's launcher and MPI."""

    launcher: str  # "" for a process started alone
    mpi: Library | Unknown
    mpirun: tuple[str, str] | Unknown | None = None  # for a process started alone: an available mpirun, and its family


def inspect_mpi(started: bool) -> MpiOfRank:
    """`started`: MPI was started in this process, or is not needed. Otherwise a child process tries whether MPI starts at all."""

    def library_of_child() -> Library | Unknown:
        result = run_probe("probes.mpi", limit=30)
        if "library" not in result.report:
            return Unknown(f"MPI does not start in a process alone, which {result.ended or 'reported nothing'}")
        library = result.report["library"]
        return Library(**{**library, "standard": tuple(library["standard"])})

    def mpirun() -> tuple[str, str] | None:
        """The mpirun on PATH, or beside this Python as pip installs it; and its MPI's family."""
        folders = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
        path = shutil.which("mpirun", path=folders) or shutil.which("mpiexec", path=folders)
        with busy():
            return (path, family_of(path)) if path else None

    launch = launched()
    library = attempt(library_in_use if launch and started else library_of_child)
    return MpiOfRank(launch.name, library) if launch else MpiOfRank("", library, attempt(mpirun))


def judge_mpi(mpi_of_ranks: Sequence[MpiOfRank], unstarted: StartError | None) -> list[Finding]:
    """`unstarted`: why the launched processes are not the ranks of one job."""
    found = merged([[_library(rank.mpi)] for rank in mpi_of_ranks])
    if len({rank.mpi.name for rank in mpi_of_ranks if isinstance(rank.mpi, Library)}) > 1:
        different = "; ".join(finding.text for finding in found)
        found = [wrong("mpi", f"not the same on all: {different}", "use one environment on all hosts", code="mpi-differs")]
    return [_launcher(mpi_of_ranks[0], len(mpi_of_ranks), unstarted), *found]


def _launcher(first: MpiOfRank, size: int, unstarted: StartError | None) -> Finding:
    if unstarted is not None:
        text = unstarted.what
        if isinstance(first.mpi, Library) and first.mpi.name not in text:
            text += f"; mpi4py uses {first.mpi.name}"
        remedy = "then use its mpirun"
        if isinstance(first.mpi, Library) and first.launcher == "srun":
            kind = "pmix" if first.mpi.family == "Open MPI" else "pmi2"
            remedy = f"try srun --mpi={kind} (srun --mpi=list shows which there are)"
        elif isinstance(first.mpi, Library):
            remedy = f"try the mpirun that came with {first.mpi.name}"
        return wrong("launcher", text, unstarted.remedy or remedy, code=unstarted.code)
    if first.launcher:
        return ok("launcher", f"{first.launcher} started {size}, and MPI sees as many")
    if isinstance(first.mpirun, Unknown):
        return unknown("launcher", f"mpirun: {first.mpirun.reason}")
    if first.mpirun is None:
        return note("launcher", "started alone; no mpirun on PATH: pip install mpich brings one", code="mpi-missing")
    path, family = first.mpirun
    if isinstance(first.mpi, Library) and family and family != first.mpi.family:
        remedy = "put the mpirun of mpi4py's MPI first on PATH (a pip-installed MPI's is in the environment's bin folder)"
        text = f"{path} is {family}'s, but mpi4py uses {first.mpi.name}: every rank would be 0 of 1"
        return wrong("launcher", text, remedy, code="wrong-mpirun")
    return ok("launcher", f"started alone; {path}{f' ({family})' if family else ''} starts several")


def _library(library: Library | Unknown) -> Finding:
    if isinstance(library, Unknown):
        return unknown("mpi", library.reason)
    text = (
        f"{library.name}, standard {library.standard[0]}.{library.standard[1]}, mpi4py for {library.abi}, "
        f"threads {library.provided} ({library.asked} asked for), large counts {'yes' if library.large_counts else 'no'}"
    )
    if not library.threads_suffice:
        return wrong("mpi", text, "install an MPI built with threads, such as pip install mpich", code="mpi-threads")
    return ok("mpi", text)


def examine_pinned(trial: Trial | None) -> Finding:
    """Whether host memory can be pinned for this rank's GPU. `trial`: None without a GPU that works."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = f"ulimit -l: {'unlimited' if limit == resource.RLIM_INFINITY else readable(limit)}"
    if trial is None or not trial.works:
        return ok("pinned memory", f"{text} (without a GPU no memory is pinned)")
    if not trial.pin_trouble:
        return ok("pinned memory", f"{readable(PINNED_BYTES)} pinned for the GPU; {text}")
    remedy = "raise the limit: ulimit -l unlimited (Slurm: LimitMEMLOCK=infinity for slurmd; container: --ulimit memlock=-1)"
    slow = f"{readable(PINNED_BYTES)} cannot be pinned for the GPU ({trial.pin_trouble}), so copies are slow; {text}"
    return wrong("pinned memory", slow, remedy, code="pinned-limit")


_READ = ("JOB_ID", "JOB_NUM_NODES", "NTASKS", "STEP_NUM_TASKS", "STEP_NUM_NODES", "CPUS_PER_TASK", "GPUS_ON_NODE", "STEP_GPUS",
         "JOB_GPUS")  # fmt: skip


def inspect_slurm() -> dict[str, str]:
    """This process's Slurm variables, without the prefix SLURM_; empty outside of a job."""
    return {name: value for name in _READ if (value := os.environ.get(f"SLURM_{name}"))}


def judge_slurm(
    variables: Sequence[Mapping[str, str]], cores: Sequence[int], gpus: Sequence[bool], topology: Topology, *, launched: bool
) -> Finding:
    """`variables[rank]`: from `inspect_slurm`; `cores[rank]`: how many cores it may use; `gpus[rank]`: whether it has a GPU that
    works; `launched`: a launcher started the ranks, and MPI sees as many.
    """
    job = variables[0]
    if "JOB_ID" not in job:
        return ok("slurm", "not in a job")
    ranks, nodes = len(variables), len(topology.nodes)
    words = {"NTASKS": "task", "JOB_NUM_NODES": "node", "CPUS_PER_TASK": "CPU"}
    given = [counted(job.get(name, "an unknown number of"), word) for name, word in words.items()]
    text = f"job {job['JOB_ID']} has {', '.join(given)} a task; MPI has {counted(ranks, 'rank')} on {counted(nodes, 'node')}"
    if few := [rank for rank in range(ranks) if 0 < cores[rank] < _number(variables[rank], "CPUS_PER_TASK")]:
        remedy = f"srun -c {job['CPUS_PER_TASK']}, since srun takes no -c from sbatch; for mpirun --bind-to none"
        return wrong("slurm", f"{text}; rank {few[0]} may use {counted(cores[few[0]], 'core')} only", remedy, code="slurm-cores")
    given_gpus = [each.get("STEP_GPUS") or each.get("JOB_GPUS") or _number(each, "GPUS_ON_NODE") for each in variables]
    if without := [rank for rank in range(ranks) if given_gpus[rank] and not gpus[rank]]:
        remedy = "see the line on gpus; or srun --gpus-per-task=1, or --gpu-bind=none for all GPUs of a node"
        return wrong("slurm", f"{text}; the job has GPUs, and rank {without[0]} cannot use any", remedy, code="slurm-gpus")
    tasks = _number(job, "STEP_NUM_TASKS") or _number(job, "NTASKS")
    if tasks > ranks and not launched:
        return note("slurm", f"{text}: this is one process; srun or mpirun starts it as {tasks} ranks", code="slurm-tasks")
    remarks = ["fewer ranks than tasks"] * (tasks > ranks)
    remarks += ["more ranks than tasks, so ranks share what a task was given"] * (0 < tasks < ranks)
    if _number(job, "JOB_NUM_NODES") > nodes and "STEP_NUM_NODES" not in job:
        remarks.append("some nodes of the job have no rank (does the mpirun know of Slurm? srun does)")
    return note("slurm", f"{text}: {', '.join(remarks)}", code="slurm-tasks") if remarks else ok("slurm", text)


def _number(job: Mapping[str, str], name: str) -> int:
    text = job.get(name, "")
    return int(text) if text.isdecimal() else 0


_COMPILER_LIMIT = 30  # seconds to compile a small program
_PROGRAM = b"#include <tuple>\n#include <vector>\nint main() { auto [x, y] = std::tuple{1, 2}; return x + y - 3; }\n"


def _compilers(gpus: bool) -> Finding:
    """`gpus`: some rank's GPU works, so none is emulated."""
    path, and_c = "", ""
    try:
        c_compiler()
    except DeviceUnavailable as missing:
        and_c = f"; checks, and copies of new arrays to GPUs, take several times as long without a C compiler ({missing})"
    try:
        path = compiler()
        command, trouble = [path, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], ""
        with busy():
            done = subprocess.run(command, input=_PROGRAM, capture_output=True, timeout=_COMPILER_LIMIT, check=False)  # noqa: S603
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()
            trouble = next((line for line in lines if "error" in line), f"ends with {done.returncode}").strip()
    except DeviceUnavailable as missing:
        trouble = str(missing)
        if "CXX" not in os.environ:
            return (ok if gpus else note)("compiler", f"none; {trouble}{and_c}", code="no-compiler")
    if trouble:
        remedy = "let CXX name a C++17 compiler, or nothing; apt-get install g++"
        return wrong("compiler", f"{path or 'none'}: {trouble}", remedy, code="no-compiler")
    return ok("compiler", f"{path}, for the emulated GPU{and_c}")


def _caches() -> Finding:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            folders = [str(cache_folder())]
        except HybridError as error:
            what, _, remedy = str(error).rpartition(": ")
            return wrong("kernel cache", what, f"{remedy} to a folder that can be written to", code="kernel-cache")
        cupy = util.find_spec("cupy")
        if cupy is not None and cupy.origin:  # a package, not just a folder of that name
            trust_own_cache_only()
            if os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
                folders.append(os.environ["CUPY_CACHE_DIR"])
    if said:  # a cache is not in its usual folder
        return note("kernel cache", "; ".join(str(each.message) for each in said), code="kernel-cache")
    shipped = sorted({file.name.split("-")[1] for file in SHIPPED.glob("*.xz")}, key=lambda name: (len(name.rstrip("a")), name))
    there = f"; machine code for {', '.join(shipped)} comes with the package" if shipped else ""
    return ok("kernel cache", ", ".join(folders) + there)


_SHOWN = 6  # hosts, ranks or GPUs in a line
_ANY_BINDING = "mpirun --bind-to none"


@record
class Placement:
    """Where one rank runs, and with how many threads."""

    host: str
    cores: tuple[int, ...]  # that it may use
    quota: float | None  # CPU quota of its control group, in cores
    threads: Threads
    cores_of_host: int = 0


def judge_placement(placements: Sequence[Placement], topology: Topology) -> Finding:
    parts = [
        f"{placements[node[0]].host} rank {ranges([node[member] for member in members])} on cores {ranges(cores)}"
        for node in topology.nodes
        for cores, members in ranks_by_value(placements[rank].cores for rank in node).items()
    ]
    more = "; … (--json lists them)" if len(parts) > _SHOWN else ""
    total = f"{counted(len(placements), 'rank')} on {counted(len(topology.nodes), 'host')}"
    return ok("placement", f"{total}: {'; '.join(parts[:_SHOWN])}{more}")


def judge_threads(placements: Sequence[Placement], topology: Topology) -> Finding:
    counts = ranks_by_value((placement.threads.count, placement.threads.reason) for placement in placements)
    text = "; ".join(
        f"{count} a rank ({reason})" if len(counts) == 1 else f"rank {ranges(ranks)}: {count} ({reason})"
        for (count, reason), ranks in list(counts.items())[:_SHOWN]
    )
    if crowded := [found for node in topology.nodes if (found := _crowded([placements[rank] for rank in node]))]:
        what, remedy = crowded[0]
        more = f" (and {counted(len(crowded) - 1, 'host')} more)" if len(crowded) > 1 else ""
        return wrong("threads", f"{text}: too many, {what}{more}", remedy, code="threads-crowded")
    if bound := [rank for rank, placement in enumerate(placements) if placement.threads.count > len(placement.cores)]:
        first = placements[bound[0]]
        few = f"{counted(first.threads.count, 'thread')}, bound to {counted(len(first.cores), 'core')}"
        text += f": rank {ranges(bound)} has {few}"
        remedy = f"bind ranks to more cores ({_ANY_BINDING} or --map-by slot:PE=N, srun -c N), or lower --threads"
        return wrong("threads", text, remedy, code="threads-bound")
    return ok("threads", text)


def _crowded(node: Sequence[Placement]) -> tuple[str, str] | None:
    """What is wrong on an oversubscribed node, and what to do; None if its cores can run all threads."""
    cores = len({core for placement in node for core in placement.cores})
    quotas = [placement.quota for placement in node if placement.quota is not None]
    usable = max(1.0, min([float(cores), *quotas]))  # a rank has at least one thread, whatever the quota
    threads = sum(placement.threads.count for placement in node)
    if threads <= usable + 1e-9:
        return None
    each = int(usable) // len(node)
    reason = node[0].threads.reason
    fewer = f"--threads {each}" + (f", or {reason}={each}" if reason in THREAD_VARIABLES else "")
    remedy = fewer if each else f"start at most {counted(int(usable), 'rank')} there"
    whole = max(placement.cores_of_host for placement in node)
    if min([float(whole), *quotas]) > usable:
        remedy += f", or let them use more of its {whole} cores ({_ANY_BINDING}, a larger srun -c)"
    many, ranks, few = counted(threads, "thread"), counted(len(node), "rank"), counted(f"{usable:g}", "core")
    return f"{many} of {ranks} on {few} of {node[0].host}", remedy


def examine_blas(threads: int) -> Finding:
    """Whether NumPy's BLAS respects the number of threads. Loads NumPy, which reads the number from the environment."""
    import numpy  # noqa: F401 (brings its BLAS)
    from threadpoolctl import threadpool_info

    if not (loaded := [library for library in threadpool_info() if library["user_api"] == "blas"]):
        text = "threadpoolctl does not know NumPy's BLAS, so its number of threads is not set"
        return note("blas", text, code="blas-threads")
    names = ", ".join(sorted({f"{library['internal_api']} {library['version'] or ''}".strip() for library in loaded}))
    most = max(library["num_threads"] for library in loaded)
    if most > threads:
        remedy = "unset what loads NumPy before the command does (sitecustomize, PYTHONSTARTUP), or set OMP_NUM_THREADS"
        return wrong("blas", f"{names} starts {most} threads where {threads} were set", remedy, code="blas-threads")
    return ok("blas", f"{names} uses no more threads than were set")


_LEAST_OF_CUDA = {12: 50, 13: 75}  # by CUDA version: ten times the least compute capability that the compiler supports
_TRY_NVIDIA_SMI = "see whether nvidia-smi answers; reload the driver, or reboot"
_NEWER_DRIVER = "install a newer driver: CUDA 12 needs 525 or newer, CUDA 13 needs 580"
_OLD_DRIVER = ("cudaErrorInsufficientDriver", "cudaErrorCallRequiresNewerDriver", "cudaErrorUnsupportedPtxVersion")


@record
class Sight:
    """The GPUs that one rank can use, or why it has none."""

    usable: tuple[Gpu, ...] = ()
    why_none: Finding | None = None
    about: str = ""  # driver and CuPy


@record
class Trial:
    """The result of trying a rank's GPU."""

    works: bool
    trouble: str = ""  # why it does not work
    pin_trouble: str = ""  # why no host memory can be pinned for it


def inspect_gpus() -> Sight:
    result = run_probe("probes.gpus")
    report, ended = result.report, result.ended
    if "driver" not in report:
        return Sight((), unknown("gpus", f"the process that looks for GPUs {ended or 'reported nothing'}"))
    if ended and "visible" not in report and report["driver"] is not None:
        return _unusable(f"asking the driver for GPUs {ended}", _TRY_NVIDIA_SMI)
    return interpret_gpus(report, ended, driver_loaded=Path("/proc/driver/nvidia/version").exists(), environment=os.environ)


def interpret_gpus(report: Mapping[str, Any], ended: str, *, driver_loaded: bool, environment: Mapping[str, str]) -> Sight:
    """The usable GPUs, or the first problem between the driver and GPUs that the kernels support. `ended`: how it ended."""
    if report["driver"] is None:
        if not driver_loaded:
            return Sight((), ok("gpus", "none: no NVIDIA driver (libcuda.so.1) on this machine"))
        remedy = "start the container with --gpus all (docker) or --nv (apptainer); else install the driver's library"
        return _unusable("the machine has NVIDIA's driver, but no libcuda.so.1", remedy)
    driver = f"driver for CUDA {_cuda_version(report['driver'])}"
    if report["status"] == 100 or (report["status"] == 0 and report["visible"] == 0):  # CUDA_ERROR_NO_DEVICE
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        absent = f"none: {driver}, but no GPU for this process{why}; in a Slurm job ask for one with --gres=gpu:1"
        return Sight((), ok("gpus", absent))
    if report["status"]:
        return _unusable(f"{driver} fails: {report['status_name']}", _TRY_NVIDIA_SMI)
    # From here on: the driver shows GPUs, but can CuPy use them?
    count = f"{report['visible']} visible, {driver}"
    packages = report.get("packages", ())
    complete = install("cuda13" if report["driver"] >= 13000 else "cuda12")
    driver_is_enough = report["driver"] >= 12000
    if len(packages) > 1:
        text = f"{count}, but {', '.join(packages)} are installed together, each over the other's files"
        return _unusable(text, f"pip uninstall {' '.join(packages)}, then {complete}")
    if "cupy" not in report:
        why = report.get("cupy_error") or f"importing it {ended}"
        remedy = complete if driver_is_enough else f"{_NEWER_DRIVER}; then {complete}"
        return _unusable(f"{count}, but CuPy cannot be used: {why}", remedy)
    about = f"CuPy {report['cupy']} for CUDA {_cuda_version(report['runtime'])}"
    if report["runtime"] // 1000 > report["driver"] // 1000:
        uninstall = f"pip uninstall {' '.join(packages) or 'the cupy-cuda package'}"
        remedy = f"{uninstall}, then {complete}; or a newer driver" if driver_is_enough else _NEWER_DRIVER
        return _unusable(f"{count}: too old for {about}", remedy)
    if "gpus" not in report:
        why = report.get("missing") or f"the process that looks at them {ended}"
        remedy = f"{complete}, or see whether nvidia-smi answers"
        if any(error in why for error in _OLD_DRIVER):
            remedy = f"a driver for CUDA {_cuda_version(report['runtime'])} or newer, or a CuPy for an older CUDA"
        return _unusable(f"{count}, {about}: {why}", remedy)
    gpus = tuple(Gpu(**{name: gpu[name] for name in ("index", "uuid", "name", "capability")}) for gpu in report["gpus"])
    least = max(LEAST_CAPABILITY, _LEAST_OF_CUDA.get(report["runtime"] // 1000, 0))
    if (old := next((gpu for gpu in gpus if gpu.capability < least), None)) is None:
        return Sight(gpus, about=f"{driver}, {about}")
    has = f"{old.name} has compute capability {dotted(old.capability)}"
    if old.capability < LEAST_CAPABILITY:
        remedy = "use --device cpu, or set CUDA_VISIBLE_DEVICES to newer GPUs"
        return _unusable(f"{has}, less than any kernel here supports", remedy)
    remedy = f"pip uninstall the cupy-cuda package, then {install('cuda12')}"
    return _unusable(f"{has}, which this CUDA no longer supports ({about})", remedy)


def _unusable(trouble: str, remedy: str) -> Sight:
    return Sight((), wrong("gpus", trouble, remedy, code="gpu-failed"))


def try_gpu(gpu: Gpu | None) -> Trial | None:
    """Compile and run a kernel, copy, and pin memory, in a child process."""
    if gpu is None:
        return None
    result = run_probe("probes.gpu_trial", str(gpu.index))
    report = result.report
    if not report.get("works"):
        return Trial(False, f"{report.get('stage', 'starting')}: {result.ended or 'the result is wrong'}")
    return Trial(True, "", report.get("pin_trouble", "") or result.ended)


def judge_gpus(
    sights: Sequence[Sight], chosen: Sequence[Gpu | None], trials: Sequence[Trial | None], hosts: Sequence[str]
) -> list[Finding]:
    """Each argument by rank: what it sees, its GPU, the trial of this GPU, and its host."""
    of_ranks: list[list[Finding]] = []
    for sight, trial in zip(sights, trials, strict=True):
        found = [sight.why_none] if sight.why_none else []
        if found and found[0].verdict == "ok" and any(chosen):  # other ranks have one
            found = [note("gpus", found[0].text, code="no-gpu")]
        if trial is not None and not trial.works:
            remedy = f"{install('cuda13')} (or cuda12) completes CuPy with its compiler; else see nvidia-smi -q"
            text = f"the GPU is seen, but does not work: {trial.trouble}"
            found.append(wrong("gpus", text, remedy, code="gpu-failed"))
        of_ranks.append(found)
    return [*merged(of_ranks), *([_used_gpus(sights, chosen, hosts)] if any(chosen) else [])]


def _used_gpus(sights: Sequence[Sight], chosen: Sequence[Gpu | None], hosts: Sequence[str]) -> Finding:
    """Which ranks use which GPU, which GPUs are shared, and which are idle."""
    users = {uuid: ranks for uuid, ranks in ranks_by_value(gpu and gpu.uuid for gpu in chosen).items() if uuid}
    by_uuid = {gpu.uuid: gpu for sight in sights for gpu in sight.usable}
    idle = sorted(set(by_uuid) - set(users))
    shown = [f"rank {ranges(ranks)} on {hosts[ranks[0]]}: {uuid} {by_uuid[uuid].name}" for uuid, ranks in users.items()]
    if (more := len(users) - _SHOWN) > 0:
        shown[_SHOWN:] = [f"{more} more (--json lists them)"]
    about = next(sight.about for sight in sights if sight.usable)
    text = f"{len(by_uuid)} usable, {about}; {'; '.join(shown)}"
    shared = [ranks for ranks in users.values() if len(ranks) > 1]
    if shared and idle:  # only where ranks see different GPUs
        remedy = "let every rank see all GPUs of its host: srun --gpu-bind=none, the same CUDA_VISIBLE_DEVICES for all"
        return wrong("gpus", f"{text}; rank {ranges(shared[0])} share a GPU, and {idle[0]} is idle", remedy, code="gpu-shared")
    if shared:
        return note("gpus", f"{text}; rank {ranges(shared[0])} share a GPU: one rank a GPU is faster", code="gpu-shared")
    if idle:
        return note("gpus", f"{text}; {len(idle)} idle: start as many ranks as GPUs", code="gpu-idle")
    return ok("gpus", text)


def _cuda_version(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


_SLOW = 2.0  # times as long as the others: other jobs may use a link, too
T = TypeVar("T")


def examine(
    team: Team, threads: Sequence[Threads], unstarted: StartError | None, *, for_model: bool
) -> tuple[list[Finding], dict[str, Any]]:
    """Examine everything; returns the findings, and the record for `--json`. Every rank calls it and gets the same result.
    `unstarted`: why this launched process is no rank of a job; `for_model`: measure the machine model, too."""

    def of_all(name: str, inspect: Callable[..., T], *about: Any) -> list[T]:
        with team.phase(name, timed=False) as phase:
            phase.mine = inspect(*about)
        return phase.all

    def found(subject: str, examine: Callable[..., Finding], *about: Any, here: bool = True) -> list[Finding]:
        """The findings of all ranks that look; unknown, with the reason, if `examine` raises."""
        with team.phase(subject, timed=False) as phase:
            if here:
                seen = attempt(lambda: examine(*about))
                phase.mine = [unknown(subject, seen.reason) if isinstance(seen, Unknown) else seen]
        return merged(phase.all)

    own, cores = threads[team.rank], usable_cores()
    placements = of_all("placement", Placement, team.host, cores, core_quota(), own, os.cpu_count() or 0)
    mpi_of_ranks = of_all("mpi", inspect_mpi, unstarted is None)
    slurm_variables = of_all("slurm", inspect_slurm)
    sights = of_all("gpus", inspect_gpus)
    chosen = choose_gpus([sight.usable for sight in sights])  # as the other commands do
    trials = of_all("gpu trials", try_gpu, chosen[team.rank])
    works = [trial is not None and trial.works for trial in trials]
    blas = found("blas", examine_blas, own.count)
    pinned = found("pinned memory", examine_pinned, trials[team.rank])
    compilers = found("compiler", _compilers, any(works), here=team.leads_node)
    caches = found("kernel cache", _caches, here=team.leads_node)
    hosts = [rank.host for rank in placements]
    measured = links.measure(team, [gpu if works[rank] else None for rank, gpu in enumerate(chosen)], hosts)
    launched = unstarted is None and bool(mpi_of_ranks[0].launcher)
    findings = [
        *judge_mpi(mpi_of_ranks, unstarted),
        judge_placement(placements, team.topology),
        judge_threads(placements, team.topology),
        *blas,
        *links.judge_node_links(measured.node_links, _SLOW),
        judge_slurm(slurm_variables, [len(rank.cores) for rank in placements], works, team.topology, launched=launched),
        *judge_gpus(sights, chosen, trials, hosts),
        *pinned,
        *links.judge(measured, _SLOW, note),
        *compilers,
        *caches,
    ]
    seats = zip(placements, chosen, strict=True)
    at = [RankPlacement(rank, seat.host, seat.cores, seat.threads, gpu) for rank, (seat, gpu) in enumerate(seats)]
    record = links.as_record(findings, at, measured)
    return findings, record | (links.measure_machine(team, chosen, measured) if for_model else {})
