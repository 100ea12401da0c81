"""What a recorded line must have before a report takes it: its keys, and a test for each one's value.

Lines come from files, which may hold anything. What passes is finite, short, printable, and of the type that the scripts expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from hosts_results import NAMES
from ladder_table import YARDSTICK, rungs
from lecture_names import DESIGNS, END, FORMS, MODULE_PROGRAMS, ORDERS, PROGRAMS_2D, SIEGEL_PROGRAMS, TYPES, Line

from hybrid.kernels.catalogue import BOTH

Test = Callable[[Any], bool]
Shape = Mapping[str, Test]

LONGEST_NAME, LONGEST_TEXT = 120, 4000
MOST = 10**15
LEAST_FRACTION = 1e-15


# --- tests of a value


def text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def name(value: Any) -> bool:
    """What stands in a picture, where dollars would begin a formula."""
    return text(value, LONGEST_NAME) and bool(value.strip()) and "$" not in value


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def count(value: Any) -> bool:
    return whole(value) and value > 0


def positive(value: Any) -> bool:
    return real(value) and value >= LEAST_FRACTION


def real(value: Any) -> bool:
    """Neither NaN nor infinite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e3 * MOST


def spread(value: Any) -> bool:
    return isinstance(value, dict) and all(positive(value.get(key)) for key in ("median", "min", "max"))


def date(value: Any) -> bool:
    try:
        return text(value, LONGEST_NAME) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def machine(value: Any) -> bool:
    return isinstance(value, dict) and name(value.get("processor")) and count(value.get("cores"))


def element(value: Any) -> bool:
    """Of a product that should be the identity."""
    places = ("size", "row", "column")
    if not isinstance(value, dict) or set(value) != {*places, "value"} or not all(whole(value[key]) for key in places):
        return False
    return real(value["value"])


def nothing(value: Any) -> bool:
    return value is None


def among(*names: str) -> Test:
    return lambda value: isinstance(value, str) and value in names


def or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def several(test: Test, least: int = 1, most: int = 100) -> Test:
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(test, value))


# --- lines


_RECORDED: Shape = {"date": date, "machine": machine}
_LECTURE: Shape = {**_RECORDED, "run": text, "command": text}
_DEVICE: Shape = {**_LECTURE, "device": among("cuda", "emulate"), "gpu": or_none(name)}
_GPU: Shape = {**_RECORDED, "command": text, "gpu": name}
_SIDES: Shape = {"n": count, "l": count, "m": count}
_TIMED: Shape = {"n": count, "seconds": spread}
_PROGRAM_2D: Shape = {
    **_DEVICE, "program": among(*PROGRAMS_2D), "width": count, "runs": several(positive), "kernel_seconds": or_none(spread)
}  # fmt: skip
_HOCHBERG: Shape = {**_DEVICE, "program": among(*MODULE_PROGRAMS), "size": count, "seconds": spread}
_SEVERAL: Shape = {**_DEVICE, **_TIMED, "devices": count}
_MULTIPLIED: Shape = {
    **_DEVICE, "dtype": among(*BOTH), "memory": count, "n": count, "kernel": name, "seconds": positive
}  # fmt: skip
_LADDER: Shape = {
    **_GPU, **_SIDES, "driver": name, "cupy": name, "cublas": count, "dtype": among(*BOTH),
    "kernel": among(YARDSTICK, *(kernel.name for kernel in rungs())), "tile": or_none(several(whole, 2, 2)),
    "registers": or_none(whole), "shared": or_none(whole), "spills": or_none(whole),
}  # fmt: skip
_HOSTS: Shape = {
    **_LECTURE, "device": among("cuda", "cpu", "emulate"), "gpu": or_none(name), "gpus_there": whole,
    "versions": lambda value: isinstance(value, dict) and all(map(name, value.values())),
}  # fmt: skip
_PASCAL: Shape = {**_RECORDED, "arguments": several(text, 0), "dtype": among(*TYPES)}

SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "lecture_pmpp": {
        "exercise 1": {**_DEVICE, **_SIDES, "kernel": among(*DESIGNS), "form": among(*FORMS), "seconds": spread},
        "exercise 2": {**_DEVICE, **_TIMED, "kernel": among("matvec", "matvec_warp")},
        END: _LECTURE,
    },
    "lecture_2d": {
        "programs": _PROGRAM_2D,
        "ragged": _PROGRAM_2D,
        "roof": {**_DEVICE, "roof": name, "bytes_per_second": positive, "operations_per_second": positive},
        END: _LECTURE,
    },
    "lecture_hochberg": {"kernel": _HOCHBERG, "wall": _HOCHBERG, END: _LECTURE},
    "lecture_siegel": {
        "seq": {**_DEVICE, **_TIMED, "kernel": among(*ORDERS)},
        "kernel": {**_DEVICE, **_TIMED, "program": among(*SIEGEL_PROGRAMS), "whole": spread},
        "loads": {**_DEVICE, "program": among(*SIEGEL_PROGRAMS), "a": several(positive, 3, 3), "b": several(positive, 3, 3)},
        "one process": _SEVERAL,
        "ranks": {**_SEVERAL, "total": spread},
        END: _LECTURE,
    },
    "largest": {
        "theoretical": {**_DEVICE, "dtype": among(*BOTH), "memory": count, "n": count},
        "in core": _MULTIPLIED,
        "held": {**_MULTIPLIED, "ended_by": text},
        "out of core": {**_MULTIPLIED, "ended_by": text},
        END: _LECTURE,
    },
    "ladder": {
        "timed": {**_LADDER, "seconds": spread, "teraflops": positive, "ratio": positive},
        "left out": {**_LADDER, "seconds": nothing},
    },
    "hosts": {
        "timed": {
            **_HOSTS, **_TIMED, "part": among(*NAMES, "larger", "wall", "small", "small, plain"), "gpus": count, "round": whole,
            "repeat": count,
        },
        "left out": {**_HOSTS, "left_out": text},
    },
    "pascal": {
        "all sizes": {
            **_PASCAL, "fit": count, "exact": count, "right": or_none(whole), "kernel": or_none(text),
            "reasons": several(text, 3, 3),
        },
        "one size": {**_PASCAL, "size": count, "wrong": or_none(element)},
    },
    "paths": {
        "": {
            **_RECORDED, "arguments": several(text), "graph": text, "length": whole, "ranks": count, "arithmetic": text,
            "products": whole, "seconds": positive, "rows": several(text), "columns": several(text),
            "numbers": several(several(text)),
        },
    },
}  # fmt: skip


def variant(kind: str, line: Line) -> Any:
    """Which of its script's lines it is."""
    if kind in ("ladder", "hosts"):
        return "timed" if line.get("seconds") else "left out"
    if kind == "pascal":
        return "one size" if "size" in line else "all sizes"
    if kind == "paths":
        return ""
    return line.get("way") if line.get("part") == "several" else line.get("part")


def fault(kind: str, line: Line) -> str:
    """What is wrong with a line; empty where nothing is."""
    which = variant(kind, line)
    shape = SHAPES[kind].get(which) if isinstance(which, str) else None
    if shape is None:
        return "it has no part that the script writes"
    missing = [key for key in shape if key not in line]
    if missing:
        return f"it has no {', '.join(missing)}"
    wrong = [key for key, test in shape.items() if not test(line[key])]
    if wrong:
        return f"what it has as {', '.join(wrong)} cannot be"
    if kind == "paths" and [len(row) for row in line["numbers"]] != [len(line["columns"])] * len(line["rows"]):
        return "it has not a number for each row and column"
    return ""
