# SPDX-License-Identifier: MIT
"""Students' code uses no files but its own and no network: kernels, programs of ranks, whole programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import without_progress

from hybrid.classroom import rank_exercise
from hybrid.commands import lab
from hybrid.emulation import confined

SOLUTIONS = Path(__file__).resolve().parent / "solutions"

pytestmark = pytest.mark.needs("compiler", "addr2line")


@pytest.fixture
def classmate(tmp_path):
    file = tmp_path / "class" / "classmate.txt"
    file.parent.mkdir()
    file.write_text("a classmate's")
    return file


def untouched(file):
    return file.read_text() == "a classmate's" and [each.name for each in file.parent.iterdir()] == [file.name]


def ran(capsys, *arguments):
    code = lab.work(lab.parse([*map(str, arguments)]))
    return code, capsys.readouterr()


MEDDLES = """#include <stdio.h>
#include <stdlib.h>
extern "C" int symlink(const char *, const char *);
#define FILE_NAME "PLACE"
__device__ void meddle()
{
    if (FILE *file = fopen(FILE_NAME, "a")) { fputs("changed", file); fclose(file); }
    if (FILE *file = fopen(FILE_NAME ".new", "w")) fclose(file);
    system("cat " FILE_NAME " > " FILE_NAME ".copy; rm " FILE_NAME);
    remove(FILE_NAME);
    remove("findings.0");  // which the lab makes anew for the next shape
    if (symlink(FILE_NAME, "findings.0")) return;
}
struct Loaded { __device__ Loaded() { meddle(); } };
Loaded loaded;
"""


@pytest.mark.needs("landlock")
def test_a_kernel_changes_no_files(tmp_path, monkeypatch, capsys, classmate):
    """Neither when it runs nor when it is loaded, nor in the current folder; and what it computes is judged as ever."""
    monkeypatch.chdir(classmate.parent)
    text = (SOLUTIONS / "element.cu").read_text(encoding="utf-8").replace("__global__", MEDDLES + "__global__")
    text = text.replace("float sum = 0;", "if (!row && !column) meddle();\n    float sum = 0;")
    path = tmp_path / "mine.cu"
    path.write_text(text.replace("PLACE", str(classmate)))
    code, said = ran(capsys, "check", "element", path)
    assert (code, said.out.splitlines()[-1]) == (0, "element: 6 of 6 points")
    assert untouched(classmate)


TRIES = """import os, socket
from pathlib import Path


def tried(do, *arguments):
    try:
        do(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"


def multiply(comm, a, b, product):
    other = Path("PLACE")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        connected = tried(one.connect, ("192.0.2.1", 9))
    raise RuntimeError(
        f"append {tried(other.open, 'a')}, read {tried(other.read_text)}, own {tried(Path('own').write_text, 'x')}, "
        f"large {tried(Path('large').write_bytes, bytes(2 << 20))}, connect {connected}"
    )
"""


@pytest.mark.launcher
@pytest.mark.needs("landlock", "user namespaces")
def test_a_program_of_ranks_has_its_own_folder_small_files_and_no_network(monkeypatch, tmp_path, capsys, classmate):
    monkeypatch.setattr(rank_exercise, "_RANKS", (1, 2))
    path = tmp_path / "mine.py"
    path.write_text(TRIES.replace("PLACE", str(classmate)))
    code, said = ran(capsys, "check", "ranks", path, "--stall", "60")
    assert code == 1
    told = "RuntimeError: append PermissionError, read PermissionError, own done, large OSError, connect OSError"
    assert said.out.count(told) == 2, said.out
    assert untouched(classmate)


PROGRAM = """#include <arpa/inet.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
INCLUDE
__global__ void one(int *to) { *to = 1; }

static const char *opened(const char *name, const char *how)
{
    FILE *file = fopen(name, how);
    if (file) fclose(file);
    return file ? "done" : "refused";
}

int main(int count, char **arguments)
{
    BEGIN
    int *on_device, number = 0;
    cudaMalloc(&on_device, sizeof number);
    one<<<1, 1>>>(on_device);
    if (cudaMemcpy(&number, on_device, sizeof number, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    cudaFree(on_device);
    sockaddr_in nobody = {};
    nobody.sin_family = AF_INET, nobody.sin_port = htons(9), nobody.sin_addr.s_addr = inet_addr("192.0.2.1");
    const char *connected = connect(socket(AF_INET, SOCK_DGRAM, 0), (sockaddr *)&nobody, sizeof nobody) ? "refused" : "done";
    rlimit size;
    getrlimit(RLIMIT_FSIZE, &size);
    printf("read %s, write %s, append %s, connect %s, largest %lld KiB\\n", opened(arguments[1], "r"), opened("out.txt", "w"),
           opened("PLACE", "a"), connected, (long long)size.rlim_cur / 1024);
    END
    return number != 1;
}
"""


@pytest.mark.launcher
@pytest.mark.needs("landlock", "user namespaces")
@pytest.mark.parametrize(
    ("include", "begin", "end", "told"),
    [
        ("", "", "", ["largest 1024 KiB"]),
        ("#include <mpi.h>", "MPI_Init(&count, &arguments);", "MPI_Finalize();", ["largest 262144 KiB"] * 2),
    ],
    ids=["one process", "ranks"],
)
def test_a_whole_program_uses_the_current_folder_and_what_its_arguments_name(
    monkeypatch, tmp_path, capsys, classmate, include, begin, end, told
):
    folder, given = tmp_path / "here", tmp_path / "given.txt"
    folder.mkdir()
    given.write_text("1 2 3")
    monkeypatch.chdir(folder)
    text = PROGRAM.replace("INCLUDE", include).replace("BEGIN", begin).replace("END", end).replace("PLACE", str(classmate))
    Path("mine.cu").write_text(text)
    code, said = ran(capsys, "run", "mine.cu", "--", given)
    assert code == 0, said.out
    lines = [line for line in said.out.splitlines() if line.startswith("read ")]
    assert lines == [f"read done, write done, append refused, connect refused, {each}" for each in told], said.out
    assert untouched(classmate)


def test_what_is_left_to_students_code_is_said(monkeypatch, capsys):
    monkeypatch.setattr(confined, "lacking", lambda: ["the code that is run can do as it likes: this is a test"])
    _, said = ran(capsys, "run", SOLUTIONS / "element.cu", "--sizes", 4, 4, 4)
    assert without_progress(said.err).splitlines() == ["hybrid.lab: the code that is run can do as it likes: this is a test"]
