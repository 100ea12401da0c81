# SPDX-License-Identifier: MIT
"""What a user reads of a run, from the heading with the ranks to the last line; and the run's record."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import AskedProduct
from hybrid.core.spans import Span
from hybrid.core.text import counted, ranges, rate_in_units, rounded_up
from hybrid.core.timeline import Spread
from hybrid.errors import with_code
from hybrid.planning.arithmetic import Arithmetic, Computed
from hybrid.reporting.phase_table import Plans, operations

if TYPE_CHECKING:
    from hybrid.runs.measured import Outcome, Parts
    from hybrid.selection.decision import Decision, RankPlacement
    from hybrid.verification.check import Check

SHOWN = 0.005  # seconds: shorter parts of the wall time are not shown, but are in the JSON line


def heading(decision: Decision, asked: AskedProduct | None = None) -> str:
    """A line for the product, with device, kernel and transport, then one for each rank. `asked`: the product that was asked for,
    where the real product that is computed is another one."""
    plan, problem = decision.plan, asked or decision.plan.problem
    lines = [
        f"C ({problem.n}×{problem.m}) = A ({problem.n}×{problem.l}) · B ({problem.l}×{problem.m})  {problem.dtype}  "
        f"{counted(plan.topology.size, 'rank')} on {counted(len(plan.topology.nodes), 'node')}  "
        f"{plan.device} ({decision.device_reason})  kernel {decision.kernel.name} ({decision.kernel_reason})"
        + (f"  precision {_precision(decision)}" if plan.device != "cpu" else "")
        + (f"  transport {plan.transport} ({decision.transport_reason})" if plan.staged else "")
        + (f"  grid {plan.grid_layout.grid} of nodes" if plan.grid_layout else "")
    ]
    lines += [f"  {describe(placement, plan.shares[placement.rank].rows)}" for placement in decision.placements]
    return "\n".join(lines)


def _precision(decision: Decision) -> str:
    where = "from remainders where as accurate" if decision.plan.moduli else "native"
    return f"{where} ({decision.precision_reason})"


def arithmetic_line(computed: Computed) -> str:
    """How much of C was computed in which arithmetic, and what is proved of its errors."""
    whole = sum(elements for elements, _ in computed.values())
    parts = (
        f"{100 * elements / whole:.3g} % {arithmetic.name}{_proved(arithmetic, error)}"
        for arithmetic, (elements, error) in sorted(computed.items(), key=lambda entry: -entry[1][0])
    )
    return f"arithmetic: {', '.join(parts)}"


def _proved(arithmetic: Arithmetic, error: float | None) -> str:
    if not error:  # native, or exact, as the name says
        return ""
    return f" ({'proved' if arithmetic.scaled else 'rounded once'}: error ≤ {rounded_up(error)}·|A||B|)"


def plans_of(outcome: Outcome) -> Plans:
    """The plans of all that this run has computed."""
    return outcome.parts.plans if outcome.parts else outcome.decision.plan


def parts_line(rows: int, of: int, there: int, name: str) -> str:
    """A line about a product in parts, before they are computed. `rows`: of a part; `of`: rows of C; `there`: rows that an
    earlier job has written, as `name` tells."""
    left = of - there
    rest = f"{left} rows are computed in {counted(-(-left // rows), 'part')} of {counted(rows, 'row')}" if left else ""
    known = f"{there} of {of} rows are there, by {name}" if there else ""
    return f"  resume: {'; '.join(filter(None, (known, rest))) or 'C has no rows'}"


def describe(placement: RankPlacement, rows: Span) -> str:
    """A line about one rank: host, cores, threads, GPU, rows."""
    threads = placement.threads
    parts = [
        f"rank {placement.rank}",
        placement.host,
        f"cores {ranges(placement.cores)}",
        f"{counted(threads.count, 'thread')} ({threads.reason})",
    ]
    if placement.gpu:
        shared = ", ".join(map(str, placement.shares_gpu_with))
        parts.append(f"{placement.gpu.name} {placement.gpu.uuid}" + (f" shared with rank {shared}" if shared else ""))
    return "  ".join([*parts, f"rows {rows}"])


def wall_line(parts: dict[str, float]) -> str:
    """A line with the command's time so far, and its parts in the order in which they began. Parts that would show as 0.00 are
    left out."""
    shown = [f"{part} {seconds:.2f}" for part, seconds in parts.items() if seconds >= SHOWN]
    return f"wall {sum(parts.values()):.2f} s: {', '.join(shown)}"


def last_line(plan: Plans, total: Spread, check: Check | None) -> str:
    """`total <seconds> s  rate <number> MF/s|GF/s|TF/s  check ok|FAILED|off …`: scripts rely on this form."""
    speed = rate_in_units(operations(plan) / total.median if total.median else 0.0, "F")
    line = f"total {total.median:.4f} s  rate {speed}  check {verdict(check)}"
    return line if check is None or check.ok else with_code(line, check.code)


def verdict(check: Check | None) -> str:
    """The result of a check in a few words."""
    if check is None:
        return "off"
    if check.kind == "none":
        return "impossible (NaN, infinity or too large values in A or B)"
    result = "ok" if check.ok else "FAILED"
    note = f"; {check.note}" if check.note else ""
    return f"{result} ({check.kind}, error {check.error:.1e}, tolerance {check.tolerance:.1e}{note})"


def labelled_corner(label: str, corner: Any, shape: tuple[int, int]) -> str:
    """The top left of a matrix of this shape, below its name."""
    rows, columns = len(corner), len(corner[0]) if len(corner) else shape[1]
    part = "" if (rows, columns) == shape else f", its top left {rows}×{columns}"
    return f"{label} ({shape[0]}×{shape[1]}){part}\n{top_left(corner)}"


def top_left(matrix: Any) -> str:
    """The matrix as the lecture's programs print it: each element with six decimals, or none for integers, and a space; and an
    empty line at the end."""
    return "".join("".join(f"{_shown(value)} " for value in row) + "\n" for row in matrix) + "\n"


def _shown(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return f"{int(value)}" if isinstance(value, int) else f"{value:f}"


def as_record(outcome: Outcome, options: dict[str, Any], settings: dict[str, Any], wall: dict[str, float]) -> dict[str, Any]:
    """A run as the record that `--json` writes. `options`: more entries; `wall`: the seconds of each part of the wall time."""
    plan, decision, check = outcome.decision.plan, outcome.decision, outcome.check
    problem = plan.problem
    return {
        "command": "matmul",
        "n": problem.n,
        "l": problem.l,
        "m": problem.m,
        "dtype": problem.dtype,
        "ranks": plan.topology.size,
        "nodes": len(plan.topology.nodes),
        "device": plan.device,
        "kernel": decision.kernel.name,
        "arithmetic": {arithmetic.name: elements for arithmetic, (elements, _) in outcome.arithmetic.items()},
        "certified": {arithmetic.name: error for arithmetic, (_, error) in outcome.arithmetic.items()},
        "transport": plan.transport,
        "grid": str(plan.grid_layout.grid) if plan.grid_layout else None,
        **options,
        "seconds": {phase: vars(spread) for phase, spread in outcome.phases.items()},
        "total": vars(outcome.total),
        "wall": {**wall, "total": sum(wall.values())},
        "rate": operations(plans_of(outcome)) / outcome.total.median if outcome.total.median else 0.0,
        "check": {"kind": "off", "error": None, "tolerance": None, "ok": None} if check is None else asdict(check),
        **({"resume": _record_of(outcome.parts, problem.n)} if outcome.parts else {}),
        "settings": settings,
        "placements": [
            {**placement_record(placement), "rows": str(plan.shares[placement.rank].rows)} for placement in decision.placements
        ],
    }


def _record_of(parts: Parts, rows: int) -> dict[str, int]:
    """What the record says of a product in parts. `rows`: of C."""
    computed = sum(plan.problem.n for plan in parts.plans)
    return {
        "part_rows": parts.rows,
        "rows_there": parts.there,
        "rows_computed": computed,
        "parts_computed": len(parts.plans),
        "rows_missing": rows - parts.there - computed,
    }


def placement_record(placement: RankPlacement) -> dict[str, Any]:
    """Where a rank runs, for a JSON line."""
    return {
        "rank": placement.rank,
        "host": placement.host,
        "cores": ranges(placement.cores),
        "threads": placement.threads.count,
        "gpu": placement.gpu.name if placement.gpu else None,
        "uuid": placement.gpu.uuid if placement.gpu else None,
    }
