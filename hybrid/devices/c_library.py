# SPDX-License-Identifier: MIT
"""Functions and structures of our C libraries, declared to ctypes as C declares them."""

from __future__ import annotations

import ctypes
from typing import Any

_TYPES: dict[str, Any] = {
    "void": None,
    "void*": ctypes.c_void_p,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
}


def structure(fields: str, **known: Any) -> Any:
    """The class of a structure with these fields, such as "double one, other; int64_t of_rows[16]". `known`: structures, by the
    name of their type."""
    made = []
    for declaration in fields.split(";"):
        kind, names = declaration.split(maxsplit=1)
        for field in names.split(", "):
            name, _, count = field.rstrip("]").partition("[")
            of_field = known.get(kind) or _TYPES[kind]
            made.append((name, of_field * int(count) if count else of_field))
    return type("Structure", (ctypes.Structure,), {"_fields_": made})


def declare(library: Any, functions: str) -> None:
    """Set the types of these functions, such as "void* new_pool(); int check(void*, int)"."""
    for declaration in functions.split(";"):
        kind, called = declaration.split(maxsplit=1)
        name, arguments = called.rstrip(")").split("(")
        function = getattr(library, name)
        function.restype, function.argtypes = _TYPES[kind], [_TYPES[each] for each in arguments.split(", ") if each]
