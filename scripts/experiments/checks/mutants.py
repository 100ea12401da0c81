# SPDX-License-Identifier: MIT
"""Do the tests find planted faults?

A mutant is a small fault: a text of a file, replaced by another. Those of the catalogue (tests/mutants) are planted one by one in
copies of the checkout, where the tests that should find it run until one fails.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from experiments.common import frame
from experiments.start import ROOT
from hybrid.core.text import aligned
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

LIMIT = 900  # seconds of one start of pytest: what takes longer hangs
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_ALL_PASSED = re.compile(r"^\d+ passed[^\n]* in [\d.]+s", re.MULTILINE)
_PASSED, _USAGE, _NO_TESTS = 0, 4, 5


@dataclass(frozen=True)
class Mutant:
    """`tests`: pytest's arguments for the tests that should find it. `survives`: why no test can or should find it. `ranks`:
    numbers of ranks for the tests marked mpi."""

    file: str
    old: str
    new: str
    what: str
    tests: str
    survives: str = ""
    ranks: tuple[int, ...] = (2, 4)

    @property
    def key(self) -> str:
        """Identifies the mutant, whatever `what`, `survives` and `ranks` say."""
        return hashlib.sha256(repr((self.file, self.old, self.new, self.tests)).encode()).hexdigest()[:12]

    @property
    def room(self) -> str:
        """The package below hybrid, or the folder of another file."""
        parts = Path(self.file).parts
        return parts[1] if parts[0] == "hybrid" and len(parts) > 2 else parts[0]


def catalogue(folder: Path, only: str = "*") -> list[Mutant]:
    """All mutants, or those whose file of the catalogue, room, changed file or key matches."""
    mutants = {}
    for path in sorted(folder.glob("*.jsonl")):
        for given in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            mutant = Mutant(**{**given, "ranks": tuple(given.get("ranks", Mutant.ranks))})
            if any(fnmatch(name, only) for name in (path.name, path.stem, mutant.room, mutant.file, mutant.key)):
                mutants[mutant.key] = mutant
    return list(mutants.values())


class Tree:
    """A copy of all files that git tracks or would add. Tests there import `hybrid` from the copy."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(git, cwd=root, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        (root / ".test_cache").mkdir(exist_ok=True)
        (folder / ".test_cache").symlink_to(root / ".test_cache")  # compiled kernels, named after what they are made from
        paths = os.pathsep.join(str(folder / name) for name in ("", "scripts", "tests"))
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYBRID_"))}
        self._environment = {**outside, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}

    def tried(self, mutant: Mutant) -> tuple[str, str]:
        """The verdict, and the test that found the mutant."""
        path, verdict = self.folder / mutant.file, "no tests"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before.count(mutant.old) != 1:
            return "not applicable", ""
        try:
            path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
            for ranks in (0, *mutant.ranks):
                found, by = self._tested(shlex.split(mutant.tests), ranks)
                if found == "found":
                    return found, f"{ranks} ranks: {by}" if ranks else by
                verdict = "survived" if found == "passed" else verdict
        finally:
            path.write_text(before, encoding="utf-8")
        return verdict, ""

    def _tested(self, arguments: Sequence[str], ranks: int) -> tuple[str, str]:
        """Run pytest to the first failure: "passed", "found" or "no tests"; and the test that failed."""
        how = ["--with-mpi", "-m", "mpi"] if ranks else ["-m", "not mpi"]
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "--color=no", *how, *arguments]
        code, out, err = frame.ended([*(mpirun(ranks) if ranks else ()), *words], LIMIT, cwd=self.folder, env=self._environment)
        output = out + err
        failed = _FAILED.search(output)
        if code == _PASSED or (not failed and _ALL_PASSED.search(output)):  # others may leave files behind meanwhile
            return "passed", ""
        if code == _NO_TESTS or (code == _USAGE and not failed and "not found: " in output):
            return "no tests", ""
        return "found", failed[1] if failed else "took too long" if code is None else output.strip().rpartition("\n")[2][:200]


_MISSED = ("survived", "no tests")


def plant(root: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[dict[str, Any]]:
    """Plant these mutants one by one in copies of a checkout; yields a line for each."""
    trees: SimpleQueue[Tree] = SimpleQueue()

    def tried(mutant: Mutant) -> dict[str, Any]:
        tree = trees.get()
        try:
            verdict, by = tree.tried(mutant)
        finally:
            trees.put(tree)
        return {"key": mutant.key, "file": mutant.file, "what": mutant.what, "verdict": verdict, "by": by}

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(min(jobs, len(mutants))):
            trees.put(Tree(root, Path(folder, str(number))))
        yield from pool.map(tried, mutants)


def table(mutants: Iterable[Mutant], results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How many mutants were found in each room, and each one that was not."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    missed = []
    for mutant in mutants:
        verdict = results[mutant.key]["verdict"]
        counts[mutant.room][verdict] += 1
        if verdict in _MISSED:
            missed.append(f"{verdict}: {mutant.file}: {mutant.what} [{mutant.key}]: {mutant.survives or 'NO REASON'}")
    total: Counter[str] = sum(counts.values(), Counter())
    rows = [("room", "found of planted", "", "")]
    for room, of_room in [*sorted(counts.items()), ("all", total)]:
        planted = of_room["found"] + of_room["survived"] + of_room["no tests"]
        share = f"{100 * of_room['found'] / planted:.0f} %" if planted else ""
        others = f"{of_room['not applicable']} not applicable" if of_room["not applicable"] else ""
        rows.append((room, f"{of_room['found']} of {planted}", share, others))
    yield from aligned(rows, "lrrl")
    yield from missed


def kept(path: str, commit: str) -> dict[str, dict[str, Any]]:
    """The results in this file for the commit, by the mutants' keys."""
    lines = jsonl.read(path) if path and Path(path).exists() else ()
    return {line["key"]: line for line in lines if line.get("commit") == commit}


def work(options: argparse.Namespace) -> int:
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    mutants, found = catalogue(ROOT / "tests" / "mutants", options.only), kept(options.json, commit)
    for result in plant(ROOT, [each for each in mutants if each.key not in found], options.jobs):
        found[result["key"]] = result
        print(f"{result['verdict']:<14} {result['file']}: {result['what']}  {result['by']}", flush=True)
        if options.json:
            jsonl.write({"command": "mutants", "commit": commit, **result}, options.json)
    print(*table(mutants, found), sep="\n")
    return int(any(found[each.key]["verdict"] in _MISSED and not each.survives for each in mutants))


def main() -> int:
    parser = frame.parser_of(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="plant the mutants of the catalogue; ends with 1 if one survives without a reason")
    run.add_argument("--only", default="*", metavar="GLOB", help="of a file of the catalogue, a room, a changed file or a key")
    run.add_argument("--jobs", type=frame.positive, default=os.cpu_count() or 1, help="mutants at a time (cores)")
    run.add_argument("--json", metavar="FILE", help="append each result, without planting those that it has of this commit")
    return frame.command(parser, work)
