# SPDX-License-Identifier: MIT
"""Judges copies from GPU to GPU within a node: do they work, and what does it cost where they do not?"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from hybrid.core.text import counted
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics.bandwidth import Failure, Isolation, Measurements, PeerCopy
from hybrid.diagnostics.finding import Finding
from hybrid.diagnostics.host_links import SLOW, rate_range

_SUBJECT = "gpu peers"
_USE_HOST = "--transport host, or HYBRID_TRANSPORT=host"
_CORRUPTED = (
    "switch off ACS and the IOMMU for the GPUs (BIOS, or intel_iommu=off, amd_iommu=off), or NVIDIA's peer access; until then "
    "other programs may compute with wrong data"
)


def judge(measured: Measurements, gpus: Sequence[Gpu | None], isolation: Sequence[Isolation]) -> Finding:
    """`gpus[rank]`: the rank's GPU. `isolation[rank]`: what decides whether it can open the memory of others."""
    failure, copies = measured.failure, measured.peer_copies
    largest = max(measured.nodes, key=len, default=())
    if not (measured.links or failure):
        return Finding(_SUBJECT, "ok", "not tried: no GPU that works")
    if measured.without_links:
        return Finding(_SUBJECT, "unknown", "not tried, since the links could not be measured")
    if measured.one_process:
        return _of_one_process(measured)
    if len(largest) < 2:
        return Finding(_SUBJECT, "ok", "not tried: one rank with a GPU on each node")
    if failure is not None:
        return _failed(failure, len(largest), _cause([(gpus[rank], isolation[rank]) for rank in largest]))
    text = "ranks of a node fetched data from each other's GPUs, and it was correct"
    if not copies:
        return Finding(_SUBJECT, "ok", f"{text} (they share one); the transport peers works")
    return _slow_or_ok(f"{text}: {_rates(copies)}, all at the same time; the transport peers works", copies)


def _failed(failure: Failure, ranks: int, cause: tuple[str, str]) -> Finding:
    cost = (
        f"the transport host is used: each of {ranks} ranks loads all of B over its GPU's own link, "
        f"{ranks} times what peers would"
    )
    what = f"{failure.rank}: {failure.text}"
    if failure.died:
        return Finding(
            _SUBJECT, "wrong", f"{what}, while GPUs opened each other's memory; so would a product's processes",
            f"{_USE_HOST} ({cost})",
            code="gpu-peers",
        )  # fmt: skip
    if failure.stage == "fetching":  # the test with little data, which a product makes beforehand, has passed
        passed = f"{what}; the transport peers is used nevertheless, since the little data that it tests with arrived"
        if failure.code == "gpu-data":
            return Finding(_SUBJECT, "wrong", passed, f"{_USE_HOST}; {_CORRUPTED}", code="gpu-data")
        return Finding(_SUBJECT, "unknown", passed)
    if failure.code == "gpu-data":
        return Finding(_SUBJECT, "wrong", f"{what}; {cost}", _CORRUPTED, code="gpu-data")
    why, remedy = cause
    return Finding(_SUBJECT, "note", f"{what}{f' ({why})' if why else ''}; {cost}", remedy, code="gpu-peers")


def _cause(node: Sequence[tuple[Gpu | None, Isolation]]) -> tuple[str, str]:
    """Why the ranks of a node cannot open each other's memory, "" if that is not known, and what to do. The likeliest cause
    counts."""
    if any(gpu is not None and "MIG " in gpu.name for gpu, _ in node):
        return "they are slices of MIG, which cannot open each other's memory", "switch MIG off, or use one rank a GPU"
    for kind in ("ipc", "pid"):
        if len({dict(isolation.namespaces).get(kind) for _, isolation in node}) > 1:
            return (
                f"they are in containers of their own, with different {kind} namespaces",
                f"start them with --{kind}=host (docker, podman), or all ranks of a node within one container",
            )
    everything = {uuid for _, isolation in node for uuid in isolation.visible}
    if any(set(isolation.visible) != everything for _, isolation in node):
        return (
            "ranks do not see each other's GPUs",
            "let every rank see all GPUs of its node: the same CUDA_VISIBLE_DEVICES for all, srun --gpu-bind=none",
        )
    return "", "see nvidia-smi topo -p2p r for which GPUs can; containers may need --ipc=host"


def _of_one_process(measured: Measurements) -> Finding:
    failure, copies = measured.failure, measured.peer_copies
    if failure is not None:
        return Finding(
            _SUBJECT, "wrong" if failure.died else "unknown", f"copying from GPU to GPU: {failure.text}",
            f"leave peer access out: {_USE_HOST}" if failure.died else "",
            code="gpu-peers",
        )  # fmt: skip
    if not copies:
        return Finding(_SUBJECT, "ok", "not tried: one GPU")
    wrong = [copy for copy in copies if not copy.correct]
    if wrong:
        text = f"what arrived in {wrong[0].target} is not what lies in {wrong[0].source}"
        return Finding(_SUBJECT, "wrong", text, _CORRUPTED, code="gpu-data")
    staged = [copy for copy in copies if not copy.direct]
    if staged:
        return Finding(
            _SUBJECT, "note",
            f"{len(staged)} of {counted(len(copies), 'pair')} have no peer access, {staged[0].source} to {staged[0].target} "
            f"among them: data goes through host memory, at {_rates(staged)}; ranks on these GPUs use the transport host",
            "see nvidia-smi topo -p2p r",
            code="gpu-peers",
        )  # fmt: skip
    return _slow_or_ok(f"each of {counted(len(copies), 'pair')} copied directly and correctly: {_rates(copies)}", copies)


def _slow_or_ok(text: str, copies: Sequence[PeerCopy]) -> Finding:
    if not all(isfinite(copy.rate) and copy.rate > 0 for copy in copies):
        return Finding(_SUBJECT, "unknown", f"{text}; but the copies took no time that could be measured")
    slowest, best = min(copies, key=lambda copy: copy.rate), max(copy.rate for copy in copies)
    if slowest.rate < SLOW * best:
        text = f"{text}; slowest from {slowest.source} to {slowest.target}"
        return Finding(_SUBJECT, "note", text, "nvidia-smi topo -m shows what lies between", code="slow-link")
    return Finding(_SUBJECT, "ok", text)


def _rates(copies: Sequence[PeerCopy]) -> str:
    return rate_range([copy.rate for copy in copies])
