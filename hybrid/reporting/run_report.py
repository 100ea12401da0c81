# SPDX-License-Identifier: MIT
"""What a user reads of a run: the ranks and what each has, the table of phases, the last line; and the run's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import Asked
from hybrid.core.spans import Span
from hybrid.core.text import counted, percents, ranges, rate_in_units, rounded_up
from hybrid.core.timeline import PHASES, Spread
from hybrid.plan.arithmetic import Arithmetic, Computed
from hybrid.plan.plan import Plan

if TYPE_CHECKING:
    from hybrid.execution.outcome import Outcome, Parts
    from hybrid.selection.decision import Decision
    from hybrid.selection.placement import RankPlacement
    from hybrid.verification.check import Check

SHOWN = 0.005  # seconds: shorter parts of the wall time are not shown, but are in the JSON line
OUTSIDE_TOTAL = ("fill", "prepare", "check", "repair")  # phases whose time is not part of the product's


def heading(decision: Decision, asked: Asked | None = None) -> str:
    """One line for the product, with device, kernel and transport, then one for each rank. `asked`: where that is another one
    than the real product that is computed."""
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
    """What was computed now."""
    return outcome.parts.plans if outcome.parts else outcome.decision.plan


def parts_line(rows: int, of: int, there: int, name: str) -> str:
    """Of a product in parts, before it is computed: what is there. `rows`: of a part; `of`: of C; `name`: of what tells so."""
    left = of - there
    rest = f"{left} rows are computed in {counted(-(-left // rows), 'part')} of {counted(rows, 'row')}" if left else ""
    known = f"{there} of {of} rows are there, by {name}" if there else ""
    return f"  resume: {'; '.join(filter(None, (known, rest))) or 'C has no rows'}"


def describe(placement: RankPlacement, rows: Span) -> str:
    """One rank: host, cores, threads, GPU, rows."""
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


Plans = Plan | Sequence[Plan]  # of a product, or of the parts in which it was computed


def _listed(plans: Plans) -> Sequence[Plan]:
    return [plans] if isinstance(plans, Plan) else plans


def operations(plans: Plans) -> int:
    """Multiplications and additions of a product, or of the parts that were computed."""
    return sum(plan.problem.operations for plan in _listed(plans))


def table(plan: Plans, phases: dict[str, Spread], total: Spread) -> str:
    """For each phase: median, least and most seconds of its slowest rank over the repeats, share of the total, rate.

    The shares add up: in a last line stands what passed between the phases, or by how much they ran beside each other.
    """
    inside = [phase for phase in PHASES if phase in phases and phase not in OUTSIDE_TOTAL]
    medians = [phases[phase].median for phase in inside]
    rest = total.median - sum(medians)
    *shares, share_of_rest = percents([*medians, rest])
    share_of = dict(zip(inside, shares, strict=True)) if total.median else {}
    lines = [f"  {'phase':<10}{'seconds':>10}{'min':>10}{'max':>10}{'share':>8}  rate"]
    for phase in PHASES:
        if phase not in phases:
            continue
        spread = phases[phase]
        share = f"{share_of[phase]} %" if phase in share_of else "–"
        seconds = f"{spread.median:>10.4f}{spread.min:>10.4f}{spread.max:>10.4f}"
        lines.append(f"  {phase:<10}{seconds}{share:>8}  {rate(plan, phase, spread.median)}".rstrip())
    if share_of_rest:
        lines.append(f"  {'between' if rest > 0 else 'overlap':<10}{rest:>10.4f}{'':>20}{share_of_rest:>6} %")
    return "\n".join(lines)


def wall_line(parts: dict[str, float]) -> str:
    """The whole command so far, and its parts in the order in which they began; those that would show as 0.00 s are left out."""
    shown = [f"{part} {seconds:.2f}" for part, seconds in parts.items() if seconds >= SHOWN]
    return f"wall {sum(parts.values()):.2f} s: {', '.join(shown)}"


def rate(plan: Plans, phase: str, seconds: float) -> str:
    """The work of all ranks in this phase, divided by the time of the slowest rank."""
    if seconds <= 0:
        return ""
    if phase == "multiply":
        return rate_in_units(operations(plan) / seconds, "F")
    moved = sum(moved_bytes(of_part, phase) for of_part in _listed(plan))
    if phase == "fill":  # B is the same for all parts
        moved -= sum(each.problem.operand_bytes(each.problem.l, each.problem.m) for each in _listed(plan)[1:])
    return rate_in_units(moved / seconds, "B") if moved else ""


def moved_bytes(plan: Plan, phase: str) -> int:
    """Bytes that all ranks write (fill), read (check) or move in a phase; 0 where that depends on where the operands lie."""
    p = plan.problem
    a, b, c = p.operand_bytes(p.n, p.l), p.operand_bytes(p.l, p.m), p.bytes(p.n, p.m)
    nodes = len(plan.topology.nodes)
    rows_on_other_nodes = sum(len(plan.a_rows_on(node)) for node in range(nodes) if node != plan.root_node)
    # How often each row of B is loaded from host memory; the other devices fetch it from one that loaded it.
    loads_of_b = {"peers": nodes, "nccl": 1}.get(plan.transport, 0)
    return {
        "fill": a + b,
        "copy in": a + loads_of_b * b if loads_of_b else _loaded_bytes(plan),
        "exchange": (plan.topology.size - loads_of_b) * b if loads_of_b else 0,
        "copy out": c * (plan.grid_layout.grid.layers if plan.grid_layout else 1),
        "gather": p.bytes(rows_on_other_nodes, p.m),
        "check": a + b + c,
    }.get(phase, 0)


def _loaded_bytes(plan: Plan) -> int:
    """Bytes of row panels, column panels and k-slabs, each as often as it is loaded."""
    if plan.parts:
        return sum(map(_loaded_bytes, plan.parts))
    p = plan.problem
    return sum(
        sum(p.operand_bytes(len(rows), len(arrival.span)) for rows in arrival.slab) or p.operand_bytes(len(arrival.span), p.l)
        for share in plan.shares
        if len(share.rows)
        for arrival in share.arrivals()
    )


def last_line(plan: Plans, total: Spread, check: Check | None) -> str:
    """`total <seconds> s  rate <number> MF/s|GF/s|TF/s  check ok|FAILED|off …`: scripts rely on this form."""
    speed = rate_in_units(operations(plan) / total.median if total.median else 0.0, "F")
    return f"total {total.median:.4f} s  rate {speed}  check {verdict(check)}"


def verdict(check: Check | None) -> str:
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
    """The matrix as the lecture's programs print it: six decimals and a space for each element, an empty line at the end.
    Integers have no decimals."""
    return "".join("".join(f"{_shown(value)} " for value in row) + "\n" for row in matrix) + "\n"


def _shown(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return f"{int(value)}" if isinstance(value, int) else f"{value:f}"


def as_record(outcome: Outcome, options: dict[str, Any], settings: dict[str, Any], wall: dict[str, float]) -> dict[str, Any]:
    """A run as the record that `--json` writes; `wall`: the seconds of each part of the wall time."""
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
        "check": {"kind": "off", "error": None, "tolerance": None, "ok": None} if check is None else vars(check),
        **({"resume": _record_of(outcome.parts, problem.n)} if outcome.parts else {}),
        "settings": settings,
        "placements": [
            {**placement_record(placement), "rows": str(plan.shares[placement.rank].rows)} for placement in decision.placements
        ],
    }


def _record_of(parts: Parts, rows: int) -> dict[str, int]:
    """`rows`: of C."""
    computed = sum(plan.problem.n for plan in parts.plans)
    return {
        "part_rows": parts.rows,
        "rows_there": parts.there,
        "rows_computed": computed,
        "parts_computed": len(parts.plans),
        "rows_missing": rows - parts.there - computed,
    }


def placement_record(placement: RankPlacement) -> dict[str, Any]:
    """For a JSON line: where a rank runs."""
    return {
        "rank": placement.rank,
        "host": placement.host,
        "cores": ranges(placement.cores),
        "threads": placement.threads.count,
        "gpu": placement.gpu.name if placement.gpu else None,
        "uuid": placement.gpu.uuid if placement.gpu else None,
    }
