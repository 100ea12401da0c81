# SPDX-License-Identifier: MIT
"""Flag, then HYBRID_<NAME>, then default; and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.core.settings import Settings, foreign_variables, one_of, parse_bytes, switched_on
from hybrid.errors import UsageError


def test_without_flags_and_environment_the_defaults_hold():
    assert Settings.gather({}, {}) == Settings()


def test_a_flag_wins_over_the_environment_which_wins_over_the_default():
    environment = {"HYBRID_THREADS": "3", "HYBRID_DEVICE": "cpu"}
    assert Settings.gather({"threads": 5}, environment) == Settings(threads=5, device="cpu")
    assert Settings.gather({"threads": None}, environment) == Settings(threads=3, device="cpu")


def test_a_flag_of_zero_or_false_is_a_word_too():
    environment = {"HYBRID_THREADS": "3", "HYBRID_CHECK": "1", "HYBRID_STALL": "9"}
    assert Settings.gather({"threads": 0, "check": False, "stall": 0.0}, environment) == Settings(check="off", stall=0.0)


def test_an_empty_variable_counts_as_unset():
    assert Settings.gather({}, {"HYBRID_THREADS": "", "HYBRID_CHECK": ""}) == Settings()


OTHER = {
    "device": ("cuda", "cuda"),
    "kernel": ("blas", "blas"),
    "precision": ("fast", "fast"),
    "check": ("host", "host"),
    "on_fault": ("repair", "repair"),
    "threads": ("7", 7),
    "transport": ("nccl", "nccl"),
    "poison": ("1", True),
    "stall": ("2.5", 2.5),
    "message_bytes": ("1M", 1 << 20),
    "panel_rows": ("11", 11),
    "panel_columns": ("12", 12),
    "slab_rows": ("13", 13),
    "resume_rows": ("14", 14),
    "staged": ("on", True),
    "ranks_per_node": ("2", 2),
    "grid": ("2x1", "2x1"),
    "gateways": ("2", 2),
    "host_memory": ("64G", 64 << 30),
    "gpu_memory": ("141GiB", 141 << 30),
    "price": ("2.50/GPU-h", "2.50/GPU-h"),
    "machine": ("machine.json", "machine.json"),
}


@pytest.mark.parametrize("name", [known.name for known in fields(Settings)])
def test_every_setting_can_be_made_in_the_environment(name):
    text, value = OTHER[name]
    made = Settings.gather({}, {f"HYBRID_{name.upper()}": text})
    assert made == Settings(**{name: value})
    assert made != Settings()
    assert type(getattr(made, name)) is type(getattr(Settings(), name))
    assert made.as_dict()[name] == value


@pytest.mark.parametrize("text", ["1", "true", "Yes", "ON", " on "])
def test_yes_is_said_in_several_ways(text):
    assert Settings.gather({}, {"HYBRID_STAGED": text}).staged is True


@pytest.mark.parametrize("text", ["0", "false", "No", "OFF", " off "])
def test_no_is_said_in_several_ways(text):
    assert Settings.gather({}, {"HYBRID_STAGED": text}).staged is False


@pytest.mark.parametrize(
    ("given", "check"),
    [
        *((word, "on") for word in ("1", "true", "Yes", "ON", " on ", True)),
        *((word, "off") for word in ("0", "false", "No", "OFF", " off ", False)),
        *((word, "host") for word in ("host", "Host", " HOST ")),
    ],
)
def test_the_check_is_asked_for_by_name_or_by_truth_value(given, check):
    assert Settings.gather({"check": given}, {}).check == check
    assert Settings.gather({}, {"HYBRID_CHECK": str(given)}).check == check


@pytest.mark.parametrize("given", ["", "hosts", 2])
def test_another_check_is_refused_by_name(given):
    with pytest.raises(
        UsageError, match=f"unknown check '{given}': one of on, host, off|unknown check 'hosts': did you mean 'host'"
    ):
        Settings.gather({"check": given}, {})


@pytest.mark.parametrize(("given", "said"), [(0.0, "0.0"), (np.float32(1), "1.0"), (["on"], r"\['on'\]"), (b"on", "b'on'")])
def test_what_is_neither_a_name_nor_a_truth_value_is_no_check(given, said):
    with pytest.raises(UsageError, match=rf"check must be on, host, off, True or False, not (np\.float32\()?{said}\)?$"):
        Settings.gather({"check": given}, {})


@pytest.mark.parametrize(("name", "given"), [("device", "cpu"), ("kernel", "blas"), ("check", "host"), ("on_fault", "repair")])
def test_a_text_of_numpy_is_a_name(name, given):
    chosen = getattr(Settings.gather({name: np.str_(given)}, {}), name)
    assert chosen == given
    assert type(chosen) is str


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HYBRID_STAGED": "maybe"}, "HYBRID_STAGED='maybe' is neither 1 nor 0"),
        ({"HYBRID_CHECK": "maybe"}, "unknown check 'maybe': one of on, host, off"),
        ({"HYBRID_THREADS": "two"}, "HYBRID_THREADS='two' is not a number"),
        ({"HYBRID_GPU_MEMORY": "3X"}, r"^HYBRID_GPU_MEMORY='3X' is not a number of bytes \(such as 65536, 64k or 141G\)$"),
        ({"HYBRID_STALL": "long"}, "HYBRID_STALL='long' is not a number"),
        ({"HYBRID_STALL": "-1"}, "HYBRID_STALL='-1': stall must not be negative, not -1"),
        ({"HYBRID_STALL": "nan"}, "HYBRID_STALL='nan': stall must be finite, not nan; 0 means never"),
        ({"HYBRID_STALL": "inf"}, "HYBRID_STALL='inf': stall must be finite, not inf; 0 means never"),
        ({"HYBRID_THREADS": "-1"}, "HYBRID_THREADS='-1': threads must not be negative, not -1"),
        ({"HYBRID_MESSAGE_BYTES": "0"}, "HYBRID_MESSAGE_BYTES='0': message_bytes must be at least 1"),
        ({"HYBRID_GATEWAYS": "0"}, "HYBRID_GATEWAYS='0': gateways must be at least 1"),
        ({"HYBRID_DEVICE": "gpu"}, "HYBRID_DEVICE='gpu': unknown device 'gpu'"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(environment, message):
    with pytest.raises(UsageError, match=message):
        Settings.gather({}, environment)


@pytest.mark.parametrize(("variable", "usual"), [("HYBRID_GUARD", True), ("HYBRID_DEBUG", False)])
def test_a_switch_is_on_or_off_and_nothing_else(variable, usual):
    assert switched_on(variable, {}) is switched_on(variable, {variable: ""}) is usual
    for text in ("1", "true", "YES", "on"):
        assert switched_on(variable, {variable: text})
    for text in ("0", "False", "no", "off "):
        assert not switched_on(variable, {variable: text})
    with pytest.raises(UsageError, match=f"{variable}='maybe' is neither 1 nor 0"):
        switched_on(variable, {variable: "maybe"})


def test_a_whole_number_of_numpy_is_one_and_a_truth_value_is_none():
    assert Settings.gather({"threads": np.int64(3)}, {}).threads == 3
    for wrong in (True, np.True_, 1.0):
        with pytest.raises(UsageError, match="threads must be a whole number"):
            Settings.gather({"threads": wrong}, {})


def test_a_stall_that_is_no_number_is_refused():
    for wrong in (float("nan"), np.float64("inf")):
        with pytest.raises(UsageError, match=r"^stall must be finite, not (nan|inf); 0 means never"):
            Settings.gather({"stall": wrong}, {})
    for two in (2, np.int32(2), np.float32(2), np.float64(2)):
        stall = Settings.gather({"stall": two}, {}).stall
        assert (stall, type(stall) in (int, float)) == (2, True), repr(two)


@pytest.mark.parametrize(
    "name", ["threads", "stall", "panel_rows", "panel_columns", "slab_rows", "ranks_per_node", "host_memory", "gpu_memory"]
)
def test_negative_flags_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"{name} must not be negative, not -3"):
        Settings.gather({name: -3}, {})


def test_a_near_miss_is_told_what_was_meant_and_anything_else_what_there_is():
    with pytest.raises(UsageError, match="unknown device 'cuad': did you mean 'cuda'"):
        Settings.gather({"device": "cuad"}, {})
    with pytest.raises(UsageError, match="unknown device 'gpu': did you mean 'cuda'"):
        Settings.gather({"device": "gpu"}, {})
    with pytest.raises(UsageError, match="unknown colour 'zzz': one of red, green"):
        one_of("colour", "zzz", ["red", "green"])
    assert one_of("colour", "red", iter(["red", "green"])) == "red"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64KB", 65536),
        ("64KiB", 65536),
        ("1.5m", 3 << 19),
        ("141G", 141 << 30),
        ("141 GiB", 141 << 30),
        ("2t", 2 << 40),
        (" 5 ", 5),
        ("7b", 7),
        ("1e3", 1000),
    ],
)
def test_bytes_are_read_with_their_units(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", " ", "k", "GiB", "5x", "5kk", "1,5g", "5 k 3", "inf", "nan", "1e999", "0x10", "--5"])
def test_what_is_no_number_of_bytes_is_refused_with_its_text(text):
    with pytest.raises(UsageError, match="is not a number of bytes"):
        parse_bytes(text)


@given(
    count=st.integers(0, 2**20),
    unit=st.sampled_from(list(enumerate(["", "k", "M", "G", "T"]))),
    ending=st.sampled_from(["", "b", "iB"]),
)
def test_units_are_powers_of_1024(count, unit, ending):
    power, letter = unit
    if letter or ending != "iB":
        assert parse_bytes(f"{count}{letter}{ending}") == count * 1024**power


def test_every_variable_that_a_script_uses_is_known():
    root = Path(__file__).parents[2]
    scripts = [*root.glob("slurm/*.s*"), *root.glob("slurm/sites/*.sh"), *root.glob("scripts/*.sh")]
    used = {variable for script in scripts for variable in re.findall(r"HYBRID_[A-Z_]+", script.read_text())}
    assert len(used) > 3
    assert foreign_variables(dict.fromkeys(used, "x")) == []


@pytest.mark.parametrize(("variable", "meant"), [
    ("HYBRID_KERNAL", "HYBRID_KERNEL"),
    ("HYBRID_THREAD", "HYBRID_THREADS"),
    ("HYBRID_ONFAULT", "HYBRID_ON_FAULT"),
    ("HYBRID_ROAD", "HYBRID_TRANSPORT"),
    ("HYBRID_CHUNK_ROWS", "HYBRID_PANEL_ROWS"),
])  # fmt: skip
def test_a_misspelt_or_renamed_variable_is_refused(variable, meant):
    with pytest.raises(UsageError, match=f"^the environment variable {variable} is unknown: did you mean {meant}\\?$"):
        foreign_variables({variable: "x"})


def test_other_variables_that_begin_alike_are_another_programs():
    environment = {"HYBRID_SEARCH": "1", "HYBRID_FOO": "1", "HYBRID_": "1", "HYBRID_DEVICE": "cpu", "PATH": "/bin"}
    assert foreign_variables(environment) == ["HYBRID_", "HYBRID_FOO", "HYBRID_SEARCH"]
