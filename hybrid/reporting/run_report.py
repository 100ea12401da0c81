# SPDX-License-Identifier: MIT
"""A run's output, from the heading with the ranks to the last line; and its record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import Span
from hybrid.core.text import aligned, counted, ranges, rate_in_units, rounded_up
from hybrid.core.timeline import PHASES, Interval, Spread
from hybrid.errors import with_code
from hybrid.host.files import write_text
from hybrid.planning.arithmetic import Computed
from hybrid.planning.plan import Plan

if TYPE_CHECKING:
    from hybrid.planning.decision import Decision, RankPlacement
    from hybrid.runs.measured import Outcome, Parts
    from hybrid.verification.check import Check


OUTSIDE_TOTAL = ("fill", "prepare", "check", "repair")  # phases that do not count for the product's time
Plans = Sequence[Plan]  # of a product, or of the parts in which it was computed


def operations(plans: Plans) -> int:
    """Multiplications and additions of a product, or of its computed parts."""
    return sum(plan.problem.operations for plan in plans)


def table(plans: Plans, phases: dict[str, Spread], total: Spread, spared: int = 0) -> str:
    """A line for each phase: median, least and most seconds of its slowest rank over the repeats, share of the total, rate.

    `spared`: bytes of A and B that were in memory already, and not filled. The shares add up to 100 %: the last line has the time
    between phases, or their overlap.
    """
    inside = [phase for phase in PHASES if phase in phases and phase not in OUTSIDE_TOTAL]
    medians = [phases[phase].median for phase in inside]
    rest = total.median - sum(medians)
    # Whole percents that add up to 100, since the running sum is rounded.
    ends = [round(100 * end / total.median) if total.median > 0 else 0 for end in accumulate([*medians, rest], initial=0.0)]
    *shares, share_of_rest = (after - before for before, after in pairwise(ends))
    share_of = dict(zip(inside, shares, strict=True)) if total.median else {}
    rows: list[tuple[str, ...]] = [("phase", "seconds", "min", "max", "share", "rate")]
    for phase, spread in ((phase, phases[phase]) for phase in PHASES if phase in phases):
        share = f"{share_of[phase]} %" if phase in share_of else "–"
        seconds = (f"{each:.4f}" for each in (spread.median, spread.min, spread.max))
        rows.append((phase, *seconds, share, rate(plans, phase, spread.median, spared)))
    if share_of_rest:
        rows.append(("between" if rest > 0 else "overlap", f"{rest:.4f}", "", "", f"{share_of_rest} %", ""))
    return "\n".join(f"  {line}" for line in aligned(rows, "lrrrrl"))


def rate(plans: Plans, phase: str, seconds: float, spared: int = 0) -> str:
    """A phase's rate: the work of all ranks by the slowest rank's `seconds`; "" if it has none. `spared`: as in `table`."""
    if seconds <= 0:
        return ""
    if phase == "multiply":
        return rate_in_units(operations(plans) / seconds, "F")
    moved = sum(moved_bytes(of_part, phase) for of_part in plans) - spared * (phase == "fill")
    return rate_in_units(moved / seconds, "B") if moved else ""


def moved_bytes(plan: Plan, phase: str) -> int:
    """Bytes that all ranks write (fill), read (check) or move in a phase; 0 if that depends on where the operands are."""
    p = plan.problem
    a, b, c = p.operand_bytes(p.n, p.l), p.operand_bytes(p.l, p.m), p.bytes(p.n, p.m)
    nodes = len(plan.topology.nodes)
    rows_on_other_nodes = sum(len(plan.rows_on(node)["A"]) for node in range(nodes) if node != plan.root_node)
    # How often each row of B is copied from host memory. Other devices fetch it from one that has it.
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
    """H2D bytes: of row panels, column panels and k-slabs, as often as each is loaded."""
    if plan.parts:
        return sum(map(_loaded_bytes, plan.parts))
    p = plan.problem
    return sum(
        sum(p.operand_bytes(len(rows), len(arrival.span)) for rows in arrival.slab) or p.operand_bytes(len(arrival.span), p.l)
        for share in plan.shares
        if len(share.rows)
        for arrival in share.arrivals()
    )


_MOST_LANES = 1000  # rows of one phase: overlapping intervals have different ones, else a viewer shows them as nested calls


def write_trace(path: str, intervals_of_ranks: Sequence[Sequence[Interval]], names: Sequence[str]) -> None:
    """Write all ranks' intervals to a file of Chrome trace events.

    `intervals_of_ranks[rank]`: in seconds from a moment common to all ranks. `names[rank]`: the rank's displayed name.
    """
    events: list[dict[str, Any]] = []
    for rank, (intervals, name) in enumerate(zip(intervals_of_ranks, names, strict=True)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for number, phase in enumerate(PHASES):
            lanes = [0.0]  # the end of the last interval in each
            for each in sorted((each for each in intervals if each.phase == phase), key=lambda each: each.begin):
                lane = next((lane for lane, at in enumerate(lanes) if at <= each.begin), len(lanes))
                lanes[lane:] = [each.end, *lanes[lane + 1 :]]
                what = {"ph": "X", "name": phase, "cat": "hybrid", "args": {"repeat": each.repeat}}
                when = {"ts": each.begin * 1e6, "dur": (each.end - each.begin) * 1e6}
                events.append({**what, "pid": rank, "tid": number * _MOST_LANES + lane, **when})
            named = {"ph": "M", "name": "thread_name", "pid": rank, "args": {"name": phase}}
            events += [{**named, "tid": number * _MOST_LANES + lane} for lane in range(len(lanes))]
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def heading(decision: Decision, sizes: tuple[int, int, int], dtype: str) -> str:
    """A line for the product of these sizes and type, with device, kernel and transport, then one for each rank."""
    plan, (n, l, m) = decision.plan, sizes
    where = "from remainders where as accurate" if plan.moduli else "native"
    lines = [
        f"C ({n}×{m}) = A ({n}×{l}) · B ({l}×{m})  {dtype}  "
        f"{counted(plan.topology.size, 'rank')} on {counted(len(plan.topology.nodes), 'node')}  "
        f"{plan.device} ({decision.device_reason})  kernel {decision.kernel.name} ({decision.kernel_reason})"
        + (f"  precision {where} ({decision.precision_reason})" if plan.device != "cpu" else "")
        + (f"  transport {plan.transport} ({decision.transport_reason})" if plan.staged else "")
        + (f"  grid {plan.grid_layout.grid} of nodes" if plan.grid_layout else "")
    ]
    lines += [f"  {describe(placement, plan.shares[placement.rank].rows)}" for placement in decision.placements]
    return "\n".join(lines)


def arithmetic_line(computed: Computed) -> str:
    """The share of C computed in each arithmetic, with its proved error bound."""
    whole = sum(elements for elements, _ in computed.values())
    parts = []
    for arithmetic, (elements, error) in sorted(computed.items(), key=lambda entry: -entry[1][0]):
        parts.append(f"{100 * elements / whole:.3g} % {arithmetic.name}")
        if error:  # else native, or exact, as the name says
            parts[-1] += f" ({'proved' if arithmetic.scaled else 'rounded once'}: error ≤ {rounded_up(error)}·|A||B|)"
    return f"arithmetic: {', '.join(parts)}"


def plans_of(outcome: Outcome) -> Plans:
    """The plans of everything that this run has computed."""
    return outcome.parts.plans if outcome.parts else [outcome.decision.plan]


def parts_line(parts: Parts, shape: tuple[int, int], name: str) -> str:
    """A line about the parts of a C of this shape, before they are computed. `name`: the source that says which parts exist."""
    left, slabs = parts.count - parts.there, -(-shape[1] // max(1, parts.columns))
    size = counted(parts.rows, "row") + (f" and {counted(parts.columns, 'column')}" if slabs > 1 else "")
    told = [
        f"{parts.there} of {counted(parts.count, 'part')} are there, by {name}" if parts.there else "",
        f"{counted(left, 'part')} of {size} {'is' if left == 1 else 'are'} computed" if left else "",
        f"B is read once, in {slabs} slabs of columns, and A once for each" if left and slabs > 1 else "",
    ]
    return f"  resume: {'; '.join(filter(None, told)) or 'C has no elements'}"


def describe(placement: RankPlacement, rows: Span) -> str:
    """A line about one rank: host, cores, threads, GPU, rows."""
    threads, gpu = placement.threads, placement.gpu
    line = f"rank {placement.rank}  {placement.host}  cores {ranges(placement.cores)}  "
    line += f"{counted(threads.count, 'thread')} ({threads.reason})"
    if gpu:
        shared = ", ".join(map(str, placement.shares_gpu_with))
        line += f"  {gpu.name} {gpu.uuid}" + (f" shared with rank {shared}" if shared else "")
    return f"{line}  rows {rows}"


def wall_line(parts: dict[str, float]) -> str:
    """A line with the command's time so far, and its parts in the order in which they began, except parts of 0.00 s."""
    shown = [f"{part} {seconds:.2f}" for part, seconds in parts.items() if seconds >= 0.005]
    return f"wall {sum(parts.values()):.2f} s: {', '.join(shown)}"


def last_line(plans: Plans, total: Spread, check: Check | None) -> str:
    """`total <seconds> s  rate <number> MF/s|GF/s|TF/s  check ok|FAILED|off …`: scripts rely on this form."""
    speed = rate_in_units(operations(plans) / total.median if total.median else 0.0, "F")
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
    """The top left of a matrix of this shape below its name, as the lecture's programs print it: each element with six decimals
    (an integer with none) and a space; an empty line at the end."""
    rows, columns = len(corner), len(corner[0]) if len(corner) else shape[1]
    part = "" if (rows, columns) == shape else f", its top left {rows}×{columns}"
    lines = ("".join(f"{_shown(value)} " for value in row) + "\n" for row in corner)
    return f"{label} ({shape[0]}×{shape[1]}){part}\n{''.join(lines)}\n"


def _shown(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return f"{int(value)}" if isinstance(value, int) else f"{value:f}"


def as_record(outcome: Outcome, options: dict[str, Any], settings: dict[str, Any], wall: dict[str, float]) -> dict[str, Any]:
    """A run's record for `--json`. `options`: more entries; `wall`: the seconds of each part of the wall time."""
    plan, decision, check = outcome.decision.plan, outcome.decision, outcome.check
    problem, resume = plan.problem, {}
    if parts := outcome.parts:
        done = {"parts_there": parts.there, "parts_computed": len(parts.plans)}
        left = {"parts_missing": parts.count - sum(done.values())}
        resume = {"resume": {"part_rows": parts.rows, "part_columns": parts.columns, **done, **left}}
    return {
        "command": "matmul",
        **{name: getattr(problem, name) for name in ("n", "l", "m", "dtype")},
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
        **resume,
        "settings": settings,
        "placements": [
            {**placement_record(placement), "rows": str(plan.shares[placement.rank].rows)} for placement in decision.placements
        ],
    }


def placement_record(placement: RankPlacement) -> dict[str, Any]:
    """Where a rank runs, for a JSON line."""
    gpu = placement.gpu
    of_gpu = {"gpu": gpu.name if gpu else None, "uuid": gpu.uuid if gpu else None}
    of_cpu = {"cores": ranges(placement.cores), "threads": placement.threads.count}
    return {"rank": placement.rank, "host": placement.host, **of_cpu, **of_gpu}
