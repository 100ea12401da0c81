# SPDX-License-Identifier: MIT
"""Which tests run which lines of the package: recorded once by running all of them."""

import json
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.mutation.trees import Tree

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
