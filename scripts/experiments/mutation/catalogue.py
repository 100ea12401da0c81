# SPDX-License-Identifier: MIT
"""The catalogue of mutants: small faults, each planted by replacing a text that stands once in a file."""

import ast
import difflib
import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

DRAWN = "drawn.jsonl"
_LEFT_OUT = ("hybrid/classroom/exercises/", "hybrid/testing/")  # no code of the product
_NEEDS_NAMES = ("core/VariableInserter", "core/VariableReplacer")  # operators that are told which variables


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


def draw(root: Path, count: int, seed: int) -> Iterator[Mutant]:
    """Mutants of Cosmic Ray's operators at places drawn from all of the package, each place with one operator drawn from those
    that fit it."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name)() for name in sorted(operator_names()) if name not in _NEEDS_NAMES}
    places: dict[tuple[str, int, int], list[tuple[str, int]]] = defaultdict(list)
    for path in sorted((root / "hybrid").rglob("*.py")):
        file = str(path.relative_to(root))
        if file.startswith(_LEFT_OUT):
            continue
        source = path.read_text(encoding="utf-8")
        nodes, unread = list(ast_nodes(get_ast(source))), set(_lines_never_run(source))
        for name, operator in operators.items():
            positions = [position for node in nodes for position in operator.mutation_positions(node)]
            for occurrence, ((line, column), _) in enumerate(positions):
                if line not in unread:
                    places[file, line, column].append((name, occurrence))
    random_ = random.Random(seed)  # noqa: S311 (nothing is kept secret)
    chosen = random_.sample(sorted(places), len(places))
    while count and chosen:
        place = file, line, _ = chosen.pop()
        name, occurrence = random_.choice(places[place])
        source = (root / file).read_text(encoding="utf-8")
        mutated = mutate_code(source, operators[name], occurrence)
        if mutated and _differs(mutated, source):
            count -= 1
            yield Mutant(file, *_difference(source, mutated), f"{name.removeprefix('core/')}, line {line}")


def _differs(mutated: str, source: str) -> bool:
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:  # a * that is no product
        return False


def _lines_never_run(source: str) -> Iterator[int]:
    """The lines of annotations, and of what is imported for them alone."""
    for node in ast.walk(ast.parse(source)):
        annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            annotations.append(node)
        for each in filter(None, annotations):
            yield from range(each.lineno, (each.end_lineno or each.lineno) + 1)


def _difference(source: str, mutated: str) -> tuple[str, str]:
    """The lines that differ, with as many around them as make the old ones stand once in the source."""
    old, new = source.splitlines(keepends=True), mutated.splitlines(keepends=True)
    changes = [each for each in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if each[0] != "equal"]
    (_, first, _, new_first, _), (_, _, last, _, new_last) = changes[0], changes[-1]
    while source.count("".join(old[first:last])) != 1:
        back, on = min(first, 1), min(len(old) - last, 1)
        first, new_first, last, new_last = first - back, new_first - back, last + on, new_last + on
    return "".join(old[first:last]), "".join(new[new_first:new_last])


def write(path: Path, mutants: Iterable[Mutant]) -> None:
    """One JSON object a line, without what goes without saying."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for mutant in mutants:
            line = {name: value for name, value in vars(mutant).items() if value != getattr(Mutant, name, None)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
