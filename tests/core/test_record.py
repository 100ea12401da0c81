# SPDX-License-Identifier: MIT
"""A record behaves as a frozen dataclass does."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from hybrid.core.record import record


class Fields:
    """Of both classes below."""

    first: int
    second: str = "two"
    listed: list[int] = field(default_factory=list, hash=False)
    ignored: int = field(default=0, compare=False, metadata={"help": "no part of the value"})

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(self.first)


def made(decorator, name):
    body = {key: value for key, value in vars(Fields).items() if key not in ("__dict__", "__weakref__")}
    return decorator(type(name, (), body | {"__qualname__": name}))


Record = made(record, "Record")
Standard = made(dataclass(frozen=True), "Standard")


@record
class One:
    """With a single field."""

    only: tuple[int, ...]


CALLS = [((1,), {}), ((1, "b"), {}), ((1,), {"listed": [3]}), ((), {"first": 2, "ignored": 5}), ((2, "c", [1], 4), {})]


@pytest.mark.parametrize(("arguments", "named"), CALLS)
def test_fields_text_and_copies_are_those_of_a_dataclass(arguments, named):
    ours, standard = Record(*arguments, **named), Standard(*arguments, **named)
    assert asdict(ours) == asdict(standard)
    assert repr(ours) == repr(standard).replace("Standard", "Record")
    assert asdict(replace(ours, first=9)) == asdict(replace(standard, first=9))
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert [(each.name, each.metadata) for each in fields(ours)] == [(each.name, each.metadata) for each in fields(standard)]


def test_equality_and_hash_are_those_of_a_dataclass():
    ours, standard = ([cls(*arguments, **named) for arguments, named in CALLS] for cls in (Record, Standard))
    assert [[one == other for other in ours] for one in ours] == [[one == other for other in standard] for one in standard]
    assert Record(1, ignored=1) == Record(1, ignored=2)
    assert hash(Record(1, listed=[1], ignored=1)) == hash(Record(1, listed=[2], ignored=2))
    assert hash(Record(1)) != hash(Record(2))
    assert Record(1) != Standard(1)
    assert One((1,)) == One((1,)) != One((2,))
    heirs = type("Heir", (One,), {}), type("Other", (One,), {})
    assert heirs[0]((1,)) == heirs[0]((1,)) != heirs[1]((1,))
    assert heirs[0]((1,)) != One((1,))
    assert len({One((1,)), One((1,)), One((2,))}) == 2


def test_each_record_gets_a_list_of_its_own():
    assert Record(1).listed is not Record(1).listed


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4, 5)])
def test_a_wrong_number_of_arguments_is_refused(arguments):
    with pytest.raises(TypeError):
        Record(*arguments)


def test_a_record_is_checked_when_it_is_made_and_never_changes():
    with pytest.raises(ValueError, match="-1"):
        Record(-1)
    ours = Record(1)
    with pytest.raises(FrozenInstanceError):
        ours.first = 2
    with pytest.raises(FrozenInstanceError):
        del ours.first
    assert ours.first == 1
