# SPDX-License-Identifier: MIT
"""A and B of python -m hybrid.matmul: generated from the seed or read from files, of the type that --dtype or the files have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hybrid.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from hybrid.runs.operands import FileElements, TypedProduct

_PARTS = {"complex64": "float32", "complex128": "float64"}


def product_asked_for(options: argparse.Namespace, ranks_of_node: int = 1, *, load: bool = False) -> TypedProduct:
    """The product that the options ask for. UsageError where files do not fit the sizes, or the operands' types each other.

    `ranks_of_node`: how many ranks will read the files. `load`: read now what can only be read as a whole.
    """
    import numpy as np

    from hybrid.runs.operands import FileElements, GeneratedElements, TypedProduct

    files: dict[str, FileElements] = {}
    for key, path in (("A", options.a), ("B", options.b)):
        if path:
            files[key] = FileElements(path, ranks_of_node)
    n, l, m = options.sizes or (*files["A"].shape, files["B"].shape[1])
    shapes = {"A": (n, l), "B": (l, m)}
    for key, file in files.items():
        if file.shape != shapes[key]:
            raise UsageError(
                f"{file.path} is {file.shape[0]}×{file.shape[1]}, but {key} must be {shapes[key][0]}×{shapes[key][1]}",
                code="shapes",
            )
    asked = options.dtype or ""
    for file in files.values():
        file.become(_type_of(file, asked))
    if load:
        for file in files.values():
            file.load()
    made = _named(asked) if asked else next((file.dtype for file in files.values()), np.dtype(np.float64))
    a, b = (
        files[key] if key in files else GeneratedElements(shapes[key], options.fill, options.seed, key, made)
        for key in ("A", "B")
    )
    return TypedProduct.of(a, b, asked)


def _type_of(file: FileElements, asked: str) -> np.dtype:
    """The type in which a file's elements are multiplied. Real numbers stay real, also where the product is complex."""
    if file.held.kind == "V" and asked != "bfloat16":
        raise UsageError(f"{file.path} holds 16-bit numbers without a name: bfloat16 is read with --dtype bfloat16", code="dtype")
    if not asked:
        return file.held
    return _named(_PARTS.get(asked, asked) if file.held.kind != "c" else asked)


def _named(name: str) -> np.dtype:
    from hybrid.arrays.gemm import numpy_type

    return numpy_type(name)
