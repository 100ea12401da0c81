# SPDX-License-Identifier: MIT
"""Evaluates arithmetic of whole numbers and names, as C writes it: (m + 15) / 16."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from hybrid.errors import UsageError

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of positive numbers
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


_SIZE_OF, _BYTES = re.compile(r"sizeof\s*\(\s*(float|double|int)\s*\)"), {"float": 4, "double": 8, "int": 4}


def evaluated(text: str, names: Mapping[str, int]) -> int:
    """The value. UsageError for anything but sums, differences, products, quotients and remainders of numbers and these names."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise UsageError(f"{text!r} is no arithmetic of whole numbers and {', '.join(names)}", code="lab-launch")

    text = _SIZE_OF.sub(lambda found: str(_BYTES[found[1]]), text)
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError):
        raise UsageError(f"{text!r} is no arithmetic of whole numbers and {', '.join(names)}", code="lab-launch") from None


def evaluated_or_0(text: str, names: Mapping[str, int]) -> int:
    """The value, or 0 where `evaluated` raises UsageError."""
    try:
        return evaluated(text, names)
    except UsageError:
        return 0
