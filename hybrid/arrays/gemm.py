# SPDX-License-Identifier: MIT
"""The types and options of a product, as in BLAS's GEMM: C = alpha · op(A) · op(B) + beta · C.

Products of any type are computed as products of real matrices. Complex matrices become real ones with twice as many columns,
16-bit floats are rounded from 32-bit sums, and integers that floating point would round are multiplied modulo primes.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.arrays.integers import LARGEST_MODULUS, Exact, write_remainders
from hybrid.arrays.interop import as_rows, by_rows, empty_beside, on_device_of, on_gpu, on_host, to_device_of
from hybrid.core.installation import install
from hybrid.core.problem import DTYPES, INTEGERS, Problem, Span, record
from hybrid.core.settings import as_int
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.errors import UsageError
from hybrid.host.memory import copy_rows, tiles_of
from hybrid.host.threads import CALL_BYTES, on_threads, rows_of_about


def real_view(matrix: Any) -> Any:
    """A row-major complex matrix as a real one: a view with real and imaginary parts in alternating columns."""
    return matrix.view(matrix.real.dtype)


def complex_view(matrix: Any) -> Any:
    """The inverse of `real_view`."""
    return matrix.view(matrix.dtype.char.upper())


_LARGEST = 1 << 1023  # of alpha and beta: fits a float
_LARGEST_FACTOR = 1 << 63  # of alpha and beta for products of integers


@record
class Gemm:
    """The options of a call: op is the matrix, its transpose, conjugate, or conjugate transpose. `dtype`: of C; "": NumPy's.
    `modulus`: C is reduced modulo it, unless 0."""

    alpha: Any = 1
    beta: Any = 0
    transpose_a: bool = False
    transpose_b: bool = False
    conjugate_a: bool = False
    conjugate_b: bool = False
    dtype: str = ""
    modulus: int = 0

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Gemm:
        """The options of a call, validated: UsageError for a wrong one."""
        if all(map(operator.is_, asked.values(), map(_USUAL.get, asked))):
            return PRODUCT
        known: dict[str, Any] = {}
        for name, value in asked.items():
            if name == "dtype":
                known[name] = type_name(value)
            elif name in ("alpha", "beta"):
                known[name] = _number(name, 0 if name == "beta" and value is None else value)
            elif name == "modulus":
                known[name] = _modulus(value)
            elif isinstance(value, (bool, np.bool_)):
                known[name] = bool(value)
            else:
                raise UsageError(f"{name} must be True or False, not {value!r}", code="scalars")
        if known.get("modulus") and not known.get("dtype"):
            known["dtype"] = "int64"
        return cls(**known)

    def as_dict(self) -> dict[str, str]:
        """The values as texts, for comparison between ranks: with NaN equal to itself, and 1.0 to 1."""
        shortest = {key: int(each) if isinstance(each, float) and each.is_integer() else each for key, each in vars(self).items()}
        return {name: str(value) for name, value in shortest.items()}

    @property
    def combines(self) -> bool:
        """Whether alpha or beta changes the product."""
        return bool(self.alpha != 1 or self.beta != 0)

    def __reduce__(self) -> str | tuple[Any, ...]:  # the usual one is sent by name
        return "PRODUCT" if self is PRODUCT else (Gemm, tuple(vars(self).values()))


PRODUCT = Gemm()  # C = A · B
_USUAL = vars(PRODUCT) | {"beta": None, "dtype": None, "modulus": None}  # a call without options skips validation


def _number(name: str, value: Any) -> Any:
    """The value as a Python number. UsageError if it is none."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    whole = as_int(value)
    if type(whole) is int:
        if abs(whole) > _LARGEST:
            raise UsageError(f"{name} is too large a number, of {whole.bit_length()} bits", code="scalars")
        return whole
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (complex, np.complexfloating)):
        return complex(value)
    raise UsageError(f"{name} must be a number, not {value!r}", code="scalars")


def _modulus(value: Any) -> int:
    """The modulus, 0 for None. UsageError unless it is a whole number from 1 to 2⁶³."""
    whole = 0 if value is None else as_int(value)
    if value is not None and (type(whole) is not int or not 1 <= whole <= LARGEST_MODULUS):
        raise UsageError(f"modulus {value!r} is no whole number from 1 to 2⁶³", code="modulus")
    return int(whole)


# The types of results, each with the least real type in which it is computed: 16-bit ones are rounded from 32-bit sums.
_FLOATS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_SHORT = ("float16", "bfloat16")
_REAL_PARTS = _FLOATS | _COMPLEX


@record
class ProductType:
    """The types of one product and the steps to its result; the same on every rank."""

    computed: str  # the type of the real products that give C
    result: str  # the type of C
    complex_a: bool = False  # the real A has real and imaginary parts in alternating columns, and l doubles
    complex_b: bool = False  # the same for B and C, and m doubles
    exact: Exact | None = None  # for integers: how to avoid rounding and overflow, final after `bounded`
    short_operands: str = ""  # the common 16-bit type of A and B, which some devices multiply directly
    gemm: Gemm = field(default=PRODUCT, compare=False)  # alpha and beta of C's kind; ranks compare it as texts

    def of(self, gemm: Gemm) -> ProductType:
        """The same with these options. UsageError if alpha and beta do not suit C's type, or C's type not the modulus."""
        if gemm is PRODUCT:
            return self
        if gemm.modulus and (self.exact is None or gemm.modulus - 1 > np.iinfo(self.result).max):
            of = f"which {self.result} does not hold" if self.exact is not None else f"and this product is of {self.result}"
            raise UsageError(f"modulo {gemm.modulus} there are integers up to {gemm.modulus - 1}, {of}", code="modulus")
        if not (gemm.alpha is PRODUCT.alpha and gemm.beta is PRODUCT.beta):
            gemm = replace(gemm, alpha=_of_kind("alpha", gemm.alpha, self), beta=_of_kind("beta", gemm.beta, self))
        return replace(self, gemm=gemm)

    def bounded(self, terms: int, largest: Iterable[tuple[int, ...]], most: int | None = None) -> ProductType:
        """The types for integer dot products of this length. `largest`: by rank, of A, B and C; `most`: as for `Exact.of`."""
        a, b, c = map(max, zip(*largest, strict=True))
        exact = Exact.of(terms, (a, b), alpha=self.gemm.alpha, beta=self.gemm.beta, largest_c=c, most=most)
        return replace(self, exact=exact, computed=exact.computed)

    @property
    def primes(self) -> tuple[int, ...]:
        """The moduli of the real products; (0,): a single product, of the elements themselves."""
        return (self.exact.primes if self.exact is not None else ()) or (0,)

    @property
    def promoted(self) -> str:
        """The complex type to which an operand with real and imaginary parts is converted."""
        return {"float32": "complex64", "float64": "complex128"}[self.computed]

    def operand(self, key: str) -> str:
        """The type of A or B (`key`) that needs no conversion; C is computed in B's."""
        return self.promoted if (self.complex_a if key == "A" else self.complex_b) else self.computed

    @property
    def converts(self) -> bool:
        """Whether C's type differs from the one that it is computed in."""
        return self.exact is not None or self.result != self.operand("B")

    @property
    def finishes(self) -> bool:
        """Whether the product needs another step: a conversion, alpha or beta."""
        return self.converts or self.gemm.combines

    def parts_of(self, key: str) -> tuple[int, int]:
        """Rows and columns of the real product's A or B (`key`) per row and column of the user's."""
        return (1, 1 + self.complex_a) if key == "A" else (1 + self.complex_a, 1 + self.complex_b)

    def problem(self, n: int, l: int, m: int) -> Problem:
        """The real product for the user's n, l and m."""
        l, m = l * (1 + self.complex_a), m * (1 + self.complex_b)
        conjugates = self.complex_a and self.gemm.conjugate_a
        return Problem(n, l, m, self.computed, self.short_operands, is_complex=self.complex_a, conjugates=conjugates)

    def bytes_beside(self, elements: int) -> int:
        """Temporary bytes for this many elements of C, without the real product's own C."""
        if self.exact is not None:
            return self.exact.bytes_beside(elements, self.result)
        return elements * numpy_type(self.result).itemsize if self.converts else 0

    def __str__(self) -> str:
        return self.result + (" (real times complex)" if self.complex_b and not self.complex_a else "")


def numpy_type(name: str) -> np.dtype:
    """NumPy's type of this name; UsageError for bfloat16 without the package that adds it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"bfloat16 needs the package ml_dtypes: {install('bfloat16')}", code="package-missing") from None
    return np.dtype(ml_dtypes.bfloat16)


def is_number(dtype: np.dtype) -> bool:
    """Whether these are fixed-size numbers, of NumPy or of a package (bfloat16)."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.isbuiltin == 2)


def type_name(dtype: Any) -> str:
    """The name of a type that a user asks for; "" for None. UsageError if no product has it."""
    if dtype is None:
        return ""
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError):  # NumPy raises these for some texts
        name = str(dtype)
    if name == "bfloat16":
        numpy_type(name)
    if name not in DTYPES:
        raise UsageError(f"dtype {name} is no type of a product: one of {', '.join(DTYPES)}", code="dtype")
    return name


@lru_cache(maxsize=64)
def product_type(a: np.dtype, b: np.dtype, asked: str = "") -> ProductType:
    """The types of a product of such operands, with NumPy's type of C, or the one `asked` for. UsageError if that type would lose
    more than rounding, or cannot be computed.

    A product is computed in a type that holds the operands and the result, and rounded once.
    """
    promoted = _promoted(a, b)
    result = asked or promoted.name
    if a.kind in "biu" and b.kind in "biu" and (result in INTEGERS or result == promoted.name == "bool"):
        return ProductType("float64", result, exact=Exact(0, "float64"))
    wide = np.float32 if result == "bfloat16" else result
    computed = np.result_type(np.float32 if promoted.name == "bfloat16" else promoted, wide)
    complex_a, complex_b = a.kind == "c", a.kind == "c" or b.kind == "c"
    if computed.name not in _REAL_PARTS or result not in _REAL_PARTS or (complex_b and result not in _COMPLEX):
        lost = "it would lose more than rounding"
        raise UsageError(
            f"a product of {_types(a, b)} cannot have dtype {result}: {lost}; convert the operands with .astype", code="dtype"
        )
    short = a.name if a == b and a.isnative and a.name in _SHORT and _REAL_PARTS[computed.name] == "float32" else ""
    return ProductType(_REAL_PARTS[computed.name], result, complex_a, complex_b, short_operands=short)


def _promoted(a: np.dtype, b: np.dtype) -> np.dtype:
    """NumPy's common type of both. UsageError if no product has it."""
    try:
        promoted = np.result_type(a, b).newbyteorder("=")
    except TypeError:
        if "bfloat16" in (a.name, b.name) and is_number(a) and is_number(b):  # no common type: as for float32
            return _promoted(*(np.dtype(np.float32) if each.name == "bfloat16" else each for each in (a, b)))
        promoted = None
    if promoted is None or promoted.name not in DTYPES:
        gives = f"would give {promoted}" if promoted is not None else "have no product"
        raise UsageError(
            f"{_types(a, b)} {gives}: only products of integers, bool and floating-point numbers of up to 64 bits, "
            "and of complex numbers of two such, can be computed; convert with .astype",
            code="dtype",
        )
    return promoted


def _types(a: np.dtype, b: np.dtype) -> str:
    return f"{a}" if a == b else f"{a} and {b}"


def _of_kind(name: str, value: Any, types: ProductType) -> Any:
    """alpha or beta as a number of C's kind. UsageError if it is none."""
    if types.result == "bool" and value != (name == "alpha"):
        raise UsageError(f"{name} is {value}, and a product of bool is no number: pass dtype='int64'", code="scalars")
    if types.exact is not None:
        whole = value.real if isinstance(value, complex) and not value.imag else value
        if isinstance(whole, float) and whole.is_integer():
            whole = int(whole)
        if type(whole) is not int or abs(whole) > _LARGEST_FACTOR:
            takes = "pass an integer between -2⁶³ and 2⁶³, or dtype='float64'"
            raise UsageError(f"{name} is {value}, and a product of {types.result} is exact: {takes}", code="scalars")
        return whole
    if isinstance(value, complex) and not types.result.startswith("complex"):
        raise UsageError(f"{name} is {value}, and the product real: pass dtype='complex128' (or complex64)", code="scalars")
    return float(value) if type(value) is int else value


# In memory a complex A (n×l) is a real n×2l matrix with alternating real and imaginary parts, and so is C (n×2m). B is expanded
# to 2l×2m: row 2k has the parts of B's row k, and row 2k + 1 those of i times this row. Then C is the real product of both:
#
#     re C = Σ re A · re B + im A · (-im B)        im C = Σ re A · im B + im A · re B
#
# These are the four real products of a complex one, as a single product for every kernel and check. If A is real, B is not
# expanded, but viewed as a real l×2m matrix.


def real_operands(a: Any, b: Any, types: ProductType, prime: int = 0, *, device: str, threads: int) -> tuple[Any, Any]:
    """A and B of a real product, modulo a prime unless 0: the arrays themselves, or new matrices on the same device, in memory
    that `device` can read."""
    made = []
    for key, matrix in (("A", a), ("B", b)):
        heights, widths = types.parts_of(key)
        if widths > 1 and (heights == 1 or on_gpu(matrix)):
            matrix = as_rows(matrix, types.promoted, device=device, threads=threads)
        with on_device_of(matrix):  # the current device is this thread's alone
            if prime or heights > 1:
                height, width = matrix.shape
                rows = empty_beside(matrix, (height * heights, width * widths), types.computed)
                write_real_rows(key, matrix, Span(0, len(rows)), rows, 1 if on_gpu(matrix) else threads, types, prime)
                matrix = rows
            elif widths > 1:
                matrix = real_view(matrix.conj() if key == "B" and types.gemm.conjugate_b else matrix)
        made.append(matrix)
    return made[0], made[1]


def write_real_rows(
    key: str, matrix: np.ndarray, rows: Span, into: np.ndarray, threads: int, types: ProductType, prime: int
) -> None:
    """Write these rows of a real product's A or B (`key`), from the user's matrix in host memory, into the row-major `into`. Rows
    of an expanded B are two for each of the user's."""
    if prime:
        write_remainders(matrix, prime, rows, into, threads)
    elif key == "B" and types.complex_a:
        _write_expanded(matrix, rows, into, threads, types.gemm)
    else:
        copy_rows(complex_view(into), matrix[rows.slice], threads)
        if key == "B" and types.gemm.conjugate_b:
            np.negative(into[:, 1::2], out=into[:, 1::2])


def _write_expanded(b: Any, rows: Span, into: Any, threads: int, gemm: Gemm) -> None:
    """Write these rows of the expanded B into `into`; on a GPU, all rows. To conjugate A, change signs in the expanded B."""
    if on_gpu(b):
        pairs, made = real_view(b).reshape(*b.shape, 2), into.reshape(len(b), 2, b.shape[1], 2)
        of_a, of_b = (-1 if conjugates else 1 for conjugates in (gemm.conjugate_a, gemm.conjugate_b))
        signs = to_device_of(b, np.array([[1, of_b], [-of_a * of_b, of_a]], into.dtype))
        for odd in (0, 1):  # not by complex numbers, which would turn infinity into NaN
            np.multiply(pairs[..., :: 1 - 2 * odd], signs[odd], out=made[:, odd])
        return
    whole = complex_view(into)

    def write(part: Span) -> None:
        for odd in (0, 1):
            first = part.lo + (part.lo + odd) % 2
            of_b = b[first // 2 : (part.hi + 1 - odd) // 2]
            to = whole[first - rows.lo : part.hi - rows.lo : 2]
            for down, across in tiles_of(of_b, Span(0, len(of_b))):
                _write_parts(of_b[down, across], to[down, across], odd, gemm)

    on_threads(threads, write, rows_of_about(CALL_BYTES, rows, into.shape[1] * into.itemsize))


def _write_parts(of_b: Any, to: Any, odd: int, gemm: Gemm) -> None:
    """Write some rows of B; with `odd`, i times these rows."""
    if odd:
        to.real, to.imag = 0 - of_b.imag, of_b.real
    else:
        to[...] = of_b
    for part in [to.real if odd else to.imag] * gemm.conjugate_b + [to.real, to.imag] * (gemm.conjugate_a and odd):
        part *= -1  # a complex multiplication would turn infinity into NaN


_PART_BYTES = 1 << 19  # of the product, per step: fits a core's cache with its part of C and a temporary
SOURCE = Path(__file__).resolve().parent / "rounding.c"
_FLAGS = ("-std=c11", "-O3")


def finished(product: Any, types: ProductType, c: Any, out: np.ndarray | None, threads: int) -> Any:
    """C = alpha · product + beta · c in C's type, in `out` if given, else in the product's memory if possible.

    Overwrites the product. `out` may be the product's memory, or `c`, but must not overlap them otherwise. `c` is not read if
    beta is 0. The sum is computed in the product's type, complex if C is: in a narrower one, beta · c would be rounded, or
    overflow. Threads take row blocks that stay in a core's cache.
    """
    gemm = types.gemm
    if out is not None:
        into = product if np.may_share_memory(out, product) else out
    else:
        into = empty_beside(product, product.shape, numpy_type(types.result)) if types.converts else product
    if c is not None:
        c = to_device_of(product, c) if on_gpu(product) else on_host(c)
    wide = product.dtype
    if into.dtype.kind == "c" and wide.kind != "c":
        wide = np.result_type(wide, np.complex64)
    wide_c = np.result_type(wide, c.dtype) if c is not None else wide
    is_rounded = not on_gpu(product) and product.dtype == np.float32 and into.dtype.name in _SHORT

    def work(rows: Span) -> None:
        part = product[rows.slice].astype(wide, copy=False)
        with np.errstate(all="ignore"):
            if gemm.alpha != 1:
                part *= gemm.alpha
            if gemm.beta != 0:
                part += c[rows.slice] if gemm.beta == 1 else gemm.beta * c[rows.slice].astype(wide_c, copy=False)
            if is_rounded and part.dtype == np.float32:
                _round_into(into[rows.slice], part)
            elif into is not product:
                into[rows.slice] = part

    # A single step reads nothing twice.
    by_rows(product, work, threads, CALL_BYTES if is_rounded and not gemm.combines else _PART_BYTES)
    return into


def _round_into(into: np.ndarray, numbers: np.ndarray) -> None:
    """Round float32 to 16 bits, in C at memory bandwidth; by NumPy if the library is missing."""
    library = _library().loaded
    if library is None or not (numbers.flags.c_contiguous and into.flags.c_contiguous and into.dtype.isnative):
        into[...] = numbers
        return
    getattr(library, f"round_to_{into.dtype.name}")(numbers.ctypes.data, into.ctypes.data, numbers.size)


@cache
def _library() -> LoadedSoon:
    return LoadedSoon(load)


def load() -> Any:
    """The compiled library. HybridError without a C compiler, or if it does not compile."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    for function in (library.round_to_float16, library.round_to_bfloat16):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return library
