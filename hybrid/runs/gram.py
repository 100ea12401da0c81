# SPDX-License-Identifier: MIT
"""Gram matrices (a matrix times its own conjugate transpose) of arrays, of RowBlocks, and of files in slabs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Distributed, RowBlock
from hybrid.arrays.gemm import numpy_type, product_type, type_name
from hybrid.arrays.interop import await_callers_work, empty_beside, empty_on_gpu, on_device_of, on_gpu, to_device_of
from hybrid.arrays.root_operands import arrays_of
from hybrid.core.problem import INTEGERS, Span, pieces
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.execution.compiled import Compiled, one_call
from hybrid.execution.multiply import empty_shared
from hybrid.execution.redistribution import scattered
from hybrid.execution.session import take_inventory
from hybrid.execution.whole_copies import WholeCopies
from hybrid.host.memory import available_host_bytes, copy_rows, empty_matrix, empty_result
from hybrid.host.threads import usable_cores
from hybrid.planning.decision import Machine, gpu_for_arrays
from hybrid.ranks.heartbeat import busy
from hybrid.runs.operands import FileElements

_SLAB_BYTES = 256 << 20  # of a slab of a file's rows


class Gram:
    """a·aᴴ; with `transposed`, aᴴ·a. `options`: all keywords of `multiply` except `out`, for each of the products."""

    def __init__(self, transposed: bool, comm: Any, root: int, options: Mapping[str, Any]) -> None:
        self._transposed, self._comm, self._root, self._options = transposed, comm, root, options
        self._stall = options["stall"]

    def of(self, a: Any) -> Any:
        """The Gram matrix of this array, RowBlock or file."""
        is_rows, is_file = isinstance(a, RowBlock), isinstance(a, (str, os.PathLike))
        if is_rows and self._comm is None:
            self._comm = a.comm
        with one_call(self._comm, self._stall) as session:
            with session.team.phase("agree", timed=False) as looking:
                session.team.refuse_no_rank(self._root)
                if isinstance(a, Distributed) and not is_rows:
                    raise UsageError("gram takes no Block2D: use a @ a.T, or hybrid.scatter(a)", code="mixed-kinds")
                if is_file and session.team.size > 1:
                    raise UsageError("one process reads a file: call gram(path) without comm", code="communicator")
                if not (is_rows or is_file):
                    a = arrays_of(a, a, on_device=True)[0] if session.team.rank == self._root else None
                    if a is not None and a.ndim != 2:
                        raise UsageError(f"a has {a.ndim} dimensions: gram takes a matrix", code="dimensions")
                looking.mine = is_rows, getattr(a, "dtype", None)
            if len({of_rows for of_rows, _ in looking.all}) > 1:
                raise UsageError("a is a RowBlock on some ranks only: pass one on every rank, or none", code="mixed-kinds")
        if is_file:
            return self._of_file(os.fspath(a))
        self._choose_type(a.dtype if is_rows else looking.all[self._root][1])
        return self._of_rows(a) if is_rows else self._of_matrix(a)

    def _choose_type(self, held: np.dtype) -> None:
        """Choose C's type for elements of this type: NumPy's, but int64 for integers."""
        asked = type_name(self._options["dtype"]) or ("int64" if held.kind in "biu" else "")
        self._result = product_type(held, held, asked).result

    def _products(self, a: Any, b: Any, c: Any, options: Mapping[str, Any]) -> Compiled:
        return Compiled.of((a, b, c), self._comm, self._root, {**self._options, "dtype": self._result, **options})

    def _product(self, a: Any, b: Any, **options: Any) -> Any:
        return self._products(a, b, None, options).run(a, b, None, None)

    def _of_matrix(self, a: Any, c: Any = None, out: Any = None) -> Any:
        """The Gram matrix of the root's array, None elsewhere; of real numbers plus `c`, and in `out`, if given."""
        if not self._result.startswith("complex"):
            return self._of_real(a, c, out, beta=None if c is None else 1)
        is_alone = self._comm is None or self._comm.Get_size() == 1
        if a is not None and not on_gpu(a) and is_alone and (by_gpu := self._copied_once(a)) is not None:
            return by_gpu
        # With v = x + iy, and r = x above y: Re vᴴ·v = rᵀ·r, one triangle of it, and Im vᴴ·v = p - pᵀ for p = xᵀ·y. This takes
        # half the multiply-adds of a complex product. a·aᴴ is the conjugate for v = aᵀ.
        first = second = both = None
        if a is not None:
            v = a if self._transposed else a.T
            both = empty_beside(a, (2 * len(v), v.shape[1]), a.real.dtype.newbyteorder("="))
            x, y = both[: len(v)], both[len(v) :]
            with on_device_of(a):
                for half, of_v in ((x, v.real), (y, v.imag)):
                    copy_rows(half, of_v, 1 if on_gpu(a) else self._threads)
            first, second, both = (x.T, y, both) if self._transposed else (y.T, x, both.T)
        dtype = {"complex64": "float32", "complex128": "float64"}[self._result]
        real, twisted = self._of_real(both, dtype=dtype), self._product(first, second, dtype=dtype)
        if a is None:
            return None
        made = empty_beside(real, real.shape, self._result)
        with on_device_of(real):
            made.real[...], made.imag[...] = real, twisted - twisted.T
        await_callers_work(made)
        return made

    def _copied_once(self, a: np.ndarray) -> np.ndarray | None:
        """The complex Gram matrix on this process's GPU, with one H2D copy of A and one D2H copy of C. None if another way is
        faster or asked for, or the GPU's memory is too small."""
        settings = Settings.gather({name: self._options[name] for name in ("device", "kernel", "transport", "precision", "check",
                                                                           "on_fault", "threads", "gpu_memory")})  # fmt: skip
        if settings.check == "host" or settings.on_fault == "repair" or settings.gpu_memory:
            return None
        n, l = a.shape[::-1] if self._transposed else a.shape
        copies: Any = None
        try:
            with one_call(self._comm, self._stall) as session:
                usable_gpus()  # raises without a GPU: the rest would take as long as a small product
                machine = Machine(session.team.topology, (take_inventory(session, settings),))
                problem = product_type(a.dtype, a.dtype, self._result).problem(n, l, n)
                if (gpu := gpu_for_arrays(machine, problem, settings)) is None:
                    return None
                with session.team.phase("scatter", timed=False), busy():
                    device, c = session.device_of_alone(gpu), empty_result(n, n, self._result)
                    copies = WholeCopies(device, [a], c, self._threads, check=settings.check)
                    there = copies.to_gpu("A", a)
                    copies.make_caller_wait()
            made = self._of_matrix(there)
            with one_call(self._comm, self._stall):
                copies.to_host(made, c)
                copies.verify()
        except BaseException as error:
            if copies is not None:
                with one_call(self._comm, self._stall):
                    copies.abandon()
            if isinstance(error, (DeviceUnavailable, MemoryError)):
                return None
            raise
        return c

    def _of_real(self, a: Any, c: Any = None, out: Any = None, **options: Any) -> Any:
        """As `_of_matrix`, for a real array. If all of C was computed, rounding may differ below the diagonal, so the upper
        triangle is mirrored."""
        turned = None if a is None else a.T
        first, second = (turned, a) if self._transposed else (a, turned)
        products = self._products(first, second, c, options)
        c = products.run(first, second, c, out)
        if c is None or c.dtype.kind in "biu" or products.by_triangle:
            return c
        with on_device_of(c):
            np.copyto(c, c.T.copy(), where=to_device_of(c, np.tri(len(c), k=-1, dtype=bool)))
        await_callers_work(c)
        return c

    @property
    def _threads(self) -> int:
        return self._options["threads"] or len(usable_cores())

    def _of_rows(self, a: RowBlock) -> RowBlock:
        """The Gram matrix of RowBlocks. Rounding may differ between ranks, so the upper triangle is mirrored."""
        turned = dict.fromkeys(("transpose_a", "conjugate_a") if self._transposed else ("transpose_b", "conjugate_b"), True)
        c = self._product(a, a, **turned)
        if self._result in ("bool", *INTEGERS):
            return c
        with one_call(self._comm, self._stall) as session:
            mirrored = scattered(session, c.T, len(c.array), 0, self._stall).array.conj()
        rows, columns = c.indices
        with on_device_of(c.array):
            below, mirrored = (to_device_of(c.array, each) for each in (rows[:, None] > columns, mirrored))
            np.copyto(c.array, mirrored, where=below)
            if c.dtype.kind == "c":
                np.copyto(c.array.imag, 0, where=to_device_of(c.array, rows[:, None] == columns))
        return c

    def _of_file(self, name: str) -> Any:
        """The Gram matrix of a file, in host memory: the sum over its slabs, or the products of all pairs of slabs."""
        file = FileElements(name)
        file.load()
        self._choose_type(file.dtype)
        settings = Settings.gather({"device": self._options["device"]})
        height, width = file.shape
        at_once = _SLAB_BYTES if self._transposed else max(_SLAB_BYTES, available_host_bytes() // 8)
        rows = settings.slab_rows or at_once // max(1, width * file.dtype.itemsize)
        slabs = [*pieces(Span(0, height), max(1, rows))] or [Span(0, 0)]
        read = self._slabs(file, slabs)
        if len(slabs) == 1:
            return self._of_matrix(next(read))
        return self._sum(read, len(slabs), width, settings) if self._transposed else self._of_pairs(file, slabs)

    def _slabs(self, file: FileElements, slabs: Sequence[Span]) -> Iterator[np.ndarray]:
        """The slabs in turn, double buffered: the next slab is read while one is multiplied."""
        buffers = [empty_matrix(len(slabs[0]), file.shape[1], file.dtype) for _ in slabs[:2]]
        into = [buffers[number % 2][: len(rows)] for number, rows in enumerate(slabs)]
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(file.write, slabs[0], into[0], self._threads, tell_nobody)
            for number, slab in enumerate(into):
                reading.result()
                if number + 1 < len(slabs):
                    reading = pool.submit(file.write, slabs[number + 1], into[number + 1], self._threads, tell_nobody)
                yield slab

    def _sum(self, slabs: Iterator[np.ndarray], count: int, width: int, settings: Settings) -> Any:
        """The sum of the slabs' Gram matrices. Sums of integers stay on the GPU, if there is one, until the last is added."""
        there: Any = None
        c: Any = None
        result = self._result
        if result in INTEGERS and settings.device in ("auto", "cuda"):
            with suppress(DeviceUnavailable), one_call(None, self._stall):
                there = empty_on_gpu(usable_gpus()[0].index, (width, width), result)
        if result in ("float16", "bfloat16"):  # round once, at the end
            self._result = "float32"
        for number, slab in enumerate(slabs, 1):
            if result.startswith("complex"):
                of_slab = self._of_matrix(slab)
                c = of_slab if c is None else np.add(c, of_slab, out=c)
            else:
                c = self._of_matrix(slab, c, None if there is not None and number == count else there if c is None else c)
        return c.astype(numpy_type(result), copy=False)

    def _of_pairs(self, file: FileElements, slabs: Sequence[Span]) -> Any:
        """The Gram matrix by the products of all pairs of slabs: each slab is read again for every later one."""
        with one_call(None, self._stall) as session:
            c: Any = empty_shared(session, (file.shape[0],) * 2, self._result, 0, self._stall)
        for number, rows in enumerate(slabs):
            own = next(self._slabs(file, [rows]))
            for others, read in zip(slabs[:number], self._slabs(file, slabs[:number]) if number else (), strict=True):
                across = self._product(own, read, transpose_b=True, conjugate_b=True)
                c[rows.slice, others.slice], c[others.slice, rows.slice] = across, across.conj().T
            c[rows.slice, rows.slice] = self._of_matrix(own)
        return c
