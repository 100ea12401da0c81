# SPDX-License-Identifier: MIT
"""How texts of settings are read: numbers of bytes, rates of networks, and names that were nearly meant. What calls take."""

import re
from inspect import getdoc, signature

import pytest

import hybrid
from hybrid.commands.matmul import rate
from hybrid.core.settings import OF_CALLS, Settings, foreign_variables, nearest, parse_bytes
from hybrid.core.text import readable
from hybrid.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("65536", 65536), ("64k", 65536), ("64K", 65536), ("64KB", 65536), ("64KiB", 65536), ("1.5m", 3 << 19),
     ("141G", 141 << 30), ("141 GiB", 141 << 30), ("2t", 2 << 40), (" 5 ", 5), ("7b", 7), ("1e3", 1000)],
)  # fmt: skip
def test_bytes_are_read_with_their_units(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", " ", "k", "GiB", "5x", "5kk", "1,5g", "5 k 3", "inf", "nan", "1e999", "0x10", "--5", "٣"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "per_second"), [("25GB/s", 25e9), ("100Gbit/s", 12.5e9), ("64 kbit/s", 8e3), ("1.5TB/s", 1.5e12), ("9B/s", 9.0)]
)
def test_rates_are_read_in_powers_of_1000(text, per_second):
    assert rate(text) == per_second


@pytest.mark.parametrize("text", ["fast", "0GB/s", "25GB", "25 GiB/s", "-1GB/s", "25gb/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError):
        rate(text)


def test_names_that_are_nearly_ours_are_refused_and_others_left_alone():
    for name in map(str.upper, Settings().as_dict()):
        for misspelt in (f"{name}_", name[:-1] + "Q", name.replace("_", "") if "_" in name else f"Q{name}"):
            with pytest.raises(UsageError, match=f"HYBRID_{name}\\?"):
                foreign_variables({f"HYBRID_{misspelt}": "x"})
    others = {"HYBRID_SEARCH": "1", "HYBRID_FOO": "1", "HYBRID_": "1", "HYBRID_DEVICE": "cpu", "PATH": "/bin"}
    assert foreign_variables(others) == ["HYBRID_", "HYBRID_FOO", "HYBRID_SEARCH"]
    assert nearest("cuad", ["cpu", "cuda"]) == "cuda"
    assert nearest("zzz", ["cpu", "cuda"]) is None


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1.0 MiB"), (2**30 - 1, "1.0 GiB"),
     (2**40, "1.0 TiB"), (5000 * 2**40, "4.9 PiB"), (1.5 * 2**60, "1.5 EiB"), (-1536, "-1.5 KiB")],
)  # fmt: skip
def test_bytes_are_shown_in_the_unit_that_suits_them(count, shown):
    assert readable(count) == shown


@pytest.mark.parametrize("name", sorted(OF_CALLS))
def test_a_setting_of_calls_is_a_keyword_of_multiply_and_told_by_its_docstring(name):
    assert signature(hybrid.multiply).parameters[name].default is None
    told = re.findall(r"^(\w+(?:, \w+)*)\n    ", getdoc(hybrid.multiply) or "", re.MULTILINE)
    assert name in ", ".join(told).split(", ")
