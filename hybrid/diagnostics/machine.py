# SPDX-License-Identifier: MIT
"""The numbers of this machine that the plan's machine model needs. A child process measures them on one GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.core.problem import record
from hybrid.diagnostics.finding import Unknown
from hybrid.diagnostics.links import Link
from hybrid.diagnostics.probe_process import ProbeResult, run_probe
from hybrid.errors import HybridError
from hybrid.planning.decision import Gpu
from hybrid.planning.machine_model import RECORD_KEY, MachineModel
from hybrid.planning.schedule import KERNEL_TILE
from hybrid.ranks.team import Team

_LIMIT = 60  # seconds
_SIZES = (1024, 2048, 4096, 8192)  # of the products that are measured, until one takes long enough
_RATES = ("link", "multiply_adds", "byte_multiply_adds", "memory", "multiprocessors")


@record
class Machine:
    """What was measured of this machine."""

    model: Mapping[str, Any]  # fields of MachineModel
    rates: Mapping[str, Any]  # from which they follow, as the probe reported them


def measure(team: Team, chosen: Sequence[Gpu | None], links: Sequence[Link]) -> Machine | Unknown:
    """Measure the GPU of the first rank whose link was measured, while the others are idle. Every rank calls it, and gets the
    same."""
    measured = [link.rank for link in links if (gpu := chosen[link.rank]) is not None and gpu.uuid == link.uuid]
    if not measured:
        return Unknown("no GPU that works")
    with team.phase("machine", timed=False) as phase:
        mine = chosen[team.rank]
        if team.rank == measured[0] and mine is not None:
            phase.mine = run_probe("probe_rates.machine_rates", json.dumps({"sizes": _SIZES, "index": mine.index}), limit=_LIMIT)
    return interpret(phase.all[measured[0]], [link.alone.to_gpu for link in links])


def interpret(result: ProbeResult, link_rates: Sequence[float]) -> Machine | Unknown:
    """The machine's numbers, from what the probe reported. `link_rates`: bytes a second to each GPU of the job, of which the
    slowest counts, since the others wait for it."""
    found = result.report
    if result.ended or found.get("stage") != "done":
        return Unknown(f"{found.get('stage', 'starting')}: {result.ended or found.get('failed', 'it ended early')}")
    try:
        link_rate = min(found["link"]["to_gpu"], *link_rates)
        model: dict[str, Any] = {"link_bytes_per_second": link_rate}
        model |= {f"{dtype}_multiply_adds_per_byte": rate / link_rate for dtype, rate in found["multiply_adds"].items()}
        if "memory" in found:
            model["byte_multiply_adds_per_byte"] = found["byte_multiply_adds"] / link_rate
            model["memory_bytes_per_byte"] = found["memory"] / link_rate
        if found["multiprocessors"]:
            model["least_tile_elements"] = found["multiprocessors"] * KERNEL_TILE**2
        MachineModel(**model)
    except (ArithmeticError, HybridError, LookupError) as error:
        return Unknown(f"the measured rates make no sense: {error}")
    return Machine(model, {name: found[name] for name in _RATES if name in found})


def as_record(machine: Machine | Unknown, network: float = 0.0) -> dict[str, Any]:
    """What the doctor's JSON line says of the machine, and HYBRID_MACHINE reads from it. `network`: bytes a second between nodes,
    0 where there is only one."""
    of_network = {"network_bytes_per_second": network} if network else {}
    if isinstance(machine, Unknown):
        return {RECORD_KEY: of_network or None, "machine_rates": None, "no_machine_model": machine.reason}
    return {RECORD_KEY: {**machine.model, **of_network}, "machine_rates": dict(machine.rates), "no_machine_model": ""}
