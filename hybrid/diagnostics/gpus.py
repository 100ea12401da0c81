"""GPUs: which there are, whether they work, and which ranks share one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid.core.spans import Topology
from hybrid.core.text import ranges
from hybrid.devices.cuda_gpus import Gpu, choose_gpus
from hybrid.diagnostics.finding import Finding, Unknown, alike, attempt
from hybrid.diagnostics.probe_process import ask
from hybrid.kernels.catalogue import LEAST_CAPABILITY

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LEAST_OF_CUDA = {12: 50, 13: 75}  # compute capability, times ten, that its compiler still knows
_SHOWN = 4
_LEAST_DRIVER = 12000  # for any CUDA of hybrid-runner's
_NEWER_DRIVER = "install a newer driver: CUDA 12 needs 525 or newer, CUDA 13 needs 580"
_OLD_DRIVER = ("cudaErrorInsufficientDriver", "cudaErrorCallRequiresNewerDriver", "cudaErrorUnsupportedPtxVersion")


@dataclass(frozen=True)
class Sight:
    """What one rank sees."""

    usable: tuple[Gpu, ...]
    trouble: tuple[str, str] | None  # what keeps a visible GPU from being used, and what to do
    absent: str = ""  # why there is none, where that is no trouble
    about: str = ""  # driver and CuPy


@dataclass(frozen=True)
class Trial:
    """How a rank's GPU did at work."""

    works: bool
    trouble: str = ""
    locked: int = 0  # bytes
    lock_trouble: str = ""


def look() -> Sight | Unknown:
    told = attempt(lambda: ask("gpus"))
    if isinstance(told, Unknown):
        return told
    if told.ended and "visible" not in told.said and "driver" in told.said and told.said["driver"] is not None:
        return Sight(
            (), (f"asking the driver for GPUs {told.ended}", "see whether nvidia-smi answers; reload the driver, or reboot")
        )
    if "driver" not in told.said:
        return Unknown(f"the process that looks for GPUs {told.ended or 'said nothing'}")
    return interpret(told.said, told.ended, driver_loaded=Path("/proc/driver/nvidia/version").exists(), environment=os.environ)


def interpret(said: Mapping[str, Any], ended: str, *, driver_loaded: bool, environment: Mapping[str, str]) -> Sight:
    """What the probe's words mean. `driver_loaded`: the kernel has NVIDIA's driver."""
    if said["driver"] is None:
        if driver_loaded:
            remedy = (
                "start the container with --gpus all (docker) or --nv (apptainer); outside of one install the driver's library"
            )
            return Sight((), ("the machine has NVIDIA's driver, but libcuda.so.1 is not to be found", remedy))
        return Sight((), None, "no NVIDIA driver (libcuda.so.1) on this machine")
    driver = f"driver for CUDA {_dotted(said['driver'])}"
    if said["status"] == _NO_DEVICE or (said["status"] == 0 and said["visible"] == 0):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        return Sight((), None, f"{driver}, but no GPU for this process{why}; in a Slurm job ask for one with --gres=gpu:1")
    if said["status"]:
        return Sight(
            (), (f"{driver} fails: {said['status_name']}", "see whether nvidia-smi answers; reload the driver, or reboot")
        )
    count = f"{said['visible']} visible, {driver}"
    fitting = "cuda13" if said["driver"] >= 13000 else "cuda12"
    packages = said.get("packages", ())
    if len(packages) > 1:
        remedy = f"pip uninstall {' '.join(packages)}, then pip install 'hybrid-runner[{fitting}]'"
        return Sight((), (f"{count}, but {', '.join(packages)} are installed together, each over the other's files", remedy))
    if "cupy" not in said:
        why = said.get("cupy_error") or f"importing it {ended}"
        install = f"pip install 'hybrid-runner[{fitting}]'"
        remedy = install if said["driver"] >= _LEAST_DRIVER else f"{_NEWER_DRIVER}; then {install}"
        return Sight((), (f"{count}, but CuPy cannot be used: {why}", remedy))
    about = f"{driver}, CuPy {said['cupy']} for CUDA {_dotted(said['runtime'])}"
    if said["runtime"] // 1000 > said["driver"] // 1000:
        remedy = _NEWER_DRIVER
        if said["driver"] >= _LEAST_DRIVER:
            remedy = (
                f"pip uninstall {' '.join(packages) or 'the cupy-cuda package'}, then pip install 'hybrid-runner[{fitting}]'; "
            )
            remedy += "or a newer driver"
        return Sight((), (f"{said['visible']} visible, but the {about}: too old for it", remedy))
    if "gpus" not in said:
        why = said.get("missing") or f"the process that looks at them {ended}"
        remedy = f"pip install 'hybrid-runner[{fitting}]', or see whether nvidia-smi answers"
        if any(error in why for error in _OLD_DRIVER):
            remedy = f"a driver for CUDA {_dotted(said['runtime'])} or newer, or a CuPy for an older CUDA"
        return Sight((), (f"{said['visible']} visible, {about}: {why}", remedy))
    gpus = tuple(Gpu(**{name: known[name] for name in ("index", "uuid", "name", "capability")}) for known in said["gpus"])
    least = max(LEAST_CAPABILITY, _LEAST_OF_CUDA.get(said["runtime"] // 1000, 0))
    old = [gpu for gpu in gpus if gpu.capability < least]
    if old:
        has = f"{old[0].name} has compute capability {old[0].capability // 10}.{old[0].capability % 10}, {about}"
        if old[0].capability >= LEAST_CAPABILITY:
            return Sight(
                (), (f"{has}, which is past it", "pip uninstall the cupy-cuda package, then pip install 'hybrid-runner[cuda12]'")
            )
        return Sight((), (f"{has}: past every kernel here", "use --device cpu, or set CUDA_VISIBLE_DEVICES to newer GPUs"))
    return Sight(gpus, None, about=about)


def choose(sights: Sequence[Sight | Unknown]) -> list[Gpu | None]:
    """Each rank's GPU, as the other commands take it."""
    seen = {rank: sight.usable for rank, sight in enumerate(sights) if isinstance(sight, Sight) and sight.usable}
    chosen = dict(zip(seen, choose_gpus(list(seen.values())), strict=True))
    return [chosen.get(rank) for rank in range(len(sights))]


def try_out(gpu: Gpu) -> Trial | Unknown:
    """Let it work, in a process that may die."""
    told = attempt(lambda: ask("trial", str(gpu.index)))
    if isinstance(told, Unknown):
        return told
    said = told.said
    if not said.get("works"):
        return Trial(False, f"{said.get('stage', 'starting')}: {told.ended or 'the result is wrong'}")
    return Trial(True, "", said.get("locked", 0), said.get("lock_error") or told.ended)


def judge(
    sights: Sequence[Sight | Unknown], chosen: Sequence[Gpu | None], trials: Sequence[Trial | Unknown | None],
    topology: Topology, hosts: Sequence[str],
) -> list[Finding]:  # fmt: skip
    findings = []
    for sight, ranks in alike(sights).items():
        who = _who(ranks, len(sights))
        if isinstance(sight, Unknown):
            findings.append(Finding("gpus", "unknown", f"{who}{sight.reason}"))
        elif sight.trouble:
            findings.append(Finding("gpus", "wrong", f"{who}{sight.trouble[0]}", sight.trouble[1]))
        elif not sight.usable:
            findings.append(Finding("gpus", "ok" if len(ranks) == len(sights) else "note", f"{who}none: {sight.absent}"))
    for trial, ranks in alike(trials).items():
        who = _who(ranks, len(sights))
        if isinstance(trial, Unknown):
            findings.append(Finding("gpus", "unknown", f"{who}{trial.reason}"))
        elif trial is not None and not trial.works:
            remedy = "pip install 'hybrid-runner[cuda13]' (or cuda12) completes CuPy with its compiler; else see nvidia-smi -q"
            findings.append(Finding("gpus", "wrong", f"{who}the GPU is seen, but does not work: {trial.trouble}", remedy))
    if any(chosen):
        findings.append(_used(sights, chosen, topology, hosts))
    return findings


def _used(sights: Sequence[Sight | Unknown], chosen: Sequence[Gpu | None], topology: Topology, hosts: Sequence[str]) -> Finding:
    """Which ranks are on which GPU, by UUID; doubles, and GPUs that nobody uses."""
    users: dict[str, list[int]] = {}
    for rank, gpu in enumerate(chosen):
        if gpu is not None:
            users.setdefault(gpu.uuid, []).append(rank)
    by_uuid = {gpu.uuid: gpu for sight in sights if isinstance(sight, Sight) for gpu in sight.usable}
    idle = sorted(set(by_uuid) - set(users))
    shown = [
        f"rank {ranges(ranks)} on {hosts[ranks[0]]}: {uuid} {by_uuid[uuid].name}" for uuid, ranks in list(users.items())[:_SHOWN]
    ]
    if len(users) > _SHOWN:
        shown.append(f"{len(users) - _SHOWN} more (--json lists them)")
    about = next(sight.about for sight in sights if isinstance(sight, Sight) and sight.usable)
    text = f"{len(by_uuid)} usable, {about}; {'; '.join(shown)}"
    doubles = [ranks for ranks in users.values() if len(ranks) > 1]
    if doubles and idle:  # only where ranks see different GPUs
        return Finding(
            "gpus", "wrong", f"{text}; rank {ranges(doubles[0])} share a GPU, and {idle[0]} is idle",
            "let every rank see all GPUs of its host: srun --gpu-bind=none, the same CUDA_VISIBLE_DEVICES for all",
        )  # fmt: skip
    if doubles:
        return Finding("gpus", "note", f"{text}; rank {ranges(doubles[0])} share a GPU: one rank a GPU is faster")
    if idle:
        return Finding("gpus", "note", f"{text}; {len(idle)} idle: start as many ranks as GPUs")
    return Finding("gpus", "ok", text)


def _who(ranks: Sequence[int], of: int) -> str:
    return "" if len(ranks) == of else f"rank {ranges(ranks)}: "


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
