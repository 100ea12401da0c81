# SPDX-License-Identifier: MIT
"""The MPI library in use, as it describes itself."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from hybrid.core.record import record

LARGE_COUNTS_SINCE = (4, 0)  # version of the MPI standard that allows messages of 2³¹ items and more
_NATIVE_ABI = "this library's own"


@record
class Library:
    """An MPI library's version and what it provides."""

    name: str  # and version
    standard: tuple[int, int]
    abi: str  # for which mpi4py was built
    asked: str  # the thread level that was asked for, such as FUNNELED
    provided: str  # the thread level that the library has given
    threads_suffice: bool

    @property
    def family(self) -> str:
        """The family of MPIs to which the launcher must belong, too: "Open MPI" or "MPICH", which stands for those derived from
        it as well."""
        return "Open MPI" if "Open MPI" in self.name else "MPICH"

    @property
    def large_counts(self) -> bool:
        """Whether messages of 2³¹ items and more can be sent."""
        return self.standard >= LARGE_COUNTS_SINCE


def library_name(mpi: ModuleType) -> str:
    """Name and version of the library behind mpi4py's MPI module `mpi`; MPI need not be started."""
    first = mpi.Get_library_version().split("\n")[0].strip("\0").split(",")[0]
    return " ".join(first.replace(" Version:", " ").split())


def library_in_use() -> Library:
    """The library of this process, in which MPI has been started."""
    import mpi4py
    from mpi4py import MPI

    levels = {
        level: name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE") for level in (getattr(MPI, f"THREAD_{name}"),)
    }
    provided = MPI.Query_thread()
    parts = Path(MPI.__file__).name.split(".")  # MPI.mpich.cpython-311-….so where mpi4py has a build for each ABI
    return Library(
        library_name(MPI),
        MPI.Get_version(),
        parts[1] if len(parts) > 3 else _NATIVE_ABI,
        str(mpi4py.rc.thread_level).upper(),
        levels.get(provided, str(provided)),
        provided >= MPI.THREAD_FUNNELED,
    )
