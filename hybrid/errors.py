# SPDX-License-Identifier: MIT
"""The failures that a user can act on. Each message is one line: what is wrong, where, and what to do."""

from __future__ import annotations

# Every code of a refusal, failure, fault or finding, and what it means: docs/failures.md is built with it.
CODES: dict[str, str] = {
    # arguments and options
    "usage": "an option or argument is missing, or one too many",
    "option": "an option is unknown, incomplete or missing",
    "option-combination": "options do not go together, or one needs another",
    "number": "a value is no number of its kind, or beyond its limits",
    "setting": "there is no such value; the nearest one is named",
    "environment": "a variable HYBRID_… is unknown, or its value is",
    "ranks-differ": "ranks differ in options, sizes, types, settings or code",
    "reentered": "the call came from within another call of the same thread",
    # operands
    "shapes": "the shapes of operands, file or result do not fit together",
    "sizes": "sizes are missing, negative, or too large for any machine",
    "dimensions": "an operand has other than one or two dimensions and is no stack",
    "dtype": "a type cannot be multiplied, held or converted without loss",
    "no-numbers": "an operand or file holds no array of numbers",
    "no-operand": "the root has no matrix to multiply",
    "no-array": "a part of a distributed matrix was passed where an array is wanted",
    "mixed-kinds": "root arrays, RowBlocks and Block2Ds, or devices, are mixed",
    "masked": "masked elements have no product",
    "scalars": "this product cannot have this alpha, beta or op",
    "modulus": "the modulus is no whole number from 1 to 2⁶³, or the type is no integer type that holds the remainders",
    "addend": "c does not fit the product, lacks beta, or is missing",
    "out": "out cannot hold the result (shape, type, strides, read-only), or is not wanted",
    "overlap": "out shares memory with an operand",
    "blocks": "the bounds, grid or descriptor of Block2Ds are wrong",
    "rows": "the ranks' numbers of rows do not add up, or a rank does not have the rows asked for",
    "root": "the root is no rank of the communicator",
    "communicator": "there is no communicator, or it is no longer usable",
    "too-long": "numbers would grow beyond what can be exact",
    "grid": "the grid of nodes does not fit the job",
    "kernel-unfit": "the kernel does not take this type, shape or GPU",
    "kernel-device": "the kernel runs on another device than the one asked for",
    "machine-model": "the file of HYBRID_MACHINE holds no machine model, or impossible numbers",
    "graph": "the input is no graph or transition matrix",
    # files
    "file-missing": "there is no such file or folder",
    "file-unreadable": "the file cannot be read",
    "file-format": "the file is malformed, cut short, or of another format",
    "file-kind": "files with this ending cannot be written, or not in this way",
    "file-values": "the file holds values beyond the type asked for",
    "dataset-missing": "the file has no such dataset, or several and none is named",
    "file-exists": "an existing file would be lost; remove it or name another",
    "file-unwritable": "the file cannot be written",
    "file-locked": "another process has the file open for writing",
    "file-shared": "another user has written this journal, or may have",
    "file-changed": "the file was changed while it was read",
    "same-file": "two options name one file",
    "resume-other": "the parts on disk are of another product",
    "output-lost": "standard output cannot be written",
    # memory, disks and devices
    "host-memory": "a node has too little memory; nothing was allocated",
    "shared-memory": "the folder /dev/shm is missing, or too small for MPI",
    "gpu-memory": "a GPU, or --gpu-memory, has too little memory",
    "disk-full": "the disk has no room for the file",
    "out-of-memory": "an allocation failed while the job ran",
    "threads": "fewer threads could be started than asked for",
    "package-missing": "an optional Python package is missing, or does not load",
    "installation": "files of this package are missing",
    "no-gpu": "there is no GPU, driver or CUDA that can be used",
    "gpu-failed": "CUDA reports an error of a GPU",
    "gpu-peers": "GPUs, or processes, cannot reach each other's memory",
    "gpu-data": "data arrived wrong between GPUs",
    "nccl": "NCCL cannot be used, or has failed",
    "transport": "the transport asked for cannot be used here",
    "no-compiler": "there is no compiler for the emulated GPU or the CPU's loops",
    "compile-failed": "a kernel does not compile",
    "kernel-cache": "compiled kernels cannot be kept",
    # start, ranks and end
    "start-failed": "MPI ended while it started",
    "wrong-mpirun": "the launcher belongs to another MPI than mpi4py's",
    "stale-launcher": "variables of a launcher are left over from another job",
    "mpi-missing": "no MPI, mpirun or mpicc was found, or it does not load",
    "mpi-threads": "this MPI has no support for threads",
    "rank-failed": "something unexpected happened on one rank",
    "rank-missing": "some ranks did not make the call",
    "rank-left": "a rank exited before the others were done",
    "killed": "a signal killed a rank",
    "stalled": "a rank made no progress for --stall seconds",
    "interrupted": "Ctrl-C or SIGINT",
    "terminated": "a rank was asked to end (SIGTERM)",
    "probe-failed": "a child process that examines the machine died",
    "failed": "a failure without a kind of its own",
    # results
    "check-product": "the product is not A·B",
    "check-copy": "a copy between host and GPU was wrong, or an operand was written meanwhile",
    "check-exchange": "data changed on the way from one rank to another",
    "overflow": "an element of an integer product is beyond its type",
    # findings of the doctor and the acceptance test
    "ok": "nothing is wrong",
    "unknown": "it could not be found out; the line says why",
    "mpi-differs": "ranks have different MPIs",
    "threads-crowded": "a node's ranks have more threads than it has cores",
    "threads-bound": "a rank has more threads than the cores that it is bound to",
    "blas-threads": "BLAS uses more threads than were set, or their number is unknown",
    "slurm-cores": "a rank has fewer cores than its task was given",
    "slurm-gpus": "the job has GPUs that a rank cannot use",
    "gpus-unused": "the test did not use all GPUs of the job",
    "slurm-tasks": "the ranks are not the tasks of the job",
    "pinned-limit": "ulimit -l keeps host memory from being pinned: slow copies",
    "gpu-shared": "ranks share a GPU",
    "gpu-idle": "there are GPUs that no rank uses",
    "gpu-health": "a GPU is slowed down, too hot, or has had ECC errors",
    "slow-link": "a link is slower than the others, or than GPUs of this model have",
    "slow-rank": "a rank's device multiplies slower than the others, or than GPUs of this model do",
    "too-short": "no multiplication was long enough to compare ranks",
    "left-out": "time or memory was too short for the large products",
    "wrong-device": "one rank's device computes wrong results",
    "wrong-rows": "the same rows are wrong on several ranks' devices",
    # the lab
    "lab-kernel": "the file has no such kernel, or several",
    "lab-launch": "the launch, its comment or its shared memory cannot be understood",
    "lab-parameters": "the meaning of a parameter of the kernel cannot be determined",
    "lab-shown": "this kernel, tile or size cannot be shown",
    "lab-unsupported": "the emulated GPU does not have this call or type",
    "kernel-crashed": "the process that ran a kernel ended",
    "kernel-launch": "a kernel was launched with impossible values",
    "kernel-barrier": "threads of a block do not meet at the same barrier",
    "kernel-warp": "threads of a warp do not meet in a *_sync operation",
    "kernel-copy": "cp.async was used in an undefined way",
    "kernel-memory": "a kernel used memory in an undefined way",
    "kernel-assert": "an assert() in a kernel failed",
    "data-race": "two threads use an element without a barrier between, and one writes",
    "out-of-bounds": "an index is beyond its array",
    "illegal-address": "a pointer is null, freed, of the other memory (host or device), or cannot be freed",
    "uninitialised": "memory is read that nothing has written",
    "no-value": "a variable is used that has no value yet",
    "several-writers": "elements of C are written by several threads",
    "never-written": "elements of C are written by no thread",
    "too-early": "the measured time does not contain the kernel, or all of it",
    "mpi-memory": "a call of MPI is given memory of another type, that it may not use or has no result yet; or ranks disagree",
    "not-sent": "a factor is all zeros, or an argument not finite, on some ranks of a program alone",
    "one-sided": "a check of a result accepts all that are too large, or all that are too small",
    "always-zero": "a quotient of whole numbers is always 0 where a fraction is meant",
    "own-check": "the program prints that its own check of the result failed",
    "unused": "device memory is filled but not read, or computed but not copied back",
    "wrong-elements": "elements of C are wrong",
    "wrong-unit": "a time in milliseconds is called seconds",
    "wrong-operand": "C is the product of one factor with itself, or of exchanged ones",
    "wrong-terms": "elements of C are not the sums of their l products",
    "wrong-stride": "a factor is read with a wrong row stride",
    "transposed-index": "row and column are exchanged in an index",
    "order-dependent": "C depends on the order in which threads run",
    "no-end": "the program or kernel did not end in time",
    "no-result": "the result is no C",
    "segmentation-fault": "host code used memory that is not its own",
    "zero-division": "an integer is divided by zero",
    "undefined": "C++ does not define what the code does",
    "exit-status": "the program ended itself early",
    "raised": "Python raised an exception",
    "cuda-call": "a CUDA call failed",
}


def known(code: str) -> str:
    assert code in CODES, f"{code!r} is not in hybrid.errors.CODES"
    return code


class HybridError(Exception):
    """Base class of all failures whose message is meant for the user.

    Attributes
    ----------
    code : str
        Which failure it is, one of `CODES`: stable when the wording changes. Each class has a default.
    exit_code : int
        The exit code of a command that fails so.
    on_all_ranks : bool
        Whether every rank raises this error, so that none waits for another.
    """

    code = "failed"
    exit_code = 1
    on_all_ranks = False

    def __init__(self, *arguments: object, code: str = "") -> None:
        super().__init__(*arguments)
        self.code = known(code or self.code)


class UsageError(HybridError, ValueError):
    """An option, argument, size or type that makes no sense, or that differs between the ranks. Exit code 2."""

    code = "usage"
    exit_code = 2


class NoArray(UsageError, TypeError):
    """A part of a distributed matrix was passed where NumPy wants an array."""

    code = "no-array"


class CheckFailed(HybridError, ArithmeticError):
    """C is not A·B, or a matrix changed on its way to another rank. Exit code 3."""

    code = "check-product"
    exit_code = 3


class Overflow(HybridError, OverflowError):
    """The result's type cannot hold an element of an integer product. Elements are never wrapped."""

    code = "overflow"


class DoesNotFit(HybridError, MemoryError):
    """The product needs more host, node-shared or GPU memory than there is."""

    code = "host-memory"


class DeviceUnavailable(HybridError, RuntimeError):
    """Some rank cannot use the device that was asked for."""

    code = "no-gpu"


class StartError(HybridError, RuntimeError):
    """MPI did not start, or does not see all processes that the launcher started. `remedy`: what to do, if known."""

    code = "start-failed"

    def __init__(self, what: str = "", remedy: str = "", *, code: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what, code=code)
        self.what, self.remedy = what, remedy


class RankFailed(HybridError, RuntimeError):
    """One rank raised an exception that is no HybridError; every rank raises this error, which quotes it."""

    code = "rank-failed"


class RankMissing(HybridError, RuntimeError):
    """Some ranks of the communicator have not called. The communicator cannot be used for another call."""

    code = "rank-missing"


_KINDS = (HybridError, UsageError, NoArray, CheckFailed, Overflow, DoesNotFit, DeviceUnavailable, StartError)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}


def one_line(error: BaseException) -> str:
    """The error's message on one line, after the name of its class unless the message needs none."""
    text = " ".join(str(error).split())
    if isinstance(error, HybridError):
        return text
    if isinstance(error, SystemExit):
        return f"left by sys.exit({error.code})"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    name = "out of memory" if type(error) is MemoryError else type(error).__name__
    return f"{name}: {text}" if text else name


def code_of(error: BaseException) -> str:
    """The error's code, also of an error that is no HybridError."""
    if isinstance(error, HybridError):
        return error.code
    causes = {KeyboardInterrupt: "interrupted", MemoryError: "out-of-memory", SystemExit: "rank-left"}
    return next((code for kind, code in causes.items() if isinstance(error, kind)), RankFailed.code)


def with_code(text: object, code: str) -> str:
    """The line printed for a failure: its text, then its code in brackets."""
    return f"{text} [{known(code)}]"


def rebuild(kind: str, text: str, code: str) -> HybridError:
    """The error of class `kind` that another rank raised; RankFailed for a class that is not of this module."""
    return _BY_NAME.get(kind, RankFailed)(text, code=code)
