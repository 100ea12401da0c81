# SPDX-License-Identifier: MIT
"""What a recorded line must have: a test for the value of each of its keys.

Lines come from files, which may hold anything. What passes is finite, short, printable, and of the type that is expected.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Test = Callable[[Any], bool]
Schema = Mapping[str, Test]

LONGEST_NAME, LONGEST_TEXT = 120, 4000
MOST = 10**15
LEAST_FRACTION = 1e-15


def text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def name(value: Any) -> bool:
    """What stands in a picture, where dollars would begin a formula."""
    return text(value, LONGEST_NAME) and bool(value.strip()) and "$" not in value


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def count(value: Any) -> bool:
    return whole(value) and value > 0


def real(value: Any) -> bool:
    """Neither NaN nor infinite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e3 * MOST


def positive(value: Any) -> bool:
    return real(value) and value >= LEAST_FRACTION


def spread(value: Any) -> bool:
    return isinstance(value, dict) and all(positive(value.get(key)) for key in ("median", "min", "max"))


def date(value: Any) -> bool:
    try:
        return text(value, LONGEST_NAME) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def machine(value: Any) -> bool:
    return isinstance(value, dict) and name(value.get("processor")) and count(value.get("cores"))


def among(*names: str) -> Test:
    return lambda value: isinstance(value, str) and value in names


def or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def several(test: Test, least: int = 1, most: int = 100) -> Test:
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(test, value))


RECORDED: Schema = {"date": date, "machine": machine, "arguments": several(text, 0)}
WHOLE_RUN: Schema = {**RECORDED, "run": text}  # of a run that says when it has come to its end
ON_DEVICE: Schema = {**WHOLE_RUN, "device": among("cuda", "emulate"), "gpu": or_none(name)}
SIDES: Schema = {"n": count, "l": count, "m": count}
TIMED: Schema = {"n": count, "seconds": spread}
