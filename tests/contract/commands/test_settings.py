# SPDX-License-Identifier: MIT
"""Settings: a flag wins over HYBRID_<NAME>, which wins over the default; all are on the page and in the JSON line; a value that
makes no sense, and a variable that is nearly one of ours, is refused with its name, by the command and by `hybrid.multiply`
alike."""

import re

import numpy as np
import pytest
from support.commands import ROOT, own_lines, start
from support.matmul import MATMUL, code_in, good, line_of_failure, record, run

import hybrid
import hybrid.testing


def documented():
    page = (ROOT / "docs/use.md").read_text(encoding="utf-8").partition("### Environment variables")[2]
    return set(re.findall(r"HYBRID_([A-Z_]+)", page))


OF_NO_SETTING = {"DEBUG", "GUARD", "CACHE", "LAB_READ", "MPI", "PYTHON"}  # switches and places, which the page has as well


def test_every_setting_is_on_the_page_and_in_the_json_line_with_its_default():
    settings = record(8, 8, 8)["settings"]
    assert {name.upper() for name in settings} == documented() - OF_NO_SETTING
    automatic = dict.fromkeys(("device", "kernel", "precision", "transport", "grid"), "auto")
    others = {"check": "on", "on_fault": "raise", "stall": 60.0, "message_bytes": 1 << 28}
    assert {name: value for name, value in settings.items() if value} == automatic | others


FLAGS = {  # what the flag gives, and what the variable would
    "device": ("cpu", "cpu", "auto"), "kernel": ("blas", "blas", "auto"), "precision": ("native", "native", "fast"),
    "transport": ("host", "host", "auto"), "grid": ("rows", "rows", "auto"), "threads": ("1", 1, "2"),
    "check": ("host", "host", "off"), "on_fault": ("repair", "repair", "raise"), "stall": ("50", 50.0, "40"),
    "host_memory": ("2G", 2 << 30, "3G"), "gpu_memory": ("64MiB", 64 << 20, "1k"),
    "resume_rows": ("5", 5, "6"),
}  # fmt: skip


def test_a_flag_wins_over_its_variable_and_that_over_the_default(tmp_path):
    flags = [word for name, (text, *_) in FLAGS.items() for word in (f"--{name.replace('_', '-')}", text)]
    variables = {f"HYBRID_{name.upper()}": text for name, (*_, text) in FLAGS.items()}
    more = {"HYBRID_PANEL_ROWS": "3", "HYBRID_PANEL_COLUMNS": "4", "HYBRID_SLAB_ROWS": "5", "HYBRID_MESSAGE_BYTES": "64k"}
    more |= {"HYBRID_STAGED": "Yes", "HYBRID_POISON": " on ", "HYBRID_RANKS_PER_NODE": "1"}
    settings = record(20, 8, 8, *flags, "--out", "C.npy", "--resume", cwd=tmp_path, **variables, **more)["settings"]
    assert {name: settings[name] for name in FLAGS} == {name: value for name, (_, value, _) in FLAGS.items()}
    others = {"panel_rows": 3, "panel_columns": 4, "slab_rows": 5, "message_bytes": 65536, "staged": True, "poison": True}
    assert {name: settings[name] for name in others} == others
    ran = record(20, 8, 8, **{name: text for name, text in variables.items() if "MEMORY" not in name and "RESUME" not in name})
    assert ran["settings"]["threads"] == ran["placements"][0]["threads"] == 2
    assert [ran["settings"][name] for name in ("check", "stall")] == ["off", 40.0]


WRONG = [
    ("STAGED", "maybe"), ("CHECK", "maybe"), ("THREADS", "two"), ("THREADS", "-1"), ("GPU_MEMORY", "3X"), ("STALL", "nan"),
    ("MESSAGE_BYTES", "0"), ("DEVICE", "gpu"), ("GUARD", "maybe"), ("DEBUG", "maybe"), ("MACHINE", "none.json"),
    ("KERNAL", "naive"), ("THREAD", "2"), ("ONFAULT", "raise"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_variable_that_makes_no_sense_is_refused_by_name(tmp_path, name, text):
    variable = f"HYBRID_{name}"
    line = line_of_failure(run(4, 4, 4, cwd=tmp_path, **{variable: text}), 2)
    assert variable in line or text in line
    renamed = {"HYBRID_KERNAL": "HYBRID_KERNEL?"}
    assert renamed.get(variable, "") in line
    assert code_in(line) == ("machine-model" if name == "MACHINE" else "environment")


@pytest.mark.launcher
def test_a_variable_of_another_program_is_named_and_ignored():
    done = good(4, 4, 4, way="2 ranks", HYBRID_SEARCH="1", HYBRID_FOO="2")  # once, of all ranks
    (line,) = own_lines(done.stderr)
    assert {"HYBRID_SEARCH", "HYBRID_FOO"} <= set(re.findall(r"HYBRID_\w+", line))


def test_variables_of_the_scripts_are_no_mistake():
    files = [*ROOT.glob("slurm/*.s*"), *ROOT.glob("slurm/sites/*.sh"), *ROOT.glob("scripts/*.sh")]
    used = {variable for path in files for variable in re.findall(r"HYBRID_[A-Z_]+", path.read_text(encoding="utf-8"))}
    own = used - {f"HYBRID_{name}" for name in documented()}
    assert len(own) > 2
    assert own_lines(good(4, 4, 4, **dict.fromkeys(own, "x")).stderr) == []


A, B = np.eye(3), np.ones((3, 2))


@pytest.mark.parametrize(
    "right",
    [
        {"threads": np.int64(2)}, {"stall": np.float32(20)}, {"stall": 3}, {"check": np.bool_(True)}, {"check": "OFF"},
        {"check": False}, {"device": np.str_("cpu")}, {"on_fault": np.str_("repair")}, {"host_memory": "2G"},
        {"host_memory": "1.5e3 MiB"}, {"check": " Host "},
    ],
    ids=str,
)  # fmt: skip
def test_the_library_takes_numbers_and_texts_of_numpy_and_words_in_any_case(right):
    np.testing.assert_array_equal(hybrid.multiply(A, B, **right), A @ B)


def test_the_library_takes_the_variables_and_looks_at_no_others(tmp_path):
    (tmp_path / "program.py").write_text(
        "import hybrid\nprint(hybrid.multiply([[2.0]], [[3.0]])[0, 0])\n"
        "try:\n    hybrid.multiply([[2.0]], [[3.0]], device='cpu', threads='x')\n"
        "except ValueError as error:\n    print(error.code)\n"
    )
    program = [MATMUL[0], tmp_path / "program.py"]
    assert start(program, HYBRID_KERNAL="x", HYBRID_CHECK="host").stdout.split() == ["6.0", "setting"]
    failed = start(program, HYBRID_CHECK="maybe")
    assert (failed.returncode, "HYBRID_CHECK" in failed.stderr) == (1, True)


def test_a_traceback_is_shown_where_it_is_asked_for():
    assert "Traceback" in run(8, 8, 8, "--a", "none.npy", HYBRID_DEBUG="1").stderr
    assert good(8, 8, 8, HYBRID_GUARD="0", anew=True).stderr == ""


def test_a_warning_points_at_the_caller_s_line():
    with hybrid.testing.plant("multiply", how="element"), pytest.warns(RuntimeWarning) as caught:
        np.testing.assert_array_equal(hybrid.multiply(A, B, on_fault="repair"), A @ B)
    assert {each.filename for each in caught} == {__file__}
