# SPDX-License-Identifier: MIT
"""`@record`: a frozen dataclass that is made in a fraction of the time.

`dataclass(frozen=True)` compiles six functions for every class, which took half of the time in which the modules of a command
were imported. Here one is compiled, `__init__`; the others are the same for all classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """typing has it since Python 3.11; only type checkers read it."""
        return lambda decorator: decorator


_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: _Class) -> _Class:
    """Make the class what `dataclass(frozen=True)` makes of it.

    Of the arguments of `field` it understands default, default_factory, compare, hash and metadata. `dataclasses.replace`,
    `fields` and `asdict` work on records.
    """
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    names = [each.name for each in fields(made)]
    compared = _values([each.name for each in fields(made) if each.compare])
    hashed = _values([each.name for each in fields(made) if (each.compare if each.hash is None else each.hash)])
    made.__init__ = _compiled_init(made)
    made.__setattr__ = made.__delattr__ = _refuse
    made.__repr__ = lambda self: f"{cls.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
    made.__eq__ = lambda self, other: compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented
    made.__hash__ = lambda self: hash(hashed(self))
    return made


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns these fields of a record as a tuple, as fast as compiled code."""
    return attrgetter(*names) if len(names) > 1 else lambda record: tuple(getattr(record, name) for name in names)


def _compiled_init(cls: Any) -> Any:
    """An `__init__` that sets the fields of the frozen class, and calls its `__post_init__` if it has one."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    parameters, body = ["self"], []
    for each in fields(cls):
        name, value = each.name, each.name
        if each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        body.append(f" _set(self, {name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()\n")
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(body) or ' pass'}", known)  # noqa: S102 (names of fields alone)
    return known["__init__"]


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r}")
