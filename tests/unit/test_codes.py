# SPDX-License-Identifier: MIT
"""Every failure and finding has a code: one list, hybrid.errors.CODES, which docs/failures.md shows and the package uses up."""

import ast
import re
from pathlib import Path

import pytest

from hybrid.errors import CODES, CheckFailed, HybridError, StartError, UsageError

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.+?) \| *(.*?) *\|$", re.MULTILINE)


def literals(path: Path) -> list[tuple[bool, str]]:
    """The texts in a module, and whether each of them is given as a code: by keyword, or as a variable or attribute `code`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword | ast.Assign | ast.AnnAssign) and node.value is not None:
            names = [node.arg] if isinstance(node, ast.keyword) else [getattr(each, "id", "") for each in _targets(node)]
            if "code" in names:
                found += [(True, each) for each in _strings(node.value)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((False, node.value))
    return found


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _strings(value: ast.expr) -> list[str]:
    """The texts that this expression may be: of a choice both, not what it asks."""
    if isinstance(value, ast.IfExp):
        return _strings(value.body) + _strings(value.orelse)
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []


def test_the_page_has_the_codes_and_meanings_of_the_package():
    rows = _ROW.findall((ROOT / "docs" / "failures.md").read_text(encoding="utf-8"))
    assert [name for name, *_ in rows] == list(CODES)
    assert {name: meaning for name, meaning, _ in rows} == CODES


def test_each_code_is_short_and_in_kebab_case():
    assert not [code for code in CODES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,2}", code)]


def test_each_code_given_is_known_and_each_known_one_given():
    package = [each for path in sorted((ROOT / "hybrid").rglob("*.py")) for each in literals(path)]
    given, texts = {text for is_code, text in package if is_code and text}, [text for _, text in package]
    assert given - set(CODES) == set()
    assert {code for code in CODES if texts.count(code) < 2} == set()  # once as the key of CODES


def test_a_code_that_is_not_listed_is_refused():
    with pytest.raises(AssertionError):
        HybridError("anything", code="invented")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("text"), "usage"),
        (UsageError("text", code="shapes"), "shapes"),
        (CheckFailed("text"), "check-product"),
        (StartError("what", "remedy", code="mpi-missing"), "mpi-missing"),
    ],
)
def test_an_error_has_its_code_or_that_of_its_class(error, code):
    assert (error.code, str(error)) == (code, "what; remedy" if isinstance(error, StartError) else "text")
