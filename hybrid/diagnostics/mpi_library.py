# SPDX-License-Identifier: MIT
"""The MPI library of a process, as it describes itself."""

from __future__ import annotations

from pathlib import Path

from hybrid.core.problem import record
from hybrid.ranks.mpi import library_name


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
        return self.standard >= (4, 0)


def library_in_use() -> Library:
    """The library of this process, in which MPI has been started."""
    import mpi4py
    from mpi4py import MPI

    provided = MPI.Query_thread()
    levels = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    parts = Path(MPI.__file__).name.split(".")  # MPI.mpich.cpython-311-….so where mpi4py has a build for each ABI
    return Library(
        library_name(MPI),
        MPI.Get_version(),
        parts[1] if len(parts) > 3 else "this library's own",
        str(mpi4py.rc.thread_level).upper(),
        levels.get(provided, str(provided)),
        provided >= MPI.THREAD_FUNNELED,
    )
