# SPDX-License-Identifier: MIT
"""--resume (docs/files.md): killed at any file operation and as often as may be, the job goes on with the rows that were on the
disk, and the file has the bits of an undisturbed job; what would be another product is refused and left as it is."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from support.commands import own_lines
from support.jobs import open_mpi
from support.matmul import WAYS, code_in, doing, good, line_of_failure, names_in, record, run
from support.selection import exhaustive

from hybrid.testing import mpirun

pytestmark = pytest.mark.launcher

SIZES = (60, 50, 40)
FEW = (*SIZES, "--fill", "normal", "--threads", 1, "--out", "C.npy", "--resume", "--resume-rows", 25)  # in 3 parts
SMALL = (*FEW[:-1], 7)  # in 9
LIMIT = 120  # seconds within which a job on a busy machine must have come so far


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resumed(*arguments, **more):
    return record(*arguments, **more)["resume"]


def parts_of(journal):
    """The parts that a journal tells of, in whole lines; all of them different."""
    lines = Path(journal).read_bytes().split(b"\n")[:-1] if Path(journal).exists() else []
    parts = [(*line["rows"], *line["columns"]) for line in map(json.loads, lines) if "digest" in line]
    assert len(set(parts)) == len(parts), "a part was computed twice"
    return parts


def contents(path):
    """Of a file, or of all in a folder."""
    path = Path(path)
    return {str(each.relative_to(path.parent)).split("/", 1)[-1] if path.is_dir() else "": each.read_bytes()
            for each in (sorted(path.rglob("*")) if path.is_dir() else [path]) if each.is_file()}  # fmt: skip


def remove(path):
    shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def undisturbed(*arguments, **more):
    """What such a job leaves, from a folder of its own."""
    os.mkdir("undisturbed")
    target = next(word for word in arguments if str(word).startswith("C.")).partition(":")[0]
    for name in ("A.npy", "B.npy"):
        if Path(name).exists():
            shutil.copy2(name, "undisturbed")
    assert resumed(*arguments, cwd=Path("undisturbed"), **more)["parts_there"] == 0
    found = contents(f"undisturbed/{target}")
    shutil.rmtree("undisturbed")
    return found


def changed(file, pattern, becomes):
    file.write_text(re.sub(pattern, becomes, file.read_text(), count=1))


def beside(cases):
    """The first of them, and the others where all run."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[pytest.mark.exhaustive] * bool(number))
        for number, case in enumerate(cases)
    ]


def killed(*arguments, parts=3, **more):
    """What a job leaves that is killed when so many parts are in the journal: eight operations begin it, each part has four."""
    for number in count(4 * parts + 8):
        assert run(*arguments, planted=[f"disk rank=0 at={number} how=killed before"], **more).returncode
        if len(found := parts_of("C.npy.journal")) >= parts:
            return found
        for name in ("C.npy.part", "C.npy.journal"):
            Path(name).unlink(missing_ok=True)
    return None


def test_in_parts_the_product_is_right_and_nothing_else_stays(folder):
    for way, ranks in (("alone", 1), ("2 nodes", 3)):
        said = resumed(*SMALL, "--fill", "lecture", way=way)
        assert said == {"part_rows": 7, "part_columns": 40, "parts_there": 0, "parts_computed": 9, "parts_missing": 0}, ranks
        assert names_in(folder) == ["C.npy"]
        good(*SIZES, "--out", "D.npy", "--threads", 1)
        assert contents("C.npy") == contents("D.npy")  # of integers, so that the parts' bits are those of the whole
        for name in ("C.npy", "D.npy"):
            os.unlink(name)


def test_the_rate_of_filling_counts_b_once_and_no_rows_of_a_that_were_read_ahead(folder):
    done = good(*SMALL, "--json", "-")
    number, unit = next(line.split()[-2:] for line in done.stderr.splitlines() if line.startswith("  fill "))
    rate = 8 * (7 * 50 + 50 * 40) / json.loads(done.stdout)["seconds"]["fill"]["median"]
    assert float(number) * {"B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}[unit] == pytest.approx(rate, rel=0.01)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("way", "environment"),
    exhaustive(
        [("staged", {}), ("a grid", {})],
        [("staged", {}), ("a grid", {}), ("2 nodes", {}), ("2 ranks", {"HYBRID_DEVICE": "emulate"})],
    ),
)
def test_all_parts_are_multiplied_by_the_same_b_wherever_it_is(folder, way, environment):
    assert resumed(*SMALL, "--fill", "lecture", way=way, HYBRID_POISON="1", **environment)["parts_computed"] == 9
    good(*SIZES, "--out", "D.npy")
    assert contents("C.npy") == contents("D.npy")


TARGETS = ["C.npy", "C.h5:/g/C", "C.zarr:/g/C"]


@pytest.mark.needs("h5py", "zarr")
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("target", "way", "moment"),
    exhaustive(
        [("C.npy", "alone", "amid"), ("C.zarr:/g/C", "alone", "after")],
        [(target, way, moment) for target in TARGETS for way in ("alone", "2 ranks") for moment in ("before", "amid", "after")],
    ),
)
def test_killed_at_any_file_operation_it_goes_on_with_what_was_on_the_disk(folder, seed, target, way, moment, stride):
    """A job each that is killed at its first operation, its second, … until there are no more; or at one in nine."""
    arguments = tuple(target if word == "C.npy" else word for word in FEW)
    file = target.partition(":")[0]
    whole = undisturbed(*arguments, way=way)
    tried = 0
    for number in count(seed % stride, stride):
        done = run(*arguments, planted=[f"disk rank=0 at={number} how=killed {moment}"], way=way)
        if done.returncode == 0:
            break
        tried, before = tried + 1, parts_of(f"{file}.journal")
        if not Path(file).exists() or Path(f"{file}.journal").exists():  # else it had done all by then
            said = resumed(*arguments, way=way)
            assert (said["parts_there"], said["parts_computed"]) == (len(before), 3 - len(before)), number
        assert contents(file) == whole, number
        assert names_in(folder) == [file]
        remove(file)
    assert tried * stride > 12


@pytest.mark.parametrize("stop", beside([
    lambda: Path("C.npy.part").unlink(),
    lambda: Path("C.npy.part").write_bytes(b"something else"),
    lambda: Path("C.npy.journal").write_bytes(b""),
    lambda: Path("C.npy.journal").write_bytes(Path("C.npy.journal").read_bytes()[:40]),
    lambda: changed(Path("C.npy.journal"), r'("columns": )\d+', r"\g<1>0"),
    lambda: changed(Path("C.npy.journal"), r'("columns": \[)', r"\g<1>9"),
]), ids=["no file", "another file", "an empty journal", "a torn line", "parts of 0 columns", "other parts"])  # fmt: skip
def test_where_nothing_can_be_used_it_begins_anew(folder, stop):
    exact = (*FEW, "--fill", "lecture")  # whatever the shape of the parts
    whole = undisturbed(*exact)
    killed(*exact, parts=1)
    stop()
    assert resumed(*exact)["parts_there"] == 0
    assert contents("C.npy") == whole
    assert names_in(folder) == ["C.npy"]


def test_of_a_journal_that_is_torn_whole_lines_count_and_with_rows_that_differ_it_begins_anew(folder, rng):
    whole = undisturbed(*SMALL)
    parts = killed(*SMALL, parts=5)
    journal, part = Path("C.npy.journal").read_bytes(), Path("C.npy.part").read_bytes()
    lines = journal.splitlines(keepends=True)
    for garbage in (b"\0\0\0\n", b"[1]\n", lines[-1][: int(rng.integers(1, len(lines[-1])))]):
        damaged = bytearray(part)
        row = int(rng.integers(parts[1][0], parts[1][1]))
        damaged[128 + 8 * 40 * row + int(rng.integers(0, 320))] ^= 1 << int(rng.integers(0, 8))
        for rows, there in ((part, len(parts) - 2), (damaged, 0)):
            Path("C.npy.journal").write_bytes(b"".join(lines[:-2]) + garbage + lines[-1])  # which nobody believes
            Path("C.npy.part").write_bytes(rows)
            assert resumed(*SMALL)["parts_there"] == there, garbage
            assert contents("C.npy") == whole
            assert names_in(folder) == ["C.npy"]
            os.unlink("C.npy")


def test_another_product_is_refused_and_the_parts_stay(folder):
    killed(*SMALL, parts=2)
    before = contents("C.npy.part"), contents("C.npy.journal")
    for other in ("--seed 1", "--dtype float32", "--no-check", "--resume-rows 8", "--fill uniform"):
        for explained in ([], ["--explain"]):
            line = line_of_failure(run(*SMALL, *other.split(), *explained), 2)
            assert (code_in(line), "remove it and C.npy.part" in line) == ("resume-other", True), line
        assert (contents("C.npy.part"), contents("C.npy.journal")) == before


def test_parts_go_on_with_any_number_of_ranks(folder):
    exact = [*SMALL, "--fill", "lecture"]  # whose bits do not depend on these
    whole = undisturbed(*exact)
    killed(*exact, parts=2)
    assert run(*exact, planted=["disk rank=0 at=20 how=killed before"], way="2 ranks").returncode
    there = len(parts_of("C.npy.journal"))
    assert there > 2
    assert resumed(*exact, way="2 nodes")["parts_there"] == there
    assert contents("C.npy") == whole


def test_operands_that_were_changed_are_another_product(folder, rng):
    for name, shape in (("A.npy", (60, 50)), ("B.npy", (50, 40))):
        np.save(name, rng.standard_normal(shape))
    files = ["--a", "A.npy", "--b", "B.npy", *SMALL[3:]]
    whole = undisturbed(*files)
    assert resumed(*files)["parts_there"] == 0
    assert contents("C.npy") == whole
    os.unlink("C.npy")
    killed(*files, parts=2)
    np.save("B.npy", rng.standard_normal((50, 40)))
    line = line_of_failure(run(*files), 2)
    assert "(B " in line
    assert code_in(line) == "resume-other"


def test_an_operand_that_changes_while_the_job_runs_ends_it_before_the_part_counts(folder, tmp_path_factory):
    np.save("A.npy", np.ones((60, 50)))
    touch = tmp_path_factory.mktemp("program") / "touch.py"
    touch.write_text("import os\ndef now(): os.utime('A.npy', (1, 1))\n")
    line = line_of_failure(run(*SMALL, "--a", "A.npy", planted=[f"rank rank=0 phase=multiply how={touch}:now"], way="2 ranks"), 1)
    assert code_in(line) == "file-changed"
    assert parts_of("C.npy.journal") == []


@pytest.mark.parametrize("way", exhaustive(["alone"], ["alone", "2 ranks"]))
def test_a_part_that_fails_its_check_ends_the_job_with_3_and_does_not_count(folder, way):
    whole = undisturbed(*FEW, way=way)
    done = run(*FEW, planted=["multiply rank=0 at=1 how=element"], way=way)
    assert done.returncode == 3, done.stderr
    assert "check FAILED" in done.stdout.splitlines()[-1]
    assert "in the part of rows 25:50" in done.stdout + done.stderr
    there = len(parts_of("C.npy.journal"))
    assert there == 1
    assert not Path("C.npy").exists()
    assert resumed(*FEW, way=way)["parts_there"] == there
    assert contents("C.npy") == whole


def test_without_rows_of_its_own_choice_a_job_takes_those_of_the_journal_and_explain_tells_them(folder):
    parts = killed(*SMALL)
    before = contents("C.npy.part"), contents("C.npy.journal")
    told = good(*SMALL, "--explain").stdout
    assert f"{len(parts)} of 9 parts" in told
    assert "C (7×40) = A (7×50)" in told
    good(*SIZES, "--out", "C.npy")  # without --resume the parts stay
    assert (contents("C.npy.part"), contents("C.npy.journal")) == before
    os.unlink("C.npy")
    assert resumed(*SMALL[:-2])["part_rows"] == 7
    os.unlink("C.npy")
    assert resumed(*SMALL[:-2])["part_rows"] == 60  # of so small a matrix all


PROCESS = 96 << 20  # bytes that --host-memory has to allow each rank beside the matrices


def store(name, matrix):
    """In Fortran's order where the name says so."""
    if name.endswith(".npy"):
        np.save(name, np.asfortranarray(matrix) if "by columns" in name else matrix)
        return
    import h5py

    with h5py.File(name, "w") as file:
        file.create_dataset("X", data=matrix, chunks=(90, 70))


def stored(name):
    if name.endswith(".npy"):
        return np.load(name)
    import zarr

    return zarr.open_array(name, mode="r")[...]


@pytest.mark.needs("h5py", "zarr")
@pytest.mark.parametrize(("way", "names", "dtype", "target"), beside([
    ("alone", ("A.npy", "B by columns.npy"), "float64", "C.npy"), ("2 ranks", ("A.h5", "B.npy"), "float64", "C.zarr"),
    ("2 nodes", ("A.npy", "B.h5"), "float32", "C.zarr"), ("staged", ("A.h5", "B.npy"), "complex128", "C.npy"),
    ("a grid", ("A by columns.npy", "B.h5"), "float64", "C.npy"),
]))  # fmt: skip
def test_matrices_of_three_times_the_memory_are_multiplied_also_after_a_kill(folder, rng, way, names, dtype, target):
    """In parts of some rows and some columns; an element that was changed on the disk meanwhile is found."""
    size, ranks = 1300, max(1, WAYS[way][0])
    a, b = (rng.integers(-9, 10, (size, size)).astype(dtype) * (2 - 1j if dtype[0] == "c" else 1) for _ in "ab")
    for name, matrix in zip(names, (a, b), strict=True):
        store(name, matrix)
    copies = 1 if way in ("alone", "2 ranks") else 4  # pretended nodes have B each, and staged ranks buffers
    limited = {"way": way, "HYBRID_HOST_MEMORY": str(ranks * PROCESS + copies * a.nbytes // 3)}
    files = ["--a", names[0], "--b", names[1], "--out", target, "--resume", "--threads", 1]
    done = run(*files, planted=[f"rank rank=0 phase=multiply at={100 if copies == 1 else 20} how=SIGKILL"], **limited)
    parts, part, journal = parts_of(f"{target}.journal"), Path(f"{target}.part"), Path(f"{target}.journal")
    assert parts, done.stderr
    told = good(*files, "--explain", **limited).stdout
    assert f"{len(parts)} of " in told
    assert "slabs of columns" in told
    for each in (part, journal):
        (shutil.copytree if each.is_dir() else shutil.copy)(each, f"copy of {each}")
    said = resumed(*files, **limited)
    assert said["parts_there"] == len(parts)
    assert min(said["parts_computed"], size - said["part_rows"], size - said["part_columns"]) > 0
    np.testing.assert_array_equal(stored(target), a @ b)
    remove(target)
    for each in (part, journal):
        os.rename(f"copy of {each}", each)
    row, _, _, end = parts[-1]
    begun = json.loads(journal.read_bytes().split(b"\n")[0])["begun"]
    with open(part / "c/0/0" if part.is_dir() else part, "r+b") as file:  # another bit in the last byte of its first row
        file.seek(begun + (row * size + end) * a.itemsize - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    done = run(*files, planted=["rank rank=0 phase=multiply how=SIGKILL"], **limited)
    assert "slabs of columns" in done.stdout
    assert "are there" not in done.stdout


@pytest.mark.parametrize(("dtype", "fill"), beside([("complex128", "lecture"), ("float64", "index"), ("complex64", "index")]))
def test_some_columns_of_generated_matrices_are_those_of_the_whole_ones(folder, dtype, fill):
    asked = (300, 200, 250, "--fill", fill, "--dtype", dtype, "--threads", 1, "--out")
    enough = PROCESS + (1 << 20 if dtype == "complex128" else 560 << 10)
    assert resumed(*asked, "C.npy", "--resume", HYBRID_HOST_MEMORY=str(enough))["part_columns"] < 250
    good(*asked, "D.npy")
    assert contents("C.npy") == contents("D.npy")


def test_what_is_printed_of_c_comes_from_the_file_and_empty_sizes_are_written(folder):
    told = good(*SMALL, "--print", 2).stdout
    first, second = np.load("C.npy")[0, :2]
    assert f"C (60×40), its top left 2×2\n{first:f} {second:f} \n" in told
    for sizes in ((0, 3, 4), (5, 3, 0), (5, 0, 4)):
        resumed(*sizes, "--out", "C.npy", "--resume", "--resume-rows", 2, *(["--check", "off"] if sizes[1] else []))
        np.testing.assert_array_equal(np.load("C.npy"), np.zeros((sizes[0], sizes[2])))
        assert names_in(folder) == ["C.npy"]


def test_a_file_without_its_journal_is_nobody_s_to_replace_and_a_journal_of_another_kind_is_left(folder):
    Path("C.npy.part").write_text("mine")
    assert code_in(line_of_failure(run(*SMALL), 2)) == "file-exists"
    assert (Path("C.npy.part").read_text(), names_in(folder)) == ("mine", ["C.npy.part"])
    os.rename("C.npy.part", "C.npy.journal")
    assert code_in(line_of_failure(run(*SMALL), 2)) == "file-exists"
    assert (Path("C.npy.journal").read_text(), names_in(folder)) == ("mine", ["C.npy.journal"])


@pytest.mark.parametrize("who", ["others may write", "another user's", "a link"])
def test_a_journal_that_others_may_have_written_is_not_believed(folder, who):
    killed(*SMALL)
    journal = Path("C.npy.journal")
    assert journal.stat().st_mode & 0o777 == 0o600
    if who == "others may write":
        journal.chmod(0o666)
    elif who == "a link":
        journal.rename("elsewhere")
        journal.symlink_to("elsewhere")
    elif os.geteuid():
        pytest.skip("only root gives files away")
    else:
        os.chown(journal, 1, 1)
    before = contents("C.npy.part"), journal.read_bytes()
    code, exit_code = ("file-unwritable", 1) if who == "a link" else ("file-shared", 2)
    assert code_in(line_of_failure(run(*SMALL), exit_code)) == code
    assert before == (contents("C.npy.part"), journal.read_bytes())


PAUSED = """
import os, time
def now(*given):
    open("paused", "w").close()
    until = time.monotonic() + 120
    while not os.path.exists("go on") and time.monotonic() < until:
        time.sleep(0.01)
"""


def paused(folder, *arguments, ranks=0):
    """A job that stands still while it computes its third part, and can be asked to go on by a file."""
    command = doing(PAUSED, "multiply rank=0 at=2", folder.parent / "paused.py")
    command = [*(mpirun(ranks) if ranks else []), *command, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
    until = time.monotonic() + LIMIT
    while not Path("paused").exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until, "the job does not come to its third part"
        time.sleep(0.02)
    return job


def test_a_second_job_on_the_same_file_is_refused(folder):
    job = paused(folder, *SMALL, "--stall", 0)
    try:
        assert code_in(line_of_failure(run(*SMALL), 2)) == "file-locked"
    finally:
        Path("go on").touch()
        said = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, said
    assert names_in(folder) == ["C.npy", "go on", "paused"]


@pytest.mark.parametrize(("ranks", "name"), [(0, os.fsdecode(b"C\xff.npy")), (2, "C.npy")])
def test_who_asks_it_to_end_is_told_how_to_go_on(folder, ranks, name):
    if ranks and open_mpi():
        pytest.skip("Open MPI's mpirun drops what its ranks say when it is asked to end")
    asked = [name if word == "C.npy" else str(word) for word in SMALL]
    job = paused(folder, *asked, "--stall", "0", ranks=ranks)
    job.send_signal(signal.SIGTERM)
    Path("go on").touch()
    _, said = job.communicate(timeout=LIMIT)
    (line,) = own_lines(said)
    assert job.returncode == 143
    assert code_in(line) == "terminated"
    command = shlex.join(asked)
    assert os.fsencode(command).decode(errors="replace").split(" --out")[0] in line
    assert (f"mpirun -n {ranks} " in line) == bool(ranks)
    assert f"{len(parts_of(f'{name}.journal'))} of 9 parts" in line


@pytest.mark.needs("namespaces")
def test_where_the_disk_fills_the_parts_stay_and_a_later_job_goes_on(folder):
    whole = undisturbed(*SMALL)
    done = run(*SMALL, planted=["disk rank=0 at=20 times=None how=full"])
    line = line_of_failure(done, 1)
    assert "C.npy.part" in line
    assert code_in(line) == "disk-full"
    there = len(parts_of("C.npy.journal"))
    assert there
    assert resumed(*SMALL)["parts_there"] == there
    assert contents("C.npy") == whole
