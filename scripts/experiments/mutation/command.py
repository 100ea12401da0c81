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
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from experiments.common import frame
from experiments.start import ROOT
from hybrid.reporting import jsonl

LIMIT = 900  # seconds of one start of pytest: what takes longer hangs
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_ALL_PASSED = re.compile(r"^\d+ passed[^\n]* in [\d.]+s", re.MULTILINE)
_PASSED, _USAGE, _NO_TESTS = 0, 4, 5


@dataclass(frozen=True)
class Mutant:
    """`tests`: pytest's arguments for the tests that should find it; "" for those that cover its lines. `survives`: why no test
    can find it, or none should. `ranks`: on which the tests marked mpi run."""

    file: str
    old: str
    new: str
    what: str
    tests: str = ""
    survives: str = ""
    ranks: tuple[int, ...] = (2, 4)

    @property
    def key(self) -> str:
        """The same as long as nothing of it changes but the reason why it survives."""
        return hashlib.sha256(repr((self.file, self.old, self.new, self.tests)).encode()).hexdigest()[:12]

    @property
    def room(self) -> str:
        """The package below hybrid, or the folder of another file."""
        parts = Path(self.file).parts
        return parts[1] if parts[0] == "hybrid" and len(parts) > 2 else parts[0]

    def planted(self, text: str) -> str | None:
        """The file's text with the fault; None where the text that it changes is not there once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None

    def line(self, text: str) -> int:
        """The number of the first line that it changes."""
        same = next((at for at, (old, new) in enumerate(zip(self.old, self.new, strict=False)) if old != new), 0)
        return text.count("\n", 0, text.index(self.old) + same) + 1


def catalogue(folder: Path, only: str = "*") -> list[Mutant]:
    """Those of all files, or of the files and rooms that match."""
    mutants = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                given = json.loads(line)
                mutant = Mutant(**{**given, "ranks": tuple(given.get("ranks", Mutant.ranks))})
            except (TypeError, ValueError) as wrong:
                raise LookupError(f"{path.name}, line {number}: {wrong}") from None
            if any(fnmatch(name, only) for name in (path.name, path.stem, mutant.room, mutant.file, mutant.key)):
                mutants.append(mutant)
    return list({mutant.key: mutant for mutant in mutants}.values())


class Tree:
    """A copy of all files that git knows or would add. What is imported there as `hybrid` is the copy."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(git, cwd=root, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (root / "tests").is_dir():
            (root / ".test_cache").mkdir(exist_ok=True)
            (folder / ".test_cache").symlink_to(root / ".test_cache")  # compiled kernels, named after what they are made from
        self.paths = os.pathsep.join(str(folder / name) for name in ("", "scripts", "tests"))
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYBRID_"))}
        self._environment = {**outside, "PYTHONPATH": self.paths, "PYTHONDONTWRITEBYTECODE": "1"}

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """A context in which the file has another text."""
        path = self.folder / file
        before = path.read_bytes()
        try:
            path.write_text(text, encoding="utf-8")
            yield
        finally:
            path.write_bytes(before)

    def tested(self, arguments: Sequence[str], ranks: int = 0, **environment: str) -> tuple[str, str]:
        """What pytest finds, to the first failure: "passed", "found" or "no tests"; and the test that failed."""
        how = ["--with-mpi", "-m", "mpi"] if ranks else ["-m", "not mpi"]
        from hybrid.testing import mpirun

        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "--color=no", *how, *arguments]
        code, output = self.run([*(mpirun(ranks) if ranks else []), *command], **environment)
        failed = _FAILED.search(output)
        if code == _PASSED or (not failed and _ALL_PASSED.search(output)):  # others may leave files behind meanwhile
            return "passed", ""
        if code == _NO_TESTS or (code == _USAGE and not failed and "not found: " in output):
            return "no tests", ""
        return "found", failed[1] if failed else "took too long" if code is None else output.strip().rpartition("\n")[2][:200]

    def run(self, command: Sequence[str], **environment: str) -> tuple[int | None, str]:
        """Run a command in the copy; its exit code, None after LIMIT seconds, and what it printed."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment | environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):  # what a mutant may have left running
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read()


_NEAR = 8  # lines: a statement of several lines is recorded at its first
_LEAVE = re.compile(r'^def leave\(\).*?:\n(    """.*?"""\n)', re.MULTILINE | re.DOTALL)  # ends a process by C's exit


def record(root: Path, where: Path, arguments: Sequence[str], ranks: Sequence[int] = (0, 2, 4)) -> None:
    """Run the tests in a copy of the checkout, and write what each runs to `where`."""
    with tempfile.TemporaryDirectory() as made:
        folder, tree = Path(made, "recorded"), Tree(root, Path(made, "tree"))
        folder.mkdir()
        shutil.copy(Path(__file__).with_name("recorder.py"), folder / "recorder.py")
        (folder / "sitecustomize.py").write_text("import recorder\n\nrecorder.start()\n")
        world = tree.folder / "hybrid/ranks/team.py"
        if world.exists():
            text = world.read_text(encoding="utf-8")
            world.write_text(_LEAVE.sub(lambda found: f"{found[0]}    __import__('recorder').save()\n", text), encoding="utf-8")
        for count in ranks:
            tree.tested(
                ["--maxfail=1000", "-p", "recorder", *arguments],
                count,
                PYTHONPATH=f"{folder}:{tree.paths}",
                MUTANTS_RECORD=str(folder),
                MUTANTS_TREE=str(tree.folder),
                MUTANTS_RANKS=str(count),
            )
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(_read(folder, tree.folder)), encoding="utf-8")


def _read(folder: Path, tree: Path) -> dict[str, Any]:
    import coverage

    failed = {line for path in folder.glob("failed-*") for line in path.read_text().splitlines()}
    took = [json.loads(line) for path in folder.glob("times-*") for line in path.read_text().splitlines()]
    tests = {test: seconds for test, seconds in took if test not in failed}  # what fails by itself finds nothing
    numbers = {test: number for number, test in enumerate(tests)}
    combined = coverage.Coverage(data_file=str(folder / "data"), config_file=False, messages=False)
    combined.combine([str(folder)])
    data, lines = combined.get_data(), {}
    for path in data.measured_files():
        lines[str(Path(path).relative_to(tree))] = {
            line: sorted({numbers[test] for test in map(_test_of, contexts) if test in numbers})
            for line, contexts in data.contexts_by_lineno(path).items()
        }
    return {"tests": list(tests.items()), "lines": lines}


def _test_of(context: str) -> str:
    """Ranks and test: of a process that a test has started, or of pytest's own."""
    started, _, own = context.partition("|")
    return started if own == "" or not started.endswith(" ") else started + own


class Covering:
    """What `record` has written."""

    def __init__(self, where: Path) -> None:
        recorded = json.loads(where.read_text(encoding="utf-8"))
        self._tests: list[tuple[str, float]] = recorded["tests"]
        self._lines: dict[str, dict[str, list[int]]] = recorded["lines"]

    def tests(self, file: str, line: int, seconds: float) -> list[tuple[int, list[str]]]:
        """Tests that run this line, or else this file: the soonest done first, by ranks, and as many as take so many seconds."""
        lines = self._lines.get(file, {})
        found = next((lines[key] for near in range(_NEAR) if lines.get(key := str(line - near))), [])
        if not found:
            found = sorted({number for numbers in lines.values() for number in numbers})
        by_ranks: dict[int, list[str]] = defaultdict(list)
        for number in sorted(found, key=lambda number: self._tests[number][1]):
            ranks, _, test = self._tests[number][0].partition(" ")
            seconds -= self._tests[number][1]
            if seconds < 0 and by_ranks:
                break
            by_ranks[int(ranks)].append(test)
        return sorted(by_ranks.items())


ENOUGH = 300.0  # seconds of tests that run a mutant's line, as they took by themselves
_MISSED = ("survived", "no tests")


def plant(root: Path, covered: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[dict[str, Any]]:
    """Plant these mutants in copies of a checkout; a line for each. `covered`: which tests run which lines, recorded where it is
    not there and a mutant names no tests."""
    if any(not mutant.tests for mutant in mutants) and not covered.exists():
        record(root, covered, ["tests/contract", "tests/unit"])
    covering = Covering(covered) if covered.exists() else None
    trees: SimpleQueue[Tree] = SimpleQueue()

    def planted(mutant: Mutant) -> dict[str, Any]:
        tree = trees.get()
        try:
            verdict, by = _tried(mutant, tree, covering)
        finally:
            trees.put(tree)
        return {"key": mutant.key, "file": mutant.file, "what": mutant.what, "verdict": verdict, "by": by}

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(min(jobs, len(mutants))):
            trees.put(Tree(root, Path(folder, str(number))))
        yield from pool.map(planted, mutants)


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
    mutants = catalogue(ROOT / "tests" / "mutants", options.only)
    covered = ROOT / ".test_cache" / "mutants-covered.json"
    if options.cover:
        covered.unlink(missing_ok=True)
    found = {}
    for result in plant(ROOT, covered, mutants, options.jobs):
        found[result["key"]] = result
        print(f"{result['verdict']:<14} {result['file']}: {result['what']}  {result['by']}", flush=True)
        if options.json:
            jsonl.write({"command": "mutants", **result}, options.json)
    print(*table(mutants, found), sep="\n")
    lives = [each for each in mutants if found[each.key]["verdict"] in _MISSED and not each.survives]
    return int(bool(lives))


def main() -> int:
    parser = frame.parser_of(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="plant the mutants of the catalogue; ends with 1 if one survives without a reason")
    run.add_argument("--only", default="*", metavar="GLOB", help="of a file of the catalogue, a room, a changed file or a key")
    run.add_argument("--jobs", type=frame.positive, default=os.cpu_count() or 1, help="mutants at a time (cores)")
    run.add_argument("--json", metavar="FILE", help="append a line for each result")
    run.add_argument("--cover", action="store_true", help="record again which tests run which lines")
    return frame.command(parser, work)
