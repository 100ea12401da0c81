"""From GPU to GPU within a node: do they reach each other, and what does it cost where they do not?"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics.bandwidth import Failure, Passage, Surroundings, Traffic
from hybrid.diagnostics.finding import Finding, counted
from hybrid.diagnostics.host_links import SLOW, span

_SUBJECT = "gpu peers"
_WRONG_DATA = "not what lies there"
_DISTURBED = (
    "switch off ACS and the IOMMU for the GPUs (BIOS, or intel_iommu=off, amd_iommu=off), or NVIDIA's peer access; until then "
    "other programs may compute with wrong data"
)


def judge(traffic: Traffic, gpus: Sequence[Gpu | None], around: Sequence[Surroundings]) -> Finding:
    """`gpus[rank]`, `around[rank]`: the rank's GPU, and what it can open."""
    failure = traffic.failure
    most = max((len(node) for node in traffic.nodes), default=0)
    if not (traffic.links or failure):
        return Finding(_SUBJECT, "ok", "not tried: no GPU that works")
    if failure is not None and failure.stage in ("", "starting", "links"):
        return Finding(_SUBJECT, "unknown", "not tried, since the links could not be measured")
    if traffic.alone:
        return _of_one_process(traffic)
    if most < 2:
        return Finding(_SUBJECT, "ok", "not tried: one rank with a GPU on each node")
    if failure is not None:
        return _refused(failure, most, _cause([(gpus[rank], around[rank]) for rank in max(traffic.nodes, key=len)]))
    text = "ranks of a node fetched data from each other's GPUs, and it was right"
    if not traffic.passages:
        return Finding(_SUBJECT, "ok", f"{text} (they share one); the road peers works")
    return _slow_or_ok(f"{text}: {_rates(traffic.passages)}, all at the same time; the road peers works", traffic.passages)


def _refused(failure: Failure, most: int, cause: tuple[str, str]) -> Finding:
    cost = f"the road host is taken: each of {most} ranks loads all of B over its GPU's own link, {most} times what peers would"
    what = f"{failure.who}: {failure.text}"
    if failure.died:
        return Finding(
            _SUBJECT, "wrong", f"{what}, while GPUs reached for each other; so would a product's processes",
            f"--transport host, or HYBRID_TRANSPORT=host ({cost})",
        )  # fmt: skip
    if failure.stage == "fetching":  # what a product tries beforehand went well
        passed = f"{what}; the road peers is taken nevertheless, since the little that it tries beforehand arrived"
        if _WRONG_DATA in failure.text:
            return Finding(_SUBJECT, "wrong", passed, f"--transport host, or HYBRID_TRANSPORT=host; {_DISTURBED}")
        return Finding(_SUBJECT, "unknown", passed)
    if _WRONG_DATA in failure.text:
        return Finding(_SUBJECT, "wrong", f"{what}; {cost}", _DISTURBED)
    why, remedy = cause
    return Finding(_SUBJECT, "note", f"{what}{f' ({why})' if why else ''}; {cost}", remedy)


def _cause(node: Sequence[tuple[Gpu | None, Surroundings]]) -> tuple[str, str]:
    """What is known to keep ranks of a node from opening each other's memory, and what to do; the likeliest first."""
    if any(gpu is not None and "MIG " in gpu.name for gpu, _ in node):
        return "they are slices of MIG, which cannot open each other's memory", "switch MIG off, or use one rank a GPU"
    for kind in ("ipc", "pid"):
        if len({dict(around.namespaces).get(kind) for _, around in node}) > 1:
            return (
                f"they are in containers of their own, with different {kind} namespaces",
                f"start them with --{kind}=host (docker, podman), or all ranks of a node within one container",
            )
    everything = {uuid for _, around in node for uuid in around.visible}
    if any(set(around.visible) != everything for _, around in node):
        return (
            "ranks do not see each other's GPUs",
            "let every rank see all GPUs of its node: the same CUDA_VISIBLE_DEVICES for all, srun --gpu-bind=none",
        )
    return "", "see nvidia-smi topo -p2p r for which GPUs can; containers may need --ipc=host"


def _of_one_process(traffic: Traffic) -> Finding:
    failure, passages = traffic.failure, traffic.passages
    if failure is not None:
        return Finding(
            _SUBJECT, "wrong" if failure.died else "unknown", f"copying from GPU to GPU: {failure.text}",
            "leave peer access out: --transport host, or HYBRID_TRANSPORT=host" if failure.died else "",
        )  # fmt: skip
    if not passages:
        return Finding(_SUBJECT, "ok", "not tried: one GPU")
    wrong = [passage for passage in passages if not passage.right]
    if wrong:
        return Finding(_SUBJECT, "wrong", f"what arrived in {wrong[0].into} is not what lies in {wrong[0].source}", _DISTURBED)
    detours = [passage for passage in passages if not passage.direct]
    if detours:
        return Finding(
            _SUBJECT, "note",
            f"{len(detours)} of {counted(len(passages), 'pair')} have no peer access, {detours[0].source} to {detours[0].into} "
            f"among them: data goes through the host's memory, at {span([passage.rate for passage in detours])}; ranks on these "
            "GPUs take the road host",
            "see nvidia-smi topo -p2p r",
        )  # fmt: skip
    return _slow_or_ok(f"each of {counted(len(passages), 'pair')} copied directly, and rightly: {_rates(passages)}", passages)


def _slow_or_ok(text: str, passages: Sequence[Passage]) -> Finding:
    if not all(isfinite(passage.rate) and passage.rate > 0 for passage in passages):
        return Finding(_SUBJECT, "unknown", f"{text}; but the copies took no time that could be measured")
    worst, best = min(passages, key=lambda passage: passage.rate), max(passage.rate for passage in passages)
    if worst.rate < SLOW * best:
        return Finding(
            _SUBJECT,
            "note",
            f"{text}; slowest from {worst.source} to {worst.into}",
            "nvidia-smi topo -m shows what lies between",
        )
    return Finding(_SUBJECT, "ok", text)


def _rates(passages: Sequence[Passage]) -> str:
    return span([passage.rate for passage in passages])
