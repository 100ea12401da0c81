# SPDX-License-Identifier: MIT
"""Do the tests find planted faults?

A mutant is a small fault: a text of a file, replaced by another. Those of the catalogue (tests/mutants) are planted one by one in
copies of the checkout, where the tests that should find it run until one fails.
"""

import argparse
import json
import os
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from experiments.common import cli
from experiments.mutation import catalogue as mutants_of
from experiments.mutation.catalogue import DRAWN, Mutant, catalogue
from experiments.mutation.covering import Covering, record
from experiments.mutation.trees import Tree
from experiments.start import ROOT

ENOUGH = 300.0  # seconds of tests that run a mutant's line, as they took by themselves
_MISSED = ("survived", "no tests")


class Runs:
    """The runs of some mutants in the tests of a checkout."""

    def __init__(self, root: Path, covered: Path, told: Path | None) -> None:
        self._root, self._covered, self._told, self._lock = root, covered, told, Lock()

    def done(self, mutants: Iterable[Mutant]) -> dict[str, dict[str, Any]]:
        """What is known of these mutants from runs before, by their keys."""
        lines = self._told.read_text(encoding="utf-8").splitlines() if self._told and self._told.exists() else []
        known = {line["key"]: line for line in map(json.loads, lines)}
        return {mutant.key: known[mutant.key] for mutant in mutants if mutant.key in known}

    def run(self, mutants: Sequence[Mutant], jobs: int) -> Iterator[dict[str, Any]]:
        """Plant those that are not done; each result is written as soon as it is there."""
        known = self.done(mutants)
        todo = [mutant for mutant in mutants if mutant.key not in known]
        if any(not mutant.tests for mutant in todo) and not self._covered.exists():
            record(self._root, self._covered, ["tests/contract", "tests/unit"])
        covering = Covering(self._covered) if self._covered.exists() else None
        trees: SimpleQueue[Tree] = SimpleQueue()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
            for number in range(min(jobs, len(todo))):
                trees.put(Tree(self._root, Path(folder, str(number))))
            yield from pool.map(lambda mutant: self._planted(mutant, trees, covering), todo)

    def _planted(self, mutant: Mutant, trees: "SimpleQueue[Tree]", covering: Covering | None) -> dict[str, Any]:
        tree = trees.get()
        try:
            verdict, by = _tried(mutant, tree, covering)
        finally:
            trees.put(tree)
        result = {"key": mutant.key, "file": mutant.file, "what": mutant.what, "verdict": verdict, "by": by}
        if self._told:
            with self._lock, self._told.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
        return result


def _tried(mutant: Mutant, tree: Tree, covering: Covering | None) -> tuple[str, str]:
    """The verdict, and the test that has found it."""
    path = tree.folder / mutant.file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    planted = mutant.planted(text)
    if planted is None:
        return "not applicable", ""
    if mutant.tests:
        runs = [(ranks, shlex.split(mutant.tests)) for ranks in (0, *mutant.ranks)]
    else:
        runs = covering.tests(mutant.file, mutant.line(text), ENOUGH) if covering else []
    found = "no tests"
    with tree.changed(mutant.file, planted):
        for ranks, arguments in runs:
            verdict, by = tree.tested(arguments, ranks)
            if verdict == "found":
                return verdict, f"{ranks} ranks: {by}" if ranks else by
            found = "survived" if verdict == "passed" else found
    return found, ""


def table(mutants: Iterable[Mutant], results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How many were found in each room, and those that were not."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    missed = []
    for mutant in mutants:
        verdict = results[mutant.key]["verdict"] if mutant.key in results else "not run"
        counts[mutant.room][verdict] += 1
        if verdict in _MISSED:
            missed.append(f"{verdict}: {mutant.file}: {mutant.what} [{mutant.key}]: {mutant.survives or 'NO REASON'}")
    total: Counter[str] = sum(counts.values(), Counter())
    yield f"{'room':<16} found of planted"
    for room, of_room in [*sorted(counts.items()), ("all", total)]:
        planted = of_room["found"] + of_room["survived"] + of_room["no tests"]
        share = f"{100 * of_room['found'] / planted:4.0f} %" if planted else ""
        others = ", ".join(f"{of_room[each]} {each}" for each in ("not applicable", "not run") if of_room[each])
        yield f"{room:<16} {of_room['found']:>5} of {planted:<5} {share}  {others}".rstrip()
    yield from missed


def work(options: argparse.Namespace) -> int:
    folder = ROOT / "tests" / "mutants"
    if options.what == "draw":
        drawn = list(mutants_of.draw(ROOT, options.count, options.seed))
        mutants_of.write(folder / DRAWN, drawn)
        print(f"{len(drawn)} mutants in {folder / DRAWN}")
        return 0
    mutants = catalogue(folder, options.only)
    covered = ROOT / ".test_cache" / "mutants-covered.json"
    if options.cover:
        covered.unlink(missing_ok=True)
    runs = Runs(ROOT, covered, Path(options.json) if options.json else None)
    results = runs.done(mutants)
    if not options.table:
        for result in runs.run(mutants, options.jobs):
            results[result["key"]] = result
            print(f"{result['verdict']:<14} {result['file']}: {result['what']}  {result['by']}", flush=True)
    print(*table(mutants, results), sep="\n")
    lives = [
        each for each in mutants if results.get(each.key, {}).get("verdict") in ("survived", "no tests") and not each.survives
    ]
    return int(bool(lives))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="plant the mutants of the catalogue; ends with 1 if one survives without a reason")
    run.add_argument("--only", default="*", metavar="GLOB", help="of a file of the catalogue, a room, a changed file or a key")
    run.add_argument("--jobs", type=cli.at_least_1, default=os.cpu_count() or 1, help="mutants at a time (cores)")
    run.add_argument("--json", metavar="FILE", help="add a line for each result; those that are there are not run again")
    run.add_argument("--table", action="store_true", help="only show what is in the file")
    run.add_argument("--cover", action="store_true", help="record again which tests run which lines")
    draw = commands.add_parser("draw", help="draw mutants of the package at random, by Cosmic Ray (extra mutants)")
    draw.add_argument("--count", type=cli.at_least_1, default=160)
    draw.add_argument("--seed", type=int, default=39)
    return cli.command(parser, work, arguments)
