# SPDX-License-Identifier: MIT
"""Plans cached by call signature, so that a repeated call only checks its operands and multiplies.

The signature of a call in one process: shapes, dtypes and memory order of its matrices, and all options. Several ranks agree anew
at each call, since none knows what the others pass (`hybrid.execution.session` caches the decision), except for small products
that the root computes alone: ranks that repeat such a call tell each other so after the product, and agree if some rank does not.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from hybrid.arrays.distributed import Block2D, Distributed, RowBlock, common_communicator
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.interop import as_rows, await_callers_work, empty_beside, is_masked, may_share_gpu_memory
from hybrid.arrays.root_operands import RootMatrix, RootOperands
from hybrid.core.forks import one_at_a_time
from hybrid.core.problem import Span
from hybrid.core.settings import Settings, as_int
from hybrid.core.text import readable, tell_nobody
from hybrid.devices.base import Device
from hybrid.devices.cuda_gpus import callers_context
from hybrid.errors import CheckFailed, UsageError
from hybrid.execution.distributed_product import DistributedCall, RealProduct
from hybrid.execution.multiply import PRODUCT_OF_ROOT, Call, CopiedCall, GpuCall, RootCall, call_of
from hybrid.execution.product import RootProduct
from hybrid.execution.real_products import CallOptions, Operands, RealProducts
from hybrid.execution.session import Session, session_of
from hybrid.host.blas import OF_ONE_THREAD, UNDIVIDED
from hybrid.host.memory import empty_result, is_transpose
from hybrid.host.threads import limited_blas, limited_threads, undivided, usable_cores
from hybrid.planning.decision import Decision, core_quota_lately
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import is_alone, team_of
from hybrid.transport.rank_device import RankDevice
from hybrid.verification.check import settle
from hybrid.verification.freivalds import verify_alone

# One thread computes this many multiply-adds in 0.1 ms: waking others for less gains nothing, and costs ms on busy cores.
_ONE_THREAD_WORK = 1 << 21
_ELEMENT_COST = 16  # reading an element takes as long as this many multiply-adds
_MAX_COMPILED = 256  # signatures; their plans hold no matrices
_GEMM_OPTIONS = ("alpha", "beta", "transpose_a", "transpose_b", "conjugate_a", "conjugate_b", "dtype", "modulus")
_PROTOCOLS = ("__array_interface__", "__array__", "__cuda_array_interface__", "__dlpack__", "__buffer__")


@contextmanager
def one_call(comm: Any, stall: Any) -> Iterator[Session]:
    """Enter a call with the other ranks, one thread at a time in a process alone. Yields the communicator's session."""
    team = team_of(comm, stall)
    with one_at_a_time if team.size == 1 else nullcontext(), team.together(), callers_context():
        yield session_of(team)


class Compiled:
    """Computes the products of calls with one signature, and keeps their plan."""

    def __init__(self, comm: Any, root: Any, options: Mapping[str, Any]) -> None:
        gemm = {name: options[name] for name in _GEMM_OPTIONS}
        flags = {name: value for name, value in options.items() if name not in gemm}
        self._comm, self._stall, self._root, self._options = comm, options["stall"], root, options
        self._asked = CallOptions(as_int(root), gemm, flags)
        self._planned: _Planned | None = None
        self.by_triangle = False  # the last product was symmetric: one triangle computed and mirrored

    @classmethod
    def of(cls, operands: Operands, comm: Any, root: Any, options: Mapping[str, Any]) -> Compiled:
        """The entry for these operands (A, B, and C or None), cached or new. `options`: all keywords of the call but out."""
        signature = _signature_of(*operands)
        if signature is None or (comm is not None and not is_alone(comm)):
            return cls(common_communicator(operands) if comm is None else comm, root, options)
        key = signature, _key_of(root, options)
        try:
            found = _compiled.get(key)
        except TypeError:  # an option is unhashable
            return cls(None, root, options)
        if found is None:
            found = cls(None, root, options)
            with one_at_a_time:
                if len(_compiled) >= _MAX_COMPILED:
                    del _compiled[next(iter(_compiled))]
                _compiled[key] = found
        return found

    def run(self, a: Any, b: Any, c: Any, out: Any) -> Any:
        """The product of these operands, in `out` if given; None on ranks that receive none."""
        planned = self._planned
        if planned is not None:
            with one_at_a_time:
                if (product := planned.product_of(a, b, c, out)) is not None:
                    return product
        with one_call(self._comm, self._stall) as session:
            env, operands = _environment(), (a, b, c)
            key = self._key_of_repeatable(operands) if session.team.size > 1 else None
            known_in, repeats = session.repeatable.get(key, (None, None))
            if known_in == env:
                product, said = self._by_root_alone(session, operands, out, repeats)
                if all(each == repeats for each in said):
                    return product
            call = call_of(session, operands, out, self._asked)
            if isinstance(call, RootCall) and call.is_for_root:
                if key is not None and call.is_always_for_root:
                    # A hash of the options: a short message (`Messages.exchange`).
                    same = hashlib.blake2b(repr(key[1]).encode(), digest_size=16).digest()
                    session.repeatable[key] = env, ({"kind": PRODUCT_OF_ROOT, "repeats": same},)
                return self._by_root_alone(session, operands, out)[0]
            self.by_triangle = call.decision is not None and bool(call.decision.plan.problem.symmetric)
            if isinstance(call, DistributedCall) and call.sum_of is not None:
                own_a, own_b = (each.array for each in call.operands[:2])
                product = call.sum_of.own_rows(self._own_product(session, (own_a.T, own_b), call.sum_of.options))
            else:
                product = call.product()
                self._planned = _planned_for(session, call, env) if self._comm is None else None
        return replace(product, comm=self._comm) if isinstance(product, (RowBlock, Block2D)) else product

    def _key_of_repeatable(self, operands: Operands) -> tuple[Any, Any] | None:
        """The signature, None except at the root, and the options of a call that ranks may repeat; None for other calls."""
        signature = _signature_of(*operands)
        none_here = all(each is None for each in operands)
        if (signature is None and not none_here) or operands[2] is not None:  # C may lie in `out`, which the product overwrites
            return None
        key = signature, _key_of(self._root, self._options)
        with suppress(TypeError):  # an option is unhashable
            hash(key)
            return key
        return None

    def _by_root_alone(self, session: Session, operands: Operands, out: Any, mine: Any = None) -> tuple[Any, list[Any]]:
        """The product, None except at the root, and every rank's `mine`."""
        product = None
        with session.team.phase("multiply", timed=False) as multiplying, busy():
            multiplying.mine = mine
            if session.team.rank == self._asked.root:
                alone = self._alone(operands)
                product, self.by_triangle = alone.run(*operands, out), alone.by_triangle
        return product, multiplying.all

    def _own_product(self, session: Session, operands: tuple[Any, Any], options: Mapping[str, Any]) -> Any:
        """This rank's term of a sum of products."""
        with session.team.phase("multiply", timed=False), busy():
            # BLAS waits for its slowest thread: threads on other ranks' cores would slow it down.
            share = max(1, len(usable_cores()) // len(session.team.node_ranks))
            options = {"threads": self._options["threads"] or share, **options}
            try:
                return self._alone((*operands, None), **options).run(*operands, None, None)
            except CheckFailed as wrong:  # names this rank 0, as it computed alone: the phase adds its real number
                raise CheckFailed(re.sub(r", multiplied by [^;]*", "", str(wrong)), code=wrong.code) from None

    def decide(self, a: Any, b: Any, c: Any) -> tuple[str, Decision | None]:
        """How such products are computed, in words ("" for the usual way), and the decision; None if this rank has none."""
        with one_call(self._comm, self._stall) as session:
            env = _environment()
            call = call_of(session, (a, b, c), None, self._asked)
            if isinstance(call, RootCall) and call.is_for_root:
                with session.team.phase("agree", timed=False):
                    who = f"rank {self._asked.root} alone, which has the product of these arrays before all GPUs are joined"
                    is_root = session.team.rank == self._asked.root
                    return who, self._alone((a, b, c)).decide(a, b, c)[1] if is_root else None
            if isinstance(call, CopiedCall):
                call.abandon()
                return call.how, call.decision
            self._planned = _planned_for(session, call, env) if self._comm is None else None
        if isinstance(call, DistributedCall) and call.sum_of is not None:
            return "a sum of products: each rank multiplies its own rows", None
        return "" if call.decision else "a stack, whose products each rank computes whole", call.decision

    def _alone(self, operands: Operands, **options: Any) -> Compiled:
        """The entry for products by this rank alone. `options`: replace those of the call."""
        return Compiled.of(operands, None, 0, {**self._options, **options})

    def refuse(self, error: UsageError) -> NoReturn:
        """Raise the error on all ranks."""
        with one_call(self._comm, self._stall):
            raise error


_compiled: dict[Any, Compiled] = {}
os.register_at_fork(after_in_child=_compiled.clear)  # a forked child cannot use its parent's CUDA context


class _Planned(ABC):
    """The plan of a product by this process alone, ready to run on operands of the same signature."""

    def __init__(self, session: Session, settings: Settings, gemm: Gemm, decision: Decision, env: tuple[object, ...]) -> None:
        """`env`: `_environment()` from before the decision. `gemm`: with transposes at most."""
        plan = decision.plan
        self.session, self.settings, self.gemm, self.decision, self.plan = session, settings, gemm, decision, plan
        self._env = env
        self.shape, self.type = (plan.problem.n, plan.problem.m), np.dtype(plan.problem.dtype)
        self._host_bytes = 0 if settings.host_memory else plan.bytes_on_node(0)
        of_c = plan.problem.bytes(*self.shape) if plan.has_row_blocks else 0
        self._gpu_bytes = plan.bytes_on_gpu(0) + of_c if plan.device == "cuda" else 0
        self._key = type(self), settings, decision.placements  # with the plan, identifies the set-up on the device

    def product_of(self, a: Any, b: Any, c: Any, out: Any) -> Any:
        """The product, in `out` if given; None if the plan does not fit these operands. Callers hold `one_at_a_time`."""
        first, second = a.T if self.gemm.transpose_a else a, b.T if self.gemm.transpose_b else b
        return self.product(first, second, out) if self.takes(first, second, out) else None

    @abstractmethod
    def product(self, a: Any, b: Any, out: Any) -> Any:
        """op(A) · op(B), in `out` if given."""

    def holds(self) -> bool:
        """Whether the decision still holds: the environment is unchanged and memory suffices."""
        return _environment() == self._env and self.session.has_room(self._host_bytes, self._gpu_bytes)

    def takes(self, a: Any, b: Any, out: Any) -> bool:
        """Whether these host arrays can be multiplied in place, without a copy, and the decision still holds."""
        for each in (a, b):
            flags = each.flags
            if not ((flags.c_contiguous or flags.f_contiguous) and flags.aligned):
                return False
        if out is not None and not (
            type(out) is np.ndarray
            and (out.shape, out.dtype) == (self.shape, self.type)
            and out.flags.carray
            and not (np.may_share_memory(out, a) or np.may_share_memory(out, b))
        ):
            return False
        return self.holds()

    @property
    def device(self) -> RankDevice | None:
        """The session's device, if it is on the plan's GPU; else None."""
        made = self.session.rank_device
        return made if made is not None and made.gpu is self.decision.placements[0].gpu else None

    @contextmanager
    def on_gpu(self) -> Iterator[RankDevice]:
        """Enter a call with the GPU ready. Yields the device."""
        with self.session.team.together(), callers_context():
            self.session.use_gpu()
            self.session.team.enter("agree")
            assert self.session.rank_device is not None
            yield self.session.rank_device


def _planned_for(session: Session, call: Call, env: tuple[object, ...]) -> _Planned | None:
    """The plan to reuse for calls with this signature; None if every call must decide anew."""
    given = call.given if isinstance(call, RootCall) else call if isinstance(call, GpuCall) else None
    if given is None or call.decision is None:
        return None
    decision, plan, settings = call.decision, call.decision.plan, call.settings
    if settings.poison or not plan.problem.operations:
        return None
    arguments = session, settings, given.types.gemm, decision, env
    of_type = given.a.dtype == given.b.dtype == np.dtype(plan.problem.dtype)
    unconverted = of_type and not given.types.finishes and len(given.shape) == 2
    if plan.device == "cpu" and plan.at_root and not plan.staged:
        tiles = sum(len(arrival.releases) for arrival in plan.shares[0].order) if plan.problem.symmetric else 1
        if decision.kernel.name != "blas" or settings.on_fault != "raise" or tiles > 1:
            return None
        return _InProcess(*arguments, unconverted=unconverted and not plan.problem.symmetric)
    if unconverted and plan.device == "cuda" and plan.transport == "host":
        share = plan.shares[0]
        if isinstance(call, RootCall):
            return _ToGpu(*arguments) if plan.at_root and not call.on_gpu else None
        one_buffer = share.order and share.holds_all and share.layout.slots == 1
        return _OnGpu(*arguments) if one_buffer else None
    return None


class _InProcess(_Planned):
    """A product of NumPy matrices or vectors with BLAS in this process."""

    def __init__(self, *arguments: Any, unconverted: bool) -> None:
        """`unconverted`: BLAS reads operands of these dtypes and writes the result directly."""
        super().__init__(*arguments)
        p, self._check = self.plan.problem, self.plan.check != "off"
        self._multiply_adds = p.operations // 2
        work = max(self._multiply_adds, _ELEMENT_COST * p.bytes_of_matrices // p.item_size)
        self._threads = self.decision.placements[0].threads.count if work > _ONE_THREAD_WORK else 1
        self._device, self._unconverted = Device(), unconverted

    def product_of(self, a: Any, b: Any, c: Any, out: Any) -> Any:
        with self.session.team.together():
            self.session.team.enter("agree")
            if self._unconverted and (product := super().product_of(a, b, c, out)) is not None:
                return product
            return self._converted(a, b, c, out) if self.holds() else None

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        team, p, multiply = self.session.team, self.plan.problem, None
        c = out if out is not None else empty_result(*self.shape, p.dtype)
        team.enter("multiply")
        if self._check and not p.symmetric:
            multiply = partial(self._multiply, a, b, c)
        else:  # symmetric C: `verify_alone` cannot interleave the multiplication
            self._multiply(a, b, c)
        if self._check:
            how: dict[str, Any] = {"by": self.decision.multiplied_by, "problem": p, "multiply": multiply}
            check = verify_alone(a, b, c, self._threads, **how)
            team.enter("check")
            settle(check, warns=True)
        return c

    def _converted(self, a: Any, b: Any, c: Any, out: Any) -> Any:
        """The product when operands or result need a copy or conversion; None if the plan is for another product."""
        plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) and not is_masked(out) else out
        p, threads = self.plan.problem, self._threads
        try:
            given = RootOperands.of(a, b, c, plain_out, self.gemm, threads)
        except UsageError:  # the full call raises it
            return None
        types = given.types
        is_symmetric = not types.complex_b and is_transpose(given.a, given.b)
        if (types.computed, is_symmetric) != (p.dtype, bool(p.symmetric)):
            return None
        products = RealProducts(self.session.team, types, threads, given.core, c=given.c)
        for prime in types.primes:
            first, second = given.sources(threads, prime)
            rows = self._rows(first)
            products.add(self.product(rows, rows.T if is_symmetric else self._rows(second), given.real_out))
        return given.given_back(products.finish(given.out), out)

    def _rows(self, source: RootMatrix) -> np.ndarray:
        """A real matrix: in place if BLAS can read it, else a copy."""
        dtype = self.plan.problem.operand_dtype
        array = source.in_place(dtype, transposed=self.decision.reads_transposed)
        if array is None:
            array = empty_result(*source.shape, dtype)
            source.rows(Span(0, len(array)), array, self._threads, tell_nobody)
        return array

    def _multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        if self._multiply_adds <= UNDIVIDED:
            with limited_blas(undivided(self._threads)) if self._multiply_adds > OF_ONE_THREAD else nullcontext():
                self._device.multiply(a, b, c, [])
        else:
            with limited_threads(self._threads), busy():
                self._device.multiply(a, b, c, [])
        self._device.finish()


class _ToGpu(_Planned):
    """A product of NumPy matrices on this process's GPU, with H2D and D2H copies."""

    def takes(self, a: np.ndarray, b: np.ndarray, out: Any) -> bool:
        transposed = ("A" if a.flags.c_contiguous else "B") if is_transpose(a, b) else ""
        return transposed == self.plan.problem.symmetric and self.device is not None and super().takes(a, b, out)

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        with self.on_gpu() as ready:
            c = empty_result(*self.shape, self.type.name) if out is None else out
            made = ready.once_for_plan(self._key, self.plan, self._set_up)
            settle(made.of_arrays(a, b, c), warns=True)
        return c

    def _set_up(self) -> RootProduct:
        p = self.plan.problem
        operands = RootMatrix((p.n, p.l), None), RootMatrix((p.l, p.m), None)  # `of_arrays` gets the arrays
        return RootProduct(self.session, self.decision, operands, self.settings)


class _OnGpu(_Planned):
    """A product of CuPy matrices already on this process's GPU."""

    def takes(self, a: Any, b: Any, out: Any) -> bool:
        made = self.device
        if made is None or made.gpu is None or is_transpose(a, b) != bool(self.plan.problem.symmetric):
            return False
        for each in (a, b):
            flags = each.flags
            if not ((flags.c_contiguous or flags.f_contiguous) and each.device.id == made.gpu.index):
                return False
        if out is not None and not (
            type(out) is type(a)
            and out.device.id == made.gpu.index
            and out.flags.c_contiguous
            and (out.shape, out.dtype) == (self.shape, self.type)
            and not any(map(may_share_gpu_memory, (out, out), (a, b)))
        ):
            return False
        return self.holds()

    def product(self, a: Any, b: Any, out: Any) -> Any:
        with self.on_gpu() as ready:
            rows = [each if each.flags.c_contiguous else as_rows(each, self.type.name, device="cuda") for each in (a, b)]
            c = empty_beside(a, self.shape, self.type) if out is None else out
            await_callers_work(c)
            there = tuple(map(ready.device.holds, (*rows, c)))  # which arrays are used in place
            made = ready.once_for_plan((*self._key, there), self.plan, self._set_up)
            settle(made.of_arrays(*rows, c), warns=True)
        return c

    def _set_up(self) -> RealProduct:
        return RealProduct(self.session, self.decision, self.settings)


def _signature_of(a: Any, b: Any, c: Any) -> tuple[object, ...] | None:
    """What a plan for these operands depends on; None unless all are NumPy arrays, or all CuPy arrays. `c` may be None."""
    kind, cupy = type(a), sys.modules.get("cupy")
    if not (kind is np.ndarray or (cupy is not None and kind is cupy.ndarray)):
        return None
    if type(b) is not kind or not (c is None or type(c) is kind):
        return None
    same_memory = a is b or (a if a.base is None else a.base) is (b if b.base is None else b.base)  # such as a and a.T
    transposed = same_memory and ("A" if a.flags.c_contiguous else "B")
    return kind, a.shape, b.shape, c is not None and (c.shape, c.dtype), a.dtype, b.dtype, transposed


def _key_of(root: Any, options: Mapping[str, Any]) -> tuple[object, ...]:
    values = (root, *options.values())
    return values, tuple(map(type, values))  # since 1 == 1.0 == True


def _environment() -> tuple[object, ...]:
    """What a decision depends on that may change between calls: environment variables, usable cores, core quota."""
    variables: Mapping[Any, Any] = getattr(os.environ, "_data", None) or os.environ  # CPython's dict needs no decoding
    return dict(variables), usable_cores(), core_quota_lately()


class ProductPlan:
    """A product planned for operands of fixed shapes and types; made by `hybrid.plan`."""

    def __init__(self, operands: Operands, comm: Any, root: Any, options: Mapping[str, Any]) -> None:
        a, b, c = map(_stand_in, operands)
        self._signatures, self._how = tuple(map(_signature, (a, b, c))), (comm, root, options)
        self._who, self.decision = Compiled.of((a, b, c), *self._how).decide(a, b, c)

    def run(self, a: Any, b: Any, c: Any = None, *, out: Any = None) -> Any:
        """Compute the product like `hybrid.multiply` with the options of the plan. Every rank calls it.

        Parameters
        ----------
        a, b, c
            Operands of the planned shapes and types: NumPy or CuPy arrays at the root and None elsewhere, or distributed
            matrices on every rank.
        out
            As in `hybrid.multiply`.

        Returns
        -------
        ndarray or RowBlock or Block2D or None
            As in `hybrid.multiply`.

        Raises
        ------
        UsageError
            For operands of other shapes or types.
        HybridError
            Whatever `hybrid.multiply` raises.
        """
        compiled = Compiled.of((a, b, c), *self._how)
        for name, planned, given in zip("abc", self._signatures, map(_signature, (a, b, c)), strict=True):
            if planned != given:
                compiled.refuse(UsageError(f"{name} is {_text(given)}, and the plan is for {_text(planned)}", code="shapes"))
        return compiled.run(a, b, c, out)

    def explain(self) -> str:
        """How the product is computed, in a few lines: device, kernel, check, and the rows, threads and memory of each rank."""
        return "\n".join([*([self._who] if self._who else []), *(_lines(self.decision) if self.decision else [])])


def _stand_in(like: Any) -> Any:
    """The operand if it is an array; for an object with only shape and dtype, zeros that take no memory."""
    if like is None or any(hasattr(like, name) for name in _PROTOCOLS) or not (hasattr(like, "shape") and hasattr(like, "dtype")):
        return like
    return np.broadcast_to(np.zeros((), like.dtype), like.shape)


def _signature(operand: Any) -> Any:
    """Kind, shape and dtype of an operand; None for None."""
    if operand is None:
        return None
    kind = type(operand).__name__ if isinstance(operand, Distributed) else "array"
    operand = operand.array if isinstance(operand, Distributed) else operand
    array = operand if hasattr(operand, "shape") and hasattr(operand, "dtype") else np.asarray(operand)
    return kind, tuple(array.shape), str(array.dtype)


def _text(form: Any) -> str:
    return "None" if form is None else f"{form[0]} {form[1]} of {form[2]}"


def _lines(decision: Decision) -> Iterator[str]:
    plan, p = decision.plan, decision.plan.problem
    yield (
        f"C ({p.n}×{p.m}) = A ({p.n}×{p.l}) · B ({p.l}×{p.m})  {p.operand_dtype}  {p.operations / 1e9:.3g} GF  "
        f"matrices {readable(p.bytes_of_matrices)}{'  one triangle of C, mirrored' if p.symmetric else ''}"
    )
    yield f"kernel {decision.kernel.name} on {plan.device}: {decision.kernel_reason}; {decision.device_reason}"
    yield f"transport {plan.transport}: {decision.transport_reason}"
    if plan.device != "cpu":
        yield f"precision: {f'from remainders by {plan.moduli} moduli' if plan.moduli else 'native'}: {decision.precision_reason}"
    yield f"check: {plan.check}"
    for share, placement in zip(plan.shares, decision.placements, strict=True):
        threads = placement.threads
        yield f"{placement.name}: rows {share.rows}, {threads.count} threads ({threads.reason})"
    for node in range(len(plan.topology.nodes)):
        yield f"node {node}: {readable(plan.bytes_on_node(node))} of host memory"
