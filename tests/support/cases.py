# SPDX-License-Identifier: MIT
"""Products at random: operands of any type, form and layout, settings and flags, and the result that each must have.

`draw` gives cases in which every value of every dimension occurs; `run` multiplies one of them and compares all of the result, in
one process or by the ranks of a communicator. What is drawn follows from the seed alone, so a case that failed is run again by
the line that names it: `cases.run(cases.Case(...))`.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hybrid
import hybrid.testing
from hybrid.errors import HybridError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
TYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
SIZES = (0, 1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 40, 64, 65, 100, 129)
MOST_SIZE = 40  # of products of integers and of stacks
FORMS = {  # the shapes of A and B; letters are sizes, numbers the dimensions of stacks
    "matrix · matrix": ("nl", "lm"), "vector · matrix": ("l", "lm"), "matrix · vector": ("nl", "l"),
    "vector · vector": ("l", "l"), "stack · matrix": ("3nl", "lm"), "matrix · stack": ("nl", "3lm"),
    "stack · stack": ("5nl", "5lm"), "stacks that are broadcast": ("21nl", "4lm"), "stack · vector": ("3nl", "l"),
    "vector · stack": ("l", "3lm"), "stack of one · stack": ("1nl", "6lm"), "empty stacks": ("0nl", "0lm"),
}  # fmt: skip
VALUES = ("whole", "lecture", "constant", "normal", "scaled", "extreme")
_EXACT_VALUES = VALUES[:3]  # with which no sum in float32 is rounded
LAYOUTS = (
    *("C order", "Fortran order", "transposed", "part of a larger one", "strided", "backwards", "columns backwards", "unaligned"),
    *("memory-mapped", "hybrid.empty", "read-only", "one row repeated", "other byte order"),
)
_OF_OPERANDS_ALONE = LAYOUTS[-3:]
HOLDERS = ("array", "subclass", "DLPack", "__array__", "__array_interface__", "memoryview", "nested lists", "CuPy")
FACTORS = ("1", "0", "-1", "3", "large", "0.5", "2-1j", "NumPy's")
FLAGS = ("transpose_a", "transpose_b", "conjugate_a", "conjugate_b")
OUTS = ("new", "out", "out is c")


@dataclass(frozen=True)
class Way:
    """How a product is carried out, which makes no difference to it. `flags`: arguments; `variables`: HYBRID_* settings."""

    flags: dict[str, Any]
    variables: dict[str, str]
    computes: tuple[str, ...] = ("float32", "float64")  # the types of sums for which there is such a kernel
    shapes: str = ""  # "matvec": only with a B of one column; "full": only where every rank has something to multiply


def _way(computes: tuple[str, ...] = ("float32", "float64"), shapes: str = "", **settings: Any) -> Way:
    flags = {name: value for name, value in settings.items() if name.islower()}
    return Way(flags, {name: str(value) for name, value in settings.items() if name.isupper()}, computes, shapes)


ON_CPU = {
    "as it comes": _way(device="cpu"),
    "one thread": _way(device="cpu", threads=1),
    "three threads": _way(device="cpu", THREADS=3),
    "unchecked": _way(device="cpu", check=False),
    "checked by the host": _way(device="cpu", check="host"),
    "to be repaired": _way(DEVICE="cpu", on_fault="repair"),
    "row panels": _way(device="cpu", PANEL_ROWS=3),
    "buffers": _way(device="cpu", STAGED=1, POISON=1),
    "buffers of tiles": _way(device="cpu", STAGED=1, PANEL_ROWS=5, PANEL_COLUMNS=7, POISON=1),
    "buffers of slabs": _way(device="cpu", STAGED=1, PANEL_ROWS=6, SLAB_ROWS=4, POISON=1),
}
COMPILED = {  # what needs a compiler
    "loops": _way(device="cpu", kernel="loops"),
    "loops_ikj": _way(device="cpu", kernel="loops_ikj"),
    "emulated": _way(device="emulate", POISON=1),
    "emulated tiles": _way(device="emulate", PANEL_ROWS=33, PANEL_COLUMNS=40, POISON=1),
    "emulated slabs": _way(device="emulate", PANEL_ROWS=30, SLAB_ROWS=24, POISON=1),
    "emulated, out of core": _way(device="emulate", gpu_memory="90k", POISON=1),
    "emulated, checked by the host": _way(device="emulate", check="host"),
    "emulated, from remainders": _way(device="emulate", precision="fast", POISON=1),
    **{
        f"emulated {kernel}": _way(device="emulate", kernel=kernel)
        for kernel in ("naive", "row_per_thread", "column_per_thread", "tiled", "tiled32", "register_tiled", "pipelined")
    },
    "emulated warp_tiled": _way(device="emulate", KERNEL="warp_tiled", precision="native"),
    "emulated tensor": _way(("float64",), device="emulate", kernel="tensor"),
    "emulated matvec": _way(device="emulate", kernel="matvec", shapes="matvec"),
    "emulated matvec_warp": _way(device="emulate", kernel="matvec_warp", shapes="matvec"),
}
ON_GPU = {
    "GPU": _way(device="cuda", POISON=1),
    "GPU, cublas": _way(device="cuda", kernel="cublas"),
    "GPU, tiles": _way(device="cuda", PANEL_ROWS=33, PANEL_COLUMNS=40, POISON=1),
    "GPU, slabs": _way(device="cuda", PANEL_ROWS=33, SLAB_ROWS=32, POISON=1),
    "GPU, out of core": _way(device="cuda", gpu_memory="200k", POISON=1),
    "GPU, checked by the host": _way(device="cuda", check="host"),
    "GPU, from remainders": _way(device="cuda", precision="fast", POISON=1),
    "GPU, native": _way(device="cuda", precision="native"),
}


def ways_of_ranks(size: int, *, emulated: bool = True) -> dict[str, Way]:
    """Those of several ranks."""
    nodes = {"RANKS_PER_NODE": 1}
    ways = {
        "as it comes": _way(device="cpu"),
        "tiny pieces": _way(device="cpu", STAGED=1, PANEL_ROWS=3, PANEL_COLUMNS=5, POISON=1),
        "other nodes": _way(device="cpu", **nodes, MESSAGE_BYTES=100),
        "other nodes, large messages": _way(device="cpu", **nodes, check="host"),
        "two ranks a node": _way(device="cpu", RANKS_PER_NODE=2, MESSAGE_BYTES=1000, STAGED=1, PANEL_ROWS=7),
        "two ranks a node, panels": _way(device="cpu", RANKS_PER_NODE=2, PANEL_COLUMNS=20, POISON=1),
        **{
            f"grid {grid}": _way(device="cpu", **nodes, GRID=grid, STAGED=staged)
            for grid, staged in ((f"1x{size}", 0), (f"{size}x1", 1), (f"1x1x{size}", 0), (f"{size // 2}x2", 1))
            if size % 2 == 0 or grid != f"{size // 2}x2"
        },
    }
    on_devices = {
        "emulated peers": _way(device="emulate", transport="peers", POISON=1, shapes="full"),
        "emulated peers, tiles": _way(device="emulate", TRANSPORT="peers", PANEL_ROWS=33, PANEL_COLUMNS=40, shapes="full"),
        "emulated host": _way(device="emulate", transport="host", PANEL_COLUMNS=32, POISON=1),
        "emulated on other nodes": _way(device="emulate", **nodes, POISON=1),
        "emulated, from remainders": _way(device="emulate", precision="fast"),
    }
    return {**ways, **on_devices} if emulated else ways


@dataclass(frozen=True)
class Case:
    """A product. `seed`: of the elements."""

    seed: int
    types: tuple[str, str] = ("float64", "float64")
    dtype: str | None = None
    values: str = "normal"
    form: str = "matrix · matrix"
    sizes: tuple[int, int, int] = (5, 4, 3)
    layouts: tuple[str, str, str, str] = ("C order",) * 4  # of A, B, C and out
    holders: tuple[str, str] = ("array", "array")
    flags: frozenset[str] = frozenset()
    alpha: str = "1"
    beta: str = ""  # "": neither beta nor c is given
    type_c: str = ""
    out: str = "new"
    way: str = "as it comes"
    root: str = "first"
    group: str = "all"


def promoted(a: str, b: str) -> str:
    """The type that the table of docs/python.md gives a product: NumPy's; of bfloat16 that of `a * b`."""
    if "bfloat16" in (a, b):
        return (np.ones(1, _dtype(a)) * np.ones(1, _dtype(b))).dtype.name
    return np.result_type(a, b).name


def possible_types(a: str, b: str) -> tuple[str, ...]:
    """What `dtype` may name for the product of such operands."""
    if {a, b} & set(COMPLEX):
        return COMPLEX
    if {a, b} & set(FLOATS):
        return FLOATS + COMPLEX
    return (("bool",) if a == b == "bool" else ()) + INTEGERS + FLOATS + COMPLEX


def is_exact(a: str, b: str, result: str) -> bool:
    """Whether the product is one of integers, none of which is rounded."""
    return result in (*INTEGERS, "bool") and not {a, b} & {*FLOATS, *COMPLEX}


def computed_in(a: str, b: str, result: str) -> str:
    """The type of sums that are rounded: float64 where an operand or the result needs it."""
    wide = [np.float32 if each == "bfloat16" else _dtype(each) for each in (a, b, result)]
    return "float64" if np.result_type(np.float32, *wide).name in ("float64", "complex128") else "float32"


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


# Drawing


def draw(seed: int, count: int, ways: dict[str, Way], **narrowed: Sequence[Any]) -> list[Case]:
    """So many cases, in which each dimension's values come in turn, in an order of their own. `narrowed`: dimensions with fewer
    values, by their names in `dimensions`."""
    rng, named = np.random.default_rng([seed, count]), Counter[tuple[str, ...]]()
    turns = {}
    for name, values in {**dimensions(ways), **narrowed}.items():
        turns[name] = [values[index] for _ in range(-(-count // len(values))) for index in rng.permutation(len(values))][:count]
    rounded, real = [], []
    for at, types in enumerate(turns["types"]):
        names = possible_types(*types)
        named[names] += bool(turns["dtype"][at])
        turns["dtype"][at] = names[named[names] % len(names)] if turns["dtype"][at] else None
        rounded.append(not is_exact(*types, turns["dtype"][at] or promoted(*types)))
        real.append(rounded[-1] and not {*types} & {*COMPLEX})
    _move(turns["way"], real, lambda way: bool(ways[way].shapes))
    shapes_of = [ways[way].shapes for way in turns["way"]]
    matrices = [form == "matrix · matrix" or bool(shape) for form, shape in zip(turns["form"], shapes_of, strict=True)]
    for name in "nlm":
        free = [name != "m" or shape != "matvec" for shape in shapes_of]
        _move(turns[name], list(map(all, zip(rounded, matrices, free, strict=True))), lambda size: size > MOST_SIZE)
    return [_case(seed * 100_000 + at, {name: turns[name][at] for name in turns}, ways) for at in range(count)]


def _move(values: list[Any], takes: Sequence[bool], demands: Callable[[Any], bool]) -> None:
    """Values that not every case takes to cases that take them."""
    free = [at for at, value in enumerate(values) if takes[at] and not demands(value)]
    for at, value in enumerate(values):
        if demands(value) and not takes[at] and free:
            other = free.pop()
            values[at], values[other] = values[other], values[at]


def dimensions(ways: dict[str, Way]) -> dict[str, Sequence[Any]]:
    return {
        "types": tuple(product(TYPES, TYPES)),
        "dtype": (False, False, *[True] * 5),  # whether it is named
        "values": VALUES,
        "form": (*("matrix · matrix",) * 8, *FORMS),
        **dict.fromkeys("nlm", SIZES),
        **dict.fromkeys(("layout_a", "layout_b", "layout_c"), ("C order", *LAYOUTS)),
        "layout_out": [each for each in LAYOUTS if each not in _OF_OPERANDS_ALONE],
        **dict.fromkeys(("holder_a", "holder_b"), ("array",) * 4 + HOLDERS[:-1]),
        **dict.fromkeys(FLAGS, (False, True)),
        "alpha": ("1", *FACTORS),
        "beta": ("", "", *FACTORS),
        "type_c": range(5),
        "out": OUTS,
        "way": tuple(ways),
        "root": ("first", "last"),
        "group": ("all", "all", "copy", "backwards"),
    }


def _case(seed: int, wanted: dict[str, Any], ways: dict[str, Way]) -> Case:
    """What is wanted, where it goes together; where not, what is next to it."""
    a, b = wanted["types"]
    dtype, way = wanted["dtype"], wanted["way"]
    result = dtype or promoted(a, b)
    exact = is_exact(a, b, result)
    unfit = not exact and computed_in(a, b, result) not in ways[way].computes
    if unfit or (exact and ways[way].computes == ("float64",)) or (ways[way].shapes and (exact or "complex" in a + b)):
        way = next(iter(ways))
    form, least = wanted["form"], {"matvec": (0, 0, 0), "full": (16, 1, 1), "": (0, 0, 0)}[ways[way].shapes]
    if ways[way].shapes:
        form = "matrix · matrix"
    # Of complex matrices on the GPU real ones are made there, which are larger.
    has_no_room = "gpu_memory" in ways[way].flags and "complex" in a + b and wanted["holder_a"] == wanted["holder_b"] == "CuPy"
    most = MOST_SIZE if exact or form != "matrix · matrix" or has_no_room else SIZES[-1]
    n, l, m = (min(max(wanted[each], few), most) for each, few in zip("nlm", least, strict=True))
    sizes = n, l, 1 if ways[way].shapes == "matvec" else m
    made = Case(
        seed,
        (a, b),
        dtype,
        wanted["values"],
        form,
        sizes,
        tuple(wanted[f"layout_{each}"] for each in ("a", "b", "c", "out")),
        (wanted["holder_a"], wanted["holder_b"]),
        frozenset(flag for flag in FLAGS if wanted[flag]),
        _factor(wanted["alpha"], result, exact),
        "" if result == "bool" else wanted["beta"] and _factor(wanted["beta"], result, exact),
        "",
        wanted["out"],
        way,
        wanted["root"],
        wanted["group"],
    )
    if not made.beta:
        made = replace(made, out="out" if made.out == "out is c" else made.out)
    else:
        made = replace(made, type_c=result if made.out == "out is c" else _type_of_c(wanted["type_c"], result, exact))
    made = replace(made, layouts=_layouts(made))
    return replace(made, holders=_holders(made))


def _factor(name: str, result: str, exact: bool) -> str:
    if result == "bool":
        return "1"
    if (exact and name == "0.5") or (name == "2-1j" and result not in COMPLEX):
        return "3"
    return "-1" if name == "large" and not exact else name


def _type_of_c(index: int, result: str, exact: bool) -> str:
    if exact:
        return (result, "bool", *INTEGERS)[index * 3 % 10 if index else 0]
    narrower = [each for each in TYPES if each != "bfloat16" and np.can_cast(_dtype(each), _dtype(result), "same_kind")]
    return result if not index or not narrower else narrower[index * 2 % len(narrower)]


def _layouts(case: Case) -> tuple[str, ...]:
    """Types of one byte, and those that NumPy does not know, have one byte order; and C is written to where it is `out`."""
    given = [*case.layouts[:2], case.layouts[2] if case.beta else "C order"]
    if case.out == "out is c" and given[2] in _OF_OPERANDS_ALONE:
        given[2] = "strided"
    for place, name in enumerate((*case.types, case.type_c or "bool")):
        if given[place] == "other byte order" and (_dtype(name).itemsize == 1 or name == "bfloat16"):
            given[place] = "backwards"
    return (*given, case.layouts[3])


def _holders(case: Case) -> tuple[str, str]:
    def fits(holder: str, name: str, layout: str, shape: tuple[int, ...]) -> bool:
        if holder == "nested lists":
            return name in ("float64", "int64", "complex128", "bool") and 0 not in shape
        if holder in ("DLPack", "memoryview"):
            native = layout not in ("other byte order", "unaligned", "read-only", "one row repeated")
            return name != "bfloat16" and native and (holder == "DLPack" or 0 not in shape)
        return holder not in ("__array_interface__", "CuPy") or name != "bfloat16"

    return tuple(
        holder if fits(holder, name, layout, shape) else "array"
        for holder, name, layout, shape in zip(case.holders, case.types, case.layouts, shapes(case), strict=False)
    )


# Operands


def shapes(case: Case) -> list[tuple[int, ...]]:
    """Those of A, B and the result."""
    n, l, m = case.sizes
    size_of = {"n": n, "l": l, "m": m}
    a, b = (tuple(size_of.get(each, each) for each in form) for form in FORMS[case.form])
    a, b = (tuple(int(each) for each in shape) for shape in (a, b))
    result = np.broadcast_shapes(a[:-2], b[:-2]) + a[-2:-1] * (len(a) > 1) + b[-1:] * (len(b) > 1)
    given = []
    for shape, flag in ((a, "transpose_a"), (b, "transpose_b")):
        given.append((*shape[:-2], shape[-1], shape[-2]) if flag in case.flags and len(shape) > 1 else shape)
    return [*given, result]


def elements(rng: np.random.Generator, shape: tuple[int, ...], name: str, values: str, scaled: int) -> np.ndarray:
    """Numbers of such values. `scaled`: the axis along which powers of two differ."""
    dtype = _dtype(name)
    if name in (*INTEGERS, "bool"):
        low, high = (0, 1) if name == "bool" else (int(np.iinfo(name).min), int(np.iinfo(name).max))
        some = {"whole": 4, "lecture": 2, "constant": 2, "normal": 100, "scaled": 1 << 20, "extreme": 1 << 64}[values]
        low, high = max(low, -some if values != "lecture" else 0), min(high, some)
        made = np.full(shape, high, object) if values == "constant" else _integers(rng, low, high, shape)
        return made.astype(dtype)
    if values in _EXACT_VALUES:
        low, high = {"whole": (-4, 5), "lecture": (0, 3), "constant": (2, 3)}[values]
        parts = [rng.integers(low, high, shape).astype(np.float64) for _ in "ri"]
    else:
        parts = [rng.standard_normal(shape) for _ in "ri"]
    made = parts[0] + 1j * parts[1] if name in COMPLEX else parts[0]
    if values in ("scaled", "extreme") and shape:
        most = {"float16": 3, "bfloat16": 20, "float32": 20, "complex64": 20}.get(name, 200 if values == "extreme" else 20)
        powers = rng.integers(-most, most + 1, shape[scaled] if len(shape) > 1 else 1)
        made = made * np.exp2(powers.astype(np.float64)).reshape((-1, 1) if scaled == -2 and len(shape) > 1 else (-1,))
    return made.astype(dtype)


def _integers(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
    """With the least and the largest among them."""
    made = rng.integers(low, high, shape, np.uint64 if low >= 0 else np.int64, endpoint=True)
    if made.size > 1:
        made.flat[0], made.flat[-1] = low, high
    return made


Views = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


def laid_out(shape: tuple[int, ...], dtype: np.dtype, layout: str, folder: str, empty: Callable[..., Any]) -> Views:
    """Memory, and what takes an array of this shape from it. `empty`: hybrid.empty, which all ranks call."""
    ends = min(len(shape), 2)  # the axes of a matrix or a vector

    def of_ends(parts: slice, columns: slice | None = None) -> tuple[Any, ...]:
        return (..., *(parts,) * (ends - 1), columns or parts)[: ends + 1] if ends else (...,)

    if layout == "Fortran order":
        return np.empty(shape[::-1], dtype), np.transpose
    if layout == "transposed" and ends == 2:
        return np.empty((*shape[:-2], shape[-1], shape[-2]), dtype), lambda base: np.swapaxes(base, -1, -2)
    if layout == "part of a larger one":
        larger = shape[: len(shape) - ends] + tuple(each + 3 for each in shape[len(shape) - ends :])
        return np.empty(larger, dtype), lambda base: base[of_ends(slice(1, -2))]
    if layout == "strided":
        larger = shape[: len(shape) - ends] + tuple(3 * each for each in shape[len(shape) - ends :])
        return np.empty(larger, dtype), lambda base: base[of_ends(slice(None, None, 3))]
    if layout in ("backwards", "columns backwards"):
        turned = slice(None, None, -1)
        return np.empty(shape, dtype), lambda base: base[of_ends(turned if layout == "backwards" else slice(None), turned)]
    if layout == "unaligned":
        size = int(np.prod(shape)) * dtype.itemsize
        return np.empty(size + 1, np.uint8), lambda base: base[1 : size + 1].view(dtype).reshape(shape)
    if layout == "memory-mapped" and 0 not in shape and shape and dtype.isbuiltin == 1:
        number, path = tempfile.mkstemp(dir=folder)
        os.close(number)
        return np.memmap(path, dtype, "w+", shape=shape), lambda base: base
    if layout == "one row repeated" and ends == 2 and 0 not in shape:
        return np.empty((1, shape[-1]), dtype), lambda base: np.broadcast_to(base, shape)
    if layout == "hybrid.empty" and len(shape) == 2:
        return empty(shape, dtype), lambda base: base
    return np.empty(shape, dtype.newbyteorder() if layout == "other byte order" else dtype), lambda base: base


class _Subclass(np.ndarray):
    """Like those of other libraries."""


class _Holder:
    """An array of some other library, which speaks one protocol and nothing else."""

    def __init__(self, array: np.ndarray, *names: str) -> None:
        self._array, self._names = array, names
        if "__array_interface__" in names:
            self.__array_interface__ = array.__array_interface__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name in self.__dict__.get("_names", ()):
            return getattr(self._array, name)
        raise AttributeError(name)


def _speaks(name: str) -> type:
    return type(name, (_Holder,), {name: lambda self, *given, **more: getattr(np.asarray(self._array), name)(*given, **more)})


_Array, _Dlpack = _speaks("__array__"), _speaks("__dlpack__")
_Dlpack.__dlpack_device__ = lambda self: (1, 0)  # type: ignore[attr-defined]


def held(array: np.ndarray, holder: str) -> Any:
    """The array as something that stands for it."""
    if holder == "subclass":
        return array.view(_Subclass)
    if holder == "DLPack":
        return _Dlpack(array)
    if holder == "__array__":
        return _Array(array)
    if holder == "__array_interface__":
        return _Holder(array, holder)
    if holder == "memoryview":
        return memoryview(array)
    if holder == "nested lists":
        return array.tolist()
    if holder == "CuPy":
        import cupy

        return cupy.asarray(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    return array


class Operands:
    """The arrays of a case, and what they were."""

    def __init__(self, case: Case, folder: str, empty: Callable[..., np.ndarray]) -> None:
        self.case, rng = case, np.random.default_rng(case.seed)
        self.result = result_type(case)
        *given, of_result = shapes(case)
        kinds = [*case.types, *([case.type_c] if case.beta else [])]
        self.bases, self.views, self.takes = [], [], []
        for place, (shape, name) in enumerate(zip([*given, of_result], kinds, strict=False)):
            axis = -2 if (place == 0) != (("transpose_a", "transpose_b", "")[place] in case.flags) else -1
            values = elements(rng, shape, name, case.values, axis)
            base, take = laid_out(shape, _dtype(name), case.layouts[place], folder, empty)
            _fill(base, 7)
            view = take(base)
            if not view.flags.writeable:  # one row, repeated
                base[...] = values.reshape(-1, shape[-1])[:1]
            else:
                view[...] = values
            if case.layouts[place] == "read-only":
                view = view.view()
                view.flags.writeable = False
            self.bases.append(base)
            self.views.append(view)
            self.takes.append(take)
        self.before = [np.array(base, subok=False) for base in self.bases]
        self.values = [np.array(view, subok=False) for view in self.views]
        self.out_base, self.out, self.take_out = None, None, None
        if case.out == "out is c":
            self.out_base, self.out, self.take_out = self.bases[2], self.views[2], self.takes[2]
        elif case.out == "out":
            self.out_base, self.take_out = laid_out(of_result, _dtype(self.result), case.layouts[3], folder, empty)
            _fill(self.out_base, 0xFF)
            self.out = self.take_out(self.out_base)
        self.out_before = None if self.out_base is None else np.array(self.out_base, subok=False)

    def given(self) -> tuple[Any, ...]:
        """A, B and C as they are passed."""
        a, b = (held(view, holder) for view, holder in zip(self.views, self.case.holders, strict=False))
        return (a, b, *self.views[2:])

    def assert_unchanged(self) -> None:
        """But for `out`, within the larger array that it may be a part of."""
        for name, base, before in zip("abc", self.bases, self.before, strict=False):
            if base is not self.out_base:
                assert base.tobytes() == before.tobytes(), f"{name} was changed"
        if self.out_base is not None and self.out_before is not None and self.take_out is not None:
            self.take_out(self.out_before)[...] = self.out
            assert self.out_base.tobytes() == self.out_before.tobytes(), "what lies beside out was changed"


def _fill(base: np.ndarray, byte: int) -> None:
    """The same byte everywhere: of 0xFF, NaN."""
    base.reshape(-1).view(np.uint8).fill(byte)


def result_type(case: Case) -> str:
    return case.dtype or promoted(*case.types)


def _number(name: str, exact: bool) -> Any:
    if name == "NumPy's":
        return np.int16(2) if exact else np.float32(1.5)
    if name == "large":
        return 1 << 40
    return {"1": 1, "0": 0, "-1": -1.0, "3": 3, "0.5": 0.5, "2-1j": 2 - 1j}[name]


# The result


@dataclass(frozen=True)
class Wanted:
    """The exact result, `numbers`, and what each element may differ from it. `overflows`: some element does not fit."""

    numbers: np.ndarray
    bound: np.ndarray | None
    overflows: bool = False


def wanted(case: Case, values: Sequence[np.ndarray], alpha: Any, beta: Any) -> Wanted:
    """What the product of these values must be, from Python's integers or in extended precision."""
    result = result_type(case)
    operands = []
    for name, each in zip("ab", values, strict=False):
        each = np.conj(each) if f"conjugate_{name}" in case.flags and each.dtype.kind == "c" else each
        operands.append(np.swapaxes(each, -1, -2) if f"transpose_{name}" in case.flags and each.ndim > 1 else each)
    a, b = operands
    if is_exact(*case.types, result):
        whole = _integer_product(a, b)
        whole = whole * int(np.real(alpha)) + (int(np.real(beta)) * values[2].astype(object) if beta else 0)
        if result == "bool":
            return Wanted(np.asarray(whole, object) != 0, None)
        limits, flat = np.iinfo(result), np.asarray(whole, object).ravel().tolist()
        return Wanted(np.asarray(whole, object), None, any(not limits.min <= each <= limits.max for each in flat))
    wide = np.clongdouble if result in COMPLEX else np.longdouble
    a, b, *c = (_wide(each) for each in (a, b, *values[2:]))
    product, sizes = a @ b, np.abs(a) @ np.abs(b)
    alpha, beta = (np.asarray(each).astype(wide if np.iscomplexobj(each) else np.longdouble) for each in (alpha, beta))
    numbers = np.asarray(alpha * product + (beta * c[0] if beta != 0 else 0)).astype(wide)
    if case.values in _EXACT_VALUES:
        return Wanted(numbers, None)
    summed, (l, parts) = computed_in(*case.types, result), (a.shape[-1], 1 + ("complex" in "".join(case.types)))
    unit = np.finfo(summed).eps / 2
    terms = parts * (max(l, 64) if "remainders" in case.way else l)
    sizes = abs(alpha) * sizes + (abs(beta) * np.abs(c[0]) if beta != 0 else 0)
    info = ml_dtypes.finfo(_dtype(result)) if result in FLOATS else np.finfo(result)
    flushed = case.way.startswith("GPU") and result == "complex64"  # CuPy's conversions flush its subnormal numbers to zero
    least = float(np.finfo(summed).smallest_subnormal) * (l + 2) * float(max(abs(alpha), 1))
    least += 2**0.5 * float(info.tiny) if flushed else float(info.smallest_subnormal)
    bound = (
        (terms + 8) * parts**0.5 * 1.01 * unit * sizes * (1 + (wide is np.clongdouble))
        + float(info.eps) * np.abs(numbers)
        + least
    )
    return Wanted(numbers, np.asarray(bound))


def _wide(array: np.ndarray) -> np.ndarray:
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def _integer_product(a: np.ndarray, b: np.ndarray) -> Any:
    largest = [max((abs(int(each.max())), abs(int(each.min()))), default=0) if each.size else 0 for each in (a, b)]
    fits = a.shape[-1] * largest[0] * largest[1] < 1 << 62 and max(largest) < 1 << 62
    return (
        np.asarray(a.astype(np.int64) @ b.astype(np.int64)).astype(object)
        if fits
        else np.asarray(a.astype(object) @ b.astype(object))
    )


def assert_is(found: np.ndarray, right: Wanted, name: str) -> None:
    """That all elements are what they must be."""
    if right.bound is None and name in (*INTEGERS, "bool"):
        assert np.asarray(found).tolist() == right.numbers.tolist()
        return
    if right.bound is None:
        rounded = right.numbers.astype(np.complex128 if name in COMPLEX else np.float64).astype(_dtype(name))
        np.testing.assert_array_equal(found.astype(rounded.dtype).astype(np.clongdouble), rounded.astype(np.clongdouble))
        return
    largest = float((ml_dtypes.finfo(_dtype(name)) if name in FLOATS else np.finfo(name)).max)
    sure, beyond = np.abs(right.numbers) + right.bound <= largest, np.abs(right.numbers) - right.bound > largest * 1.01
    error = np.abs(_wide(np.asarray(found)) - right.numbers)
    wrong = sure & ~(error <= right.bound)
    where, most = np.argwhere(wrong)[:3].tolist(), (error / right.bound)[wrong].max(initial=0)
    assert not wrong.any(), f"wrong at {where}: {most:.3g} times the bound"
    if name in FLOATS:
        assert (np.isinf(found.astype(np.float64)) | ~beyond).all(), "finite where the type's largest number is exceeded"


# Running


def run(case: Case, ways: dict[str, Way] | None = None, comm: Any = None) -> None:
    """Multiply, and compare. By several ranks all of them say whether it was right."""
    error: BaseException | None = None
    try:
        _run(case, {**ON_CPU, **COMPILED, **ON_GPU} if ways is None else ways, comm)
    except AssertionError as wrong:
        error = wrong
    told = comm.allgather(None if error is None else str(error)) if comm is not None else [error]
    failed = [f"rank {rank}: {each}" for rank, each in enumerate(told) if each is not None]
    if failed:
        raise AssertionError(f"{case}\n" + "\n".join(failed)) from error


def _run(case: Case, ways: dict[str, Way], comm: Any) -> None:
    way = ways[case.way]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(hybrid.testing.pretend(**{name.lower(): value for name, value in way.variables.items()}))
        group = comm
        if comm is not None and case.group != "all":
            group = comm.Dup() if case.group == "copy" else comm.Split(0, -comm.rank)
            stack.callback(group.Free)
        root = 0 if case.root == "first" or group is None else group.size - 1
        mine = group is None or group.rank == root

        def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            """At the root hybrid.empty's; it alone writes there."""
            shared = hybrid.empty(shape, dtype, comm=group, root=root)
            return shared if mine and shared is not None else np.empty(shape, dtype)

        given = Operands(case, folder, empty)
        exact = is_exact(*case.types, given.result)
        alpha, beta = (_number(each, exact) for each in (case.alpha, case.beta or "0"))
        right = wanted(case, given.values, alpha, beta)
        how: dict[str, Any] = dict(way.flags, alpha=alpha, **dict.fromkeys(case.flags, True))
        how |= {"beta": beta} if case.beta else {}
        how |= {"dtype": _dtype(case.dtype) if case.seed % 2 else case.dtype} if case.dtype else {}
        how |= {} if group is None else {"comm": group, "root": root}
        _multiply(case, given, how, right, mine=mine)
        if group is None:  # what the first call has found out is kept for the second
            _multiply(case, Operands(case, folder, empty), how, right)


def _multiply(case: Case, given: Operands, how: dict[str, Any], right: Wanted, *, mine: bool = True) -> None:
    operands, out = (given.given(), given.out) if mine else ((None, None), None)
    try:
        found = hybrid.multiply(*operands, **how, out=out)
    except hybrid.errors.Overflow:
        assert right.overflows, "Overflow, where all elements fit"
        return
    assert not right.overflows, "no Overflow, where an element does not fit"
    if not mine:
        assert found is None
        return
    _assert_result(case, given, found, right, operands)


def _assert_result(case: Case, given: Operands, found: Any, right: Wanted, operands: Sequence[Any]) -> None:
    if given.out is not None:
        assert found is given.out
    elif case.holders == ("CuPy", "CuPy"):
        import cupy

        assert isinstance(found, cupy.ndarray)
        found = cupy.asnumpy(found)
    else:
        assert type(found) in (np.ndarray, _dtype(given.result).type)
        if isinstance(found, np.ndarray) and found.ndim:
            assert found.flags.writeable
            assert found.flags.c_contiguous
            assert not any(np.may_share_memory(found, each) for each in given.views)
    assert (found.dtype, np.shape(found)) == (_dtype(given.result), right.numbers.shape)
    assert_is(np.asarray(found), right, given.result)
    given.assert_unchanged()


@contextmanager
def refused(kind: type[HybridError], *codes: str) -> Iterator[pytest.ExceptionInfo[HybridError]]:
    """A context that must end with this error, of one of these codes."""
    with pytest.raises(kind) as caught:
        yield caught
    code = caught.value.code
    assert code in codes, f"[{code}] {caught.value}"
