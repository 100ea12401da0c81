# SPDX-License-Identifier: MIT
"""The result of an acceptance test as one HTML page. Every text is escaped, nothing is fetched, no script runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from hybrid.core.text import counted
from hybrid.reporting.html_page import document


def page(record: Mapping[str, Any], date: str) -> str:
    """The page's text. `record`: the one that `--json` writes."""
    ranks, devices = record["ranks"], record["device"]
    done = (
        f"Level {record['level']}, {counted(record['products'], 'product')} by {counted(ranks, 'rank')} ({devices}), "
        f"{counted(record['rotations'], 'whole rotation')}, {record['seconds']:.0f} s, {date}."
    )
    body = [
        f"<h1>Acceptance test: {_verdict(record['ok'])}</h1>",
        f"<p>{escape(done)}</p>",
        "<h2>Findings</h2>",
        *_findings(record["findings"]),
        *(line for rank in range(ranks) for line in _rank(record, rank)),
    ]
    return document("hybrid.accept", body)


def _verdict(ok: bool) -> str:
    return "accepted" if ok else '<span class="wrong">not accepted</span>'


def _findings(findings: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield "<ul>"
    for finding in findings:
        remedy = f" → {finding['remedy']}" if finding["remedy"] else ""
        kind = "wrong" if finding["verdict"] == "wrong" else "soft"
        text = escape(f"{finding['subject']}: {finding['text']}{remedy}")
        yield f'<li><span class="{kind}">{escape(finding["verdict"])}</span> {text}</li>'
    yield "</ul>"


def _rank(record: Mapping[str, Any], rank: int) -> Iterator[str]:
    placement, watched = record["placements"][rank], record["watched"][rank]
    wrong = sum(each["rank"] == rank for each in record["wrong"])
    where = [f"cores {placement['cores']}", counted(placement["threads"], "thread")]
    if placement["gpu"]:
        where.append(f"{placement['gpu']} {placement['uuid']}")
    yield f"<h2>Rank {rank} on {escape(placement['host'])}</h2>"
    yield f'<p class="soft">{escape(", ".join(where))}</p>'
    if wrong:
        yield f'<p class="wrong">{counted(wrong, "wrong product")}</p>'
    yield "<table>\n<thead><tr><th>multiply</th><th class='number'>median s</th><th class='number'>all ranks</th></tr></thead>"
    yield "<tbody>"
    for case in record["multiply"]:
        medians = sorted(spread["median"] for spread in case["ranks"])
        name = f"{case['dtype']} {case['rows']}×{case['l']}×{case['m']}"
        cells = f'<td class="number">{case["ranks"][rank]["median"]:.5f}</td>'
        cells += f'<td class="number">{medians[0]:.5f} to {medians[-1]:.5f}</td>'
        yield f"<tr><td>{escape(name)}</td>{cells}</tr>"
    for name, value in (watched or {}).items():
        if value not in (None, "", []):
            yield f'<tr><td>GPU: {escape(name)}</td><td colspan="2" class="number">{escape(str(value))}</td></tr>'
    yield "</tbody></table>"
