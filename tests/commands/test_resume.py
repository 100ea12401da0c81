# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul --resume: killed at any moment and as often as may be, the file is the one of an undisturbed job."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from support.commands import module, own_lines, start, successful
from support.selection import exhaustive

from experiments.ordeal.job import Job
from hybrid.host.journal import read_journal
from hybrid.ranks.launcher import family_of, mpirun

pytestmark = pytest.mark.launcher

MATMUL = module("hybrid.matmul")
DIES_AT = [sys.executable, str(Path(__file__).parent / "programs" / "dies_at.py")]
MEDDLED = [sys.executable, str(Path(__file__).parent / "programs" / "meddled.py")]
MARK = {"journal": "hybrid.matmul", "schema": 1}
SIZES, ROWS, PARTS = (60, 50, 40), 7, 9
SMALL = (*SIZES, "--fill", "normal", "--threads", "1", "--out", "C.npy", "--resume", "--resume-rows", ROWS)
FEW, FEW_ROWS, FEW_PARTS = (*SMALL[:-1], 25), 25, 3
LIMIT = 30  # seconds within which a job must have ended


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resumed(*arguments, ranks=0, **environment):
    """Its JSON line of what was there and what was computed."""
    done = successful(start(MATMUL, *arguments, "--json", "-", ranks=ranks, **environment))
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))["resume"]


def parts_of(journal):
    """The parts that the journal of a job which was killed has, in its order; all of them different."""
    parts = [tuple(line["part"]) for line in read_journal(journal, MARK) if "part" in line]
    assert len(set(parts)) == len(parts), "a part was computed twice"
    return parts


_made = {}  # the files of jobs whose matrices are generated, which are the same in each test that starts such a job


def made_once(key, arguments, names, make):
    """The contents of these files, which `make()` leaves in the test's folder, and which are there afterwards in any case."""
    if (key, arguments) not in _made or "--a" in arguments:
        make()
        _made[key, arguments] = {name: Path(name).read_bytes() for name in names}
    for name, content in _made[key, arguments].items():
        Path(name).write_bytes(content)
    return _made[key, arguments]


def undisturbed(*arguments, ranks=0):
    def run():
        given = ["whole.npy" if argument == "C.npy" else argument for argument in arguments]
        assert resumed(*given, ranks=ranks)["rows_there"] == 0

    return made_once(ranks, arguments, ["whole.npy"], run)["whole.npy"]


def nothing_left():
    return sorted(path.name for path in Path().iterdir() if path.suffix in (".part", ".journal")) == []


@pytest.mark.parametrize("ranks", exhaustive([0, 2], [0, 1, 2, 3]))
def test_in_parts_the_product_is_right_and_nothing_else_stays(folder, ranks):
    said = resumed(*SMALL, ranks=ranks)
    assert said == {"part_rows": ROWS, "rows_there": 0, "rows_computed": 60, "parts_computed": PARTS, "rows_missing": 0}
    assert [path.name for path in folder.iterdir()] == ["C.npy"]
    successful(start(MATMUL, *SIZES, "--fill", "normal", "--out", "D.npy"))
    np.testing.assert_allclose(np.load("C.npy"), np.load("D.npy"), atol=1e-12)


WAYS = {
    "staged": (2, {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "3", "HYBRID_PANEL_COLUMNS": "16"}),
    "on two nodes": (3, {"HYBRID_RANKS_PER_NODE": "2"}),
    "on a grid": (2, {"HYBRID_RANKS_PER_NODE": "1", "HYBRID_GRID": "1x2"}),
    "in emulated GPUs": (2, {"HYBRID_DEVICE": "emulate", "HYBRID_PRECISION": "fast"}),
}


@pytest.mark.parametrize("way", exhaustive(["staged", "on a grid"], WAYS))
def test_all_parts_are_multiplied_by_the_same_b_wherever_it_is(folder, way):
    """Of integers, so that the parts' bits are those of the whole."""
    ranks, environment = WAYS[way]
    assert resumed(*SMALL, "--fill", "lecture", ranks=ranks, HYBRID_POISON="1", **environment)["parts_computed"] == PARTS
    successful(start(MATMUL, *SIZES, "--out", "D.npy"))
    assert Path("C.npy").read_bytes() == Path("D.npy").read_bytes()


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("moment", exhaustive(["amid"], ["before", "amid", "after"]))
@pytest.mark.parametrize("ranks", exhaustive([0], [0, 2]))
def test_killed_at_any_file_operation_it_goes_on_with_what_was_on_the_disk(folder, seed, moment, ranks, stride):
    """One job each that is killed at its first operation, its second, …, until there are no more; or at one in three."""
    whole = undisturbed(*FEW, ranks=ranks)
    for number in count(seed % stride, stride):
        done = start([*DIES_AT, str(number), moment], *FEW, ranks=ranks)
        if done.returncode == 0:
            break
        before = len(parts_of("C.npy.journal"))
        said = resumed(*FEW, ranks=ranks)
        assert said["rows_there"] == min(60, before * FEW_ROWS), number
        assert said["parts_computed"] == FEW_PARTS - before
        assert Path("C.npy").read_bytes() == whole
        assert nothing_left()
        Path("C.npy").unlink()
    assert number > 4 * FEW_PARTS


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("ranks", exhaustive([0], [0, 2]))
def test_a_zarr_store_is_gone_on_with_whenever_the_job_was_killed(folder, seed, ranks, stride):
    """Also between naming the store, which no job replaces, and removing the journal."""

    def contents(store):
        return {str(path.relative_to(store)): path.read_bytes() for path in sorted(Path(store).rglob("*")) if path.is_file()}

    def to(store):
        return [f"{store}:/g/C" if argument == "C.npy" else argument for argument in FEW]

    assert resumed(*to("whole.zarr"), ranks=ranks)["rows_there"] == 0
    successful(start(MATMUL, *SIZES, "--fill", "normal", "--threads", "1", "--out", "at-once.zarr:/g/C", ranks=ranks))
    assert contents("whole.zarr").keys() == contents("at-once.zarr").keys()
    for number in count(seed % stride, stride):
        done = start([*DIES_AT, str(number), "amid"], *to("C.zarr"), ranks=ranks)
        if done.returncode == 0:
            break
        if not Path("C.zarr").exists() or not nothing_left():  # else it had done all by then
            before = len(parts_of("C.zarr.journal"))
            said = resumed(*to("C.zarr"), ranks=ranks)
            assert said["rows_there"] == min(60, before * FEW_ROWS), number
        assert contents("C.zarr") == contents("whole.zarr"), number
        assert nothing_left()
        shutil.rmtree("C.zarr")
    assert number > 4 * FEW_PARTS


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_complex_rows_are_gone_on_with_and_converted_ones_are_refused(folder, ranks):
    arguments = (*FEW, "--dtype", "complex64")
    whole = undisturbed(*arguments, ranks=ranks)
    for number in (8, 14, 20):
        assert start([*DIES_AT, str(number), "amid"], *arguments, ranks=ranks).returncode
        before = len(parts_of("C.npy.journal"))
        assert resumed(*arguments, ranks=ranks)["rows_there"] == min(60, before * FEW_ROWS)
        assert Path("C.npy").read_bytes() == whole
        Path("C.npy").unlink()
    alone = np.load("whole.npy")
    assert (alone.shape, alone.dtype) == ((60, 40), np.complex64)
    for name in ("int32", "float16"):
        refused = start(MATMUL, *FEW, "--fill", "lecture", "--dtype", name, ranks=ranks)
        assert refused.returncode == 2
        assert f"of float32, float64 or complex numbers, and not of {name}: leave it out" in refused.stderr
    assert nothing_left()


@pytest.mark.parametrize("ranks", [0, 2])
def test_killed_again_and_again_at_the_next_file_operations_it_ends(folder, ranks):
    whole, there = undisturbed(*SMALL, ranks=ranks), 0
    for number in (2, 5, 8, 3, 9, 6, 12, 7, 30):
        if start([*DIES_AT, str(number), "amid"], *SMALL, ranks=ranks).returncode == 0:
            break
        parts = parts_of("C.npy.journal")
        assert len(parts) >= there
        there = len(parts)
    assert there
    said = {"rows_there": 60} if Path("C.npy").exists() else resumed(*SMALL, ranks=ranks)
    assert said["rows_there"] == min(60, there * ROWS)
    assert Path("C.npy").read_bytes() == whole
    assert nothing_left()


LONG = (400, 300, 200, "--fill", "normal", "--threads", "1", "--out", "C.npy", "--resume", "--resume-rows", 8)
KILLS = 3  # at least, in a series


def victims(job, whom):
    """The processes that are hit, of one rank or the launcher."""
    processes = job.rank_processes()
    if whom == "launcher" or not processes:
        return [job.launcher]
    own = processes[max(processes)]
    return {"worker": own[-1:], "supervisor": own[:1], "rank": own}[whom]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("series", exhaustive([0], range(42)))  # with two signals and one rank or two 504 kills
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [0, 2])
def test_killed_at_random_moments_the_file_is_that_of_an_undisturbed_job(folder, seed, ranks, signum, series):
    """After a kill the next job goes on, until one ends by itself, and the next one begins anew."""
    draw = random.Random(seed)
    whole, kills = undisturbed(*LONG, ranks=ranks), 0
    while kills < KILLS:
        there = 0
        while True:
            whom, parts, delay = draw.choice(["worker", "supervisor", "rank", "launcher"]), draw.randrange(12), draw.random() / 50
            job = Job(["-m", "hybrid.matmul", *map(str, LONG)], ranks, {}, {})
            while not job.ended(delay) and len(lines_of("C.npy.journal")) < there + parts:
                pass
            job.send(signum, victims(job, whom))
            assert job.ended(LIMIT)
            kills += 1
            left = [each for each in job.remains() if each.startswith("process")]
            assert left == [], (seed, kills)
            done = parts_of("C.npy.journal")
            if Path("C.npy").exists() and nothing_left():  # it had done all by then
                break
            assert job.exit_code
            assert len(done) >= there, (seed, kills)  # what is on the disk stays there
            there = len(done)
        assert Path("C.npy").read_bytes() == whole, (seed, kills)
        Path("C.npy").unlink()


def lines_of(journal):
    return [line for line in read_journal(journal, MARK) if "part" in line]


def killed(*arguments, parts=3, ranks=0):
    """What a job leaves that is killed when so many parts are in the journal: a write, a flush and the journal's two for each."""

    def run():
        for number in count(4 * parts):
            assert start([*DIES_AT, str(number), "before"], *arguments, ranks=ranks).returncode
            if len(parts_of("C.npy.journal")) >= parts:
                return

    made_once((ranks, parts), arguments, ["C.npy.part", "C.npy.journal"], run)


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_rows_that_are_not_what_the_journal_says_are_computed_again(folder, ranks):
    whole = undisturbed(*SMALL, ranks=ranks)
    killed(*SMALL, parts=5, ranks=ranks)
    there = len(parts_of("C.npy.journal"))
    with open("C.npy.part", "r+b") as file:
        file.seek(128 + 10 * 8 * 40)  # of row 10, which is in the second part
        file.write(b"?")
    said = resumed(*SMALL, ranks=ranks)
    assert said["rows_there"] == (there - 1) * ROWS
    assert Path("C.npy").read_bytes() == whole
    assert nothing_left()


@pytest.mark.parametrize("spoil", [
    lambda: Path("C.npy.part").unlink(),
    lambda: Path("C.npy.part").write_bytes(b"something else"),
    lambda: Path("C.npy.journal").write_bytes(b""),
    lambda: Path("C.npy.journal").write_bytes(Path("C.npy.journal").read_bytes()[:40]),
], ids=["no file", "another file", "an empty journal", "a torn first line"])  # fmt: skip
def test_where_nothing_can_be_used_it_begins_anew(folder, spoil):
    whole = undisturbed(*SMALL)
    killed(*SMALL)
    spoil()
    assert resumed(*SMALL)["rows_there"] == 0
    assert Path("C.npy").read_bytes() == whole
    assert nothing_left()


@pytest.mark.parametrize(("arguments", "ranks", "said"), [
    (("--seed", 1), 0, "are of another product (A normal of seed 0 there, normal of seed 1 here; B normal"),
    (("--dtype", "float32"), 0, "(dtype float64 there, float32 here)"),
    (("--no-check",), 0, "(check on there, off here)"),
    (("--resume-rows", 8), 0, "were begun with parts of 7 rows: leave out --resume-rows, or give --resume-rows 7"),
    ((), 2, "have rows whose last bits may be others than here (ranks 1 on 1 node there, 2 on 1 node here)"),
    pytest.param(("--kernel", "naive", "--device", "emulate"), 0,
                 "(device cpu there, emulate here; kernel blas there, naive here", marks=pytest.mark.needs("compiler")),
], ids=["seed", "dtype", "check", "rows", "ranks", "device"])  # fmt: skip
def test_the_parts_of_another_product_are_refused_and_stay(folder, arguments, ranks, said):
    killed(*SMALL)
    before = [Path(name).read_bytes() for name in ("C.npy.part", "C.npy.journal")]
    done = start(MATMUL, *SMALL, *arguments, ranks=ranks)
    (line,) = own_lines(done.stderr)
    assert done.returncode == 2
    assert line.startswith("hybrid.matmul: C.npy.part and C.npy.journal ")
    assert said in line
    assert [Path(name).read_bytes() for name in ("C.npy.part", "C.npy.journal")] == before


def test_parts_of_integers_go_on_with_any_number_of_ranks_and_device(folder):
    exact = [*SMALL, "--fill", "lecture"]
    whole = undisturbed(*exact)
    killed(*exact)
    assert start([*DIES_AT, "20", "before"], *exact, ranks=2).returncode
    said = resumed(*exact, ranks=3, HYBRID_RANKS_PER_NODE="2")
    assert said["rows_there"] >= 4 * ROWS
    assert Path("C.npy").read_bytes() == whole
    successful(start(MATMUL, *SIZES, "--out", "D.npy"))
    assert Path("D.npy").read_bytes() == whole


def test_operands_that_were_changed_are_another_product(folder, rng):
    for name, shape in (("A.npy", (60, 50)), ("B.npy", (50, 40))):
        np.save(name, rng.standard_normal(shape))
    files = ["--a", "A.npy", "--b", "B.npy", *SMALL[len(SIZES) :]]
    whole = undisturbed(*files)
    killed(*files)
    assert resumed(*files)["rows_there"]
    assert Path("C.npy").read_bytes() == whole
    killed(*files)
    np.save("B.npy", rng.standard_normal((50, 40)))
    done = start(MATMUL, *files)
    (line,) = own_lines(done.stderr)
    assert done.returncode == 2
    assert "are of another product (B " in line


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_an_operand_that_changes_while_the_job_runs_ends_it_before_the_part_counts(folder, ranks):
    np.save("A.npy", np.ones((60, 50)))
    command = [*(mpirun(ranks) if ranks else []), *MEDDLED, "multiply", "os.utime('A.npy', (1, 1))", *SMALL, "--a", "A.npy"]
    done = start([str(each) for each in command])
    (line,) = own_lines(done.stderr)
    assert "A was changed while this job read it: it was " in line
    assert done.returncode == 1
    assert parts_of("C.npy.journal") == []


@pytest.mark.needs("h5py")
def test_an_hdf5_file_goes_on_as_well(folder):
    h5 = [argument if argument != "C.npy" else "C.h5:/g/C" for argument in SMALL]
    resumed(*h5)
    whole = Path("C.h5").read_bytes()
    Path("C.h5").unlink()
    assert start([*DIES_AT, "25", "before"], *h5).returncode
    assert resumed(*h5)["rows_there"]
    assert Path("C.h5").read_bytes() == whole
    assert nothing_left()


def test_sizes_without_elements_are_written_too(folder):
    for n, l, m in ((0, 3, 4), (5, 3, 0), (5, 0, 4)):
        resumed(n, l, m, "--out", "C.npy", "--resume", "--resume-rows", 2)
        np.testing.assert_array_equal(np.load("C.npy"), np.zeros((n, m)))
        assert nothing_left()


def test_without_rows_of_its_own_choice_a_job_takes_those_of_the_journal(folder):
    killed(*SMALL)
    assert resumed(*SMALL[:-2])["part_rows"] == ROWS
    assert resumed(*SMALL[:-2])["part_rows"] == 60  # of so small a matrix all


def test_without_resume_the_parts_are_named_and_stay(folder):
    killed(*SMALL)
    before = [Path(name).read_bytes() for name in ("C.npy.part", "C.npy.journal")]
    done = successful(start(MATMUL, *SIZES, "--out", "C.npy"))
    (line,) = own_lines(done.stderr)
    rows = ROWS * len(parts_of("C.npy.journal"))
    assert line == (
        f"hybrid: C.npy.journal is of a job that had written {rows} rows of C when it ended: "
        "with --resume the same command goes on there, this one leaves it as it is"
    )
    assert [Path(name).read_bytes() for name in ("C.npy.part", "C.npy.journal")] == before


def test_explain_says_what_is_there_and_plans_a_part(folder):
    killed(*SMALL)
    done = successful(start(MATMUL, *SMALL, "--explain"))
    rows = ROWS * len(parts_of("C.npy.journal"))
    assert f"resume: {rows} of 60 rows are there, by C.npy.journal; {60 - rows} rows are computed in " in done.stdout
    assert f"C ({ROWS}×40) = A ({ROWS}×50)" in done.stdout


def test_what_is_printed_of_c_comes_from_the_file(folder):
    done = successful(start(MATMUL, *SMALL, "--print", 2))
    first, second = np.load("C.npy")[0, :2]
    assert f"C (60×40), its top left 2×2\n{first:f} {second:f} \n" in done.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    ((*SIZES, "--resume"), "--resume goes on with the file of --out, which is not given"),
    ((*SIZES, "--out", "C.npy", "--resume-rows", 3), "--resume-rows is about the parts that --resume computes: add --resume"),
    ((*SMALL, "--repeat", 2), "--resume computes every part once: leave out --repeat and --warmup"),
    ((*SMALL, "--trace", "t.json"), "--trace shows one product"),
    ((*SIZES, "--out", "C.mtx", "--resume"), "C.mtx cannot be written part by part: --resume writes .npy, .h5 and .zarr"),
    ((60, 50, 50, "--a", "C.npy", "--out", "C.npy", "--resume"), "--out and --a name the same file, C.npy"),
    ((*SIZES, "--out", "none/C.npy", "--resume"), "there is no folder"),
], ids=lambda value: value[:24] if isinstance(value, str) else "")  # fmt: skip
@pytest.mark.parametrize("ranks", exhaustive([0], [0, 2]))
def test_what_makes_no_sense_is_refused_in_a_line(folder, arguments, said, ranks):
    np.save("C.npy", np.ones((60, 50)))
    done = start(MATMUL, *arguments, ranks=ranks)
    (line,) = own_lines(done.stderr)
    assert said in line
    assert done.returncode == 2
    assert [path.name for path in folder.iterdir()] == ["C.npy"]


def test_a_file_without_its_journal_is_nobody_s_to_replace(folder):
    Path("C.npy.part").write_text("mine")
    done = start(MATMUL, *SMALL)
    (line,) = own_lines(done.stderr)
    assert done.returncode == 2
    assert "C.npy.part is there without its journal" in line
    assert Path("C.npy.part").read_text() == "mine"
    assert not Path("C.npy.journal").exists()


def test_a_second_job_on_the_same_file_is_refused(folder):
    job = Job(["-m", "hybrid.matmul", *map(str, LONG), "--resume-rows", "1"], 0, {}, {})
    while not lines_of("C.npy.journal"):
        assert not job.ended(0.01)
    worker = job.rank_processes()[0][-1:]
    job.send(signal.SIGSTOP, worker)
    done = start(MATMUL, *LONG, "--resume-rows", 1)
    job.send(signal.SIGCONT, worker)
    (line,) = own_lines(done.stderr)
    assert "C.npy.journal is locked: another job writes it" in line
    assert done.returncode == 2
    assert job.ended(LIMIT)
    assert job.exit_code == 0
    assert nothing_left()


@pytest.mark.parametrize(("ranks", "name"), [(0, "C.npy"), (2, "C.npy"), (0, os.fsdecode(b"C\xff.npy"))])
def test_who_asks_it_to_end_is_told_how_to_go_on(folder, ranks, name):
    if ranks and family_of(mpirun(1)[0]) == "Open MPI":
        pytest.skip("Open MPI's mpirun drops what its ranks say when it is asked to end")
    asked = [name if word == "C.npy" else str(word) for word in LONG]
    job = Job(["-m", "hybrid.matmul", *asked, "--resume-rows", "1"], ranks, {}, {})
    while not lines_of(f"{name}.journal"):
        assert not job.ended(0.01)
    job.send(signal.SIGTERM, [job.launcher])
    assert job.ended(LIMIT)
    code, (_, err) = job.exit_code, job.said()
    (line,) = own_lines(err)
    launcher = f"mpirun -n {ranks} " if ranks else ""
    command = shlex.join(["-m", "hybrid.matmul", *asked, "--resume-rows", "1"])
    assert "was asked to end; " in line
    told = f" rows are in {name}.part, go on with: {launcher}{Path(sys.executable).name} {command}"
    assert os.fsencode(told).decode(errors="replace") in line  # as the job's words are read here
    assert code == 143


@pytest.mark.needs("namespaces")
def test_where_the_disk_fills_meanwhile_the_parts_stay_and_a_later_job_goes_on(folder):
    whole = undisturbed(*SMALL)
    (folder / "disk").mkdir()
    full = "os.system('cat /dev/zero >other 2>/dev/null')"
    steps = [
        [*DIES_AT, 20, "before", *SMALL],
        [*MEDDLED, "multiply", full, *SMALL],
        ["rm", "other"],
        [*MATMUL, *SMALL, "--json", "runs.jsonl"],
        ["cp", "C.npy", "runs.jsonl", folder],
    ]
    script = "; ".join(shlex.join(map(str, step)) for step in steps)
    done = start(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=100k tmpfs disk && cd disk && {{ {script}; }}"])
    assert "C.npy.part cannot be written: No space left on device: it takes 18.9 KiB" in done.stderr
    assert Path("C.npy").read_bytes() == whole
    assert 0 < json.loads(Path("runs.jsonl").read_text())["resume"]["rows_there"] < 60
