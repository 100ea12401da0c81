# SPDX-License-Identifier: MIT
"""docs/learn.md, What students' code may do, and SECURITY.md: files of its own only, no network, little memory, small files."""

import os
from pathlib import Path

import pytest
from support.commands import without_progress
from support.lab import DATA, changed, judged, lab
from support.selection import exhaustive

pytestmark = [pytest.mark.needs("compiler", "addr2line", "landlock", "user namespaces")]

ELEMENT = (DATA / "solutions" / "element.cu").read_text(encoding="utf-8")


@pytest.fixture
def classmate(tmp_path):
    file = tmp_path / "class" / "classmate.txt"
    file.parent.mkdir()
    file.write_text("a classmate's")
    yield file
    assert file.read_text() == "a classmate's"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


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


def test_a_kernel_changes_no_files(tmp_path, classmate):
    """Neither when it runs, on two shapes, nor when it is loaded, nor in the current folder; and it is judged as ever."""
    path = tmp_path / "mine.cu"
    text = changed(
        ELEMENT,
        [("__global__", MEDDLES + "__global__"), ("float sum = 0;", "if (!row && !column) meddle();\n    float sum = 0;")],
    )
    path.write_text(text.replace("PLACE", str(classmate)))
    verdict = judged("run", path, "--stall", 90, cwd=classmate.parent)
    assert (verdict.code, verdict.findings, len(verdict.record["cases"])) == (0, set(), 5), verdict.said


PROGRAM = r"""#include <arpa/inet.h>
#include <dirent.h>
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
    sockaddr_in nobody = {};
    nobody.sin_family = AF_INET, nobody.sin_port = htons(9), nobody.sin_addr.s_addr = inet_addr("192.0.2.1");
    const char *connected = connect(socket(AF_INET, SOCK_DGRAM, 0), (sockaddr *)&nobody, sizeof nobody) ? "refused" : "done";
    rlimit size, memory;
    getrlimit(RLIMIT_FSIZE, &size), getrlimit(RLIMIT_AS, &memory);
    printf("read %s, write %s, append %s, class %s, connect %s, file %lld KiB, memory %lld GiB\n", opened(arguments[1], "r"),
           opened("out.txt", "w"), opened("PLACE", "a"), opened("PLACE", "r"), connected, (long long)size.rlim_cur / 1024,
           (long long)(memory.rlim_cur >> 30));
    one<<<0, 1>>>(nullptr);
    END
}
"""


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("include", "begin", "end", "kib", "times"),
    exhaustive(
        [("", "", "", 1024, 1)],
        [("", "", "", 1024, 1), ("#include <mpi.h>", "MPI_Init(&count, &arguments);", "MPI_Finalize();", 262144, 2)],
    ),
)
def test_a_program_uses_the_current_folder_and_what_its_arguments_name(tmp_path, classmate, include, begin, end, kib, times):
    """Files of 1 MiB, or of 256 MiB where ranks' shared memory is one; 4 GiB of memory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "given.txt").write_text("1 2 3")
    text = PROGRAM.replace("INCLUDE", include).replace("BEGIN", begin).replace("END", end).replace("PLACE", str(classmate))
    (tmp_path / "here" / "mine.cu").write_text(text)
    said = judged("run", "mine.cu", "--", tmp_path / "given.txt", cwd=tmp_path / "here").said
    line = f"read done, write done, append refused, class refused, connect refused, file {kib} KiB, memory 4 GiB"
    assert [each for each in said.splitlines() if each.startswith("read ")] == times * [line], said


@pytest.mark.exhaustive
@pytest.mark.launcher
def test_a_program_of_ranks_has_its_own_folder_small_files_and_no_network(tmp_path, classmate):
    path = tmp_path / "mine.py"
    path.write_text(
        "import socket\nfrom pathlib import Path\n\n\ndef tried(do, *arguments):\n    try:\n        do(*arguments)\n"
        "    except OSError as error:\n        return type(error).__name__\n    return 'done'\n\n\n"
        "def multiply(comm, a, b, product):\n"
        f"    other = Path({str(classmate)!r})\n    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
        "        connected = tried(one.connect, ('192.0.2.1', 9))\n"
        "    raise RuntimeError(f\"append {tried(other.open, 'a')}, read {tried(other.read_text)}, \"\n"
        "        f\"own {tried(Path('own').write_text, 'x')}, \"\n"
        "        f\"large {tried(Path('large').write_bytes, bytes(2 << 20))}, connect {connected}\")\n"
    )
    verdict = judged("check", "ranks", path, "--stall", 90)
    assert verdict.code == 1
    told = "RuntimeError: append PermissionError, read PermissionError, own done, large OSError, connect OSError"
    assert told in verdict.said


LEAVES = {  # what a program does, and what may not come of it
    "a process in a session of its own": "if (!fork()) { setsid(); if (!fork()) { sleep(500); } _exit(0); } sleep(1);",
    "a process that keeps its output open": 'if (system("sleep SECONDS &")) return 1;',
    "a deep folder without rights": 'if (chdir(getenv("TMPDIR"))) return 1; for (int i = 0; i < 2000; ++i) '
    '{ if (mkdir("deep", 0700) || chdir("deep")) return 1; } mkdir("locked", 0700), mkdir("locked/in", 0), chmod("locked", 0);',
    "output without a line's end": "static char x[1 << 20]; memset(x, 'x', sizeof x); "
    "for (int i = 0; i < 6000; ++i) fwrite(x, 1, sizeof x, stdout);",
}


@pytest.mark.parametrize("what", exhaustive(["a process in a session of its own", "a deep folder without rights"], LEAVES))
def test_what_a_program_leaves_behind_is_ended_and_removed(tmp_path, what):
    """Soon, not when its time is up; its output is cut; and it is not told what the environment has of others."""
    seconds = str(500 + os.getpid())
    (tmp_path / "own").mkdir()
    (tmp_path / "mine.cu").write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/stat.h>\n#include <unistd.h>\n"
        "__global__ void one() {}\nint main()\n{\n    one<<<1, 1>>>();\n    cudaDeviceSynchronize();\n"
        f'    printf("token %d\\n", getenv("SOME_TOKEN") != nullptr);\n    {LEAVES[what].replace("SECONDS", seconds)}\n}}\n'
    )
    verdict = judged("run", tmp_path / "mine.cu", "--stall", 150, limit=140, TMPDIR=str(tmp_path / "own"), SOME_TOKEN="secret")
    assert (verdict.code, verdict.said[:8]) == (0, "token 0\n"), verdict.said[-300:]
    assert len(verdict.said) < 2 << 20
    assert list((tmp_path / "own").iterdir()) == []
    assert not [
        each
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if f"sleep\0{seconds}".encode() in read(each) or str(tmp_path).encode() in read(each)
    ]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.exhaustive
def test_folders_that_are_named_may_be_read(tmp_path, classmate):
    """HYBRID_LAB_READ: for software in unusual places."""
    (tmp_path / "here").mkdir()
    text = PROGRAM.replace("INCLUDE", "").replace("BEGIN", "").replace("END", "").replace("PLACE", str(classmate))
    (tmp_path / "here" / "mine.cu").write_text(text)
    read = f"{classmate.parent}{os.pathsep}/no/such/folder"
    said = judged("run", "mine.cu", "--", "mine.cu", cwd=tmp_path / "here", HYBRID_LAB_READ=read).said
    assert "append refused, class done," in said


@pytest.mark.exhaustive
def test_nothing_is_said_where_all_of_it_holds():
    assert without_progress(lab("run", DATA / "solutions" / "element.cu", "--sizes", 4, 4, 4).stderr) == ""
