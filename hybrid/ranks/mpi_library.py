"""The MPI library in use, as it describes itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

LARGE_COUNTS_SINCE = (4, 0)  # of the standard: messages of 2³¹ items and more
_BUILT_HERE = "this library's own"


@dataclass(frozen=True)
class Library:
    """What it is and what it provides."""

    name: str  # with its version
    standard: tuple[int, int]
    abi: str  # which mpi4py was built for
    asked: str  # the thread level
    provided: str
    threads_suffice: bool

    @property
    def family(self) -> str:
        """ "Open MPI" or "MPICH" (with those that descend from it): a launcher of the other one does not fit."""
        return "Open MPI" if "Open MPI" in self.name else "MPICH"

    @property
    def large_counts(self) -> bool:
        return self.standard >= LARGE_COUNTS_SINCE


def library_name(mpi: ModuleType) -> str:
    """Name and version, of mpi4py's MPI module. Known before MPI is started."""
    first = mpi.Get_library_version().split("\n")[0].strip("\0").split(",")[0]
    return " ".join(first.replace(" Version:", " ").split())


def library_in_use() -> Library:
    """Of this process, in which MPI has been started."""
    import mpi4py
    from mpi4py import MPI

    levels = {
        level: name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE") for level in (getattr(MPI, f"THREAD_{name}"),)
    }
    provided = MPI.Query_thread()
    parts = Path(MPI.__file__).name.split(".")  # MPI.mpich.cpython-311-….so where one mpi4py serves several MPIs
    return Library(
        library_name(MPI),
        MPI.Get_version(),
        parts[1] if len(parts) > 3 else _BUILT_HERE,
        str(mpi4py.rc.thread_level).upper(),
        levels.get(provided, str(provided)),
        provided >= MPI.THREAD_FUNNELED,
    )
