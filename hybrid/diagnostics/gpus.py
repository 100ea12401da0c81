# SPDX-License-Identifier: MIT
"""GPUs: which there are, whether they work, and which ranks share one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid.core.installation import install
from hybrid.core.problem import record
from hybrid.core.text import ranges
from hybrid.devices.cuda_gpus import Gpu, choose_gpus
from hybrid.diagnostics.finding import Finding, Unknown, note, ok, ranks_by_value, unknown, wrong
from hybrid.diagnostics.probe_process import run_probe
from hybrid.kernels.catalogue import LEAST_CAPABILITY, dotted

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LEAST_OF_CUDA = {12: 50, 13: 75}  # the least compute capability, times ten, that its compiler supports
_SHOWN = 4
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


def inspect() -> VisibleGpus | Unknown:
    result = run_probe("tries.gpus")
    report, ended = result.report, result.ended
    if "driver" not in report:
        return Unknown(f"the process that looks for GPUs {ended or 'reported nothing'}")
    if ended and "visible" not in report and report["driver"] is not None:
        return _unusable(f"asking the driver for GPUs {ended}", _TRY_NVIDIA_SMI)
    return interpret(report, ended, driver_loaded=Path("/proc/driver/nvidia/version").exists(), environment=os.environ)


def interpret(report: Mapping[str, Any], ended: str, *, driver_loaded: bool, environment: Mapping[str, str]) -> VisibleGpus:
    """What the probe's report means. `ended`: how the probe ended; `driver_loaded`: the Linux kernel has NVIDIA's driver."""
    return (
        _driver_trouble(report, driver_loaded, environment)
        or _cupy_trouble(report, ended)
        or _usable(report, f"{_driver(report)}, {_cupy(report)}")
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
            remedy = f"a driver for CUDA {_dotted(report['runtime'])} or newer, or a CuPy for an older CUDA"
        return _unusable(f"{count}, {about}: {why}", remedy)
    return None


def _usable(report: Mapping[str, Any], about: str) -> VisibleGpus:
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
    return f"driver for CUDA {_dotted(report['driver'])}"


def _cupy(report: Mapping[str, Any]) -> str:
    return f"CuPy {report['cupy']} for CUDA {_dotted(report['runtime'])}"


def choose(visible: Sequence[VisibleGpus | Unknown]) -> list[Gpu | None]:
    """Each rank's GPU, chosen as the other commands choose it; None where it sees none. `visible[rank]`: what the rank sees."""
    usable = {rank: gpus for rank, gpus in enumerate(map(usable_of, visible)) if gpus}
    chosen = dict(zip(usable, choose_gpus(list(usable.values())), strict=True))
    return [chosen.get(rank) for rank in range(len(visible))]


def usable_of(visible: VisibleGpus | Unknown) -> tuple[Gpu, ...]:
    """The usable GPUs of what a rank sees."""
    return visible.usable if isinstance(visible, VisibleGpus) else ()


def try_out(gpu: Gpu) -> Trial:
    """Compile and run a kernel, copy, and pin memory, in a child process."""
    result = run_probe("tries.gpu_trial", str(gpu.index))
    report = result.report
    if not report.get("works"):
        return Trial(False, f"{report.get('stage', 'starting')}: {result.ended or 'the result is wrong'}")
    return Trial(True, "", report.get("pinned", 0), report.get("pin_error") or result.ended)


def judge(
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
        findings.append(_used(visible, chosen, hosts))
    return findings


def _used(visible: Sequence[VisibleGpus | Unknown], chosen: Sequence[Gpu | None], hosts: Sequence[str]) -> Finding:
    """Which ranks are on which GPU, by UUID; GPUs that several ranks share, and GPUs that none uses."""
    users: dict[str, list[int]] = {}
    for rank, gpu in enumerate(chosen):
        if gpu is not None:
            users.setdefault(gpu.uuid, []).append(rank)
    by_uuid = {gpu.uuid: gpu for seen in visible for gpu in usable_of(seen)}
    idle = sorted(set(by_uuid) - set(users))
    shown = [
        f"rank {ranges(ranks)} on {hosts[ranks[0]]}: {uuid} {by_uuid[uuid].name}" for uuid, ranks in list(users.items())[:_SHOWN]
    ]
    if len(users) > _SHOWN:
        shown.append(f"{len(users) - _SHOWN} more (--json lists them)")
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


def _dotted(version: int) -> str:
    """A version of CUDA as it is written: 12040 is 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}"
