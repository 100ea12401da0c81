"""What the lectures' scripts call that which they measure, in their tables and in the lines that they record."""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]

END = "end"  # the part of a run's last line

# Of programs and exercises, with the kernel that each runs where it is always the same one.
DESIGNS = ("naive", "row_per_thread", "column_per_thread")  # lecture_pmpp: a thread an element, a row, a column
FORMS = ("square", "tall", "wide")  # of C there
PROGRAMS_2D = {"MM-CPU": "loops", "MM-GPU-GM": "naive", "MM-GPU-SM": "tiled32"}
MODULE_PROGRAMS = {"multNoShare": "naive", "multShare": "tiled"}  # lecture_hochberg
SIEGEL_PROGRAMS = {"matmul1": "naive", "matmul2": "tiled"}
ORDERS = {"loops": "i j k", "loops_ikj": "i k j"}  # of its sequential program's loops
TYPES = ("int32", "int64", "float32", "float64")  # pascal
