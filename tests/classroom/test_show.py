# SPDX-License-Identifier: MIT
"""The blackboard's picture: the lectures' tables by hand, a student's own kernel, and the page in a browser."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from support.chromium import browser, chromium

from hybrid.classroom.steps import Array, Picture, Step, Touch
from hybrid.classroom.steps_shown import steps_of
from hybrid.commands import lab
from hybrid.emulation.errors import EmulationError
from hybrid.errors import UsageError

pytestmark = pytest.mark.needs("compiler", "addr2line")

SOLUTIONS = Path(__file__).resolve().parent / "solutions"


def shown(capsys, *arguments):
    assert lab.work(lab.parse(["show", *map(str, arguments)])) == 0
    return capsys.readouterr().out


def rows(text):
    """What the threads did in each step."""
    return [re.split(r"\s{2,}", line)[1:] for line in text.splitlines() if line.startswith("line ")]


def test_the_tiled_kernel_does_what_the_slide_s_table_says(capsys):
    """Width 4, tiles of 2: in two phases each thread loads one element of each matrix and makes two products."""
    text, expected = shown(capsys, "tiled", "--width", 4, "--tile", 2, "--of", "1,0"), []
    threads = [(x, y) for y in (0, 1) for x in (0, 1)]
    for phase in (0, 1):
        expected.append([f"M[{y}][{2 * phase + x}] → Ms[{y}][{x}]" for x, y in threads])
        expected.append([f"N[{2 * phase + y}][{2 + x}] → Ns[{y}][{x}]" for x, y in threads])
        expected += [[f"Ms[{y}][{k}] Ns[{k}][{x}]" for x, y in threads] for k in (0, 1)]
    expected.append([f"→ P[{y}][{2 + x}]" for x, y in threads])
    assert rows(text) == expected
    assert re.findall(r"^-- (\d) barriers? passed$", text, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    assert text.splitlines()[2].split("  ")[0] == "block (1,0)"
    assert "2×2 blocks of 2×2 threads\n" in text


def test_a_thread_s_way_through_memory(capsys):
    text = shown(capsys, "element", "--width", 4)
    assert "thread (0,0) loads M[0, 1, 2, 3] as memory numbers them, stride 1\n" in text
    assert "thread (0,0) loads N[0, 4, 8, 12] as memory numbers them, stride 4\n" in text


def test_a_kernel_of_one_s_own_is_shown_as_it_is_not_as_it_should_be(tmp_path, capsys):
    """Here B is read along its rows, and blocks of one dimension go over the elements."""
    path = tmp_path / "mine.cu"
    path.write_text(
        "// lab: block(3) grid((n * m + 2) / 3)\n"
        "__device__ float at(const float* matrix, int i) { return matrix[i]; }\n"
        "__global__ void mine(float* A, float* B, float* C, int n, int l, int m)\n"
        "{\n"
        "    int i = blockIdx.x * 3 + threadIdx.x;\n"
        "    if (i >= n * m) return;\n"
        "    float sum = 0;\n"
        "    for (int k = 0; k < l; ++k)\n"
        "        sum += A[i / m * l + k] *\n"
        "            at(B, i % m * l + k);\n"
        "    C[i] = sum;\n"
        "}\n"
    )
    text = shown(capsys, path, "--sizes", 2, 2, 2)
    assert next(row for row in rows(text) if "B" in row[0]) == ["B[0][0]", "B[1][0]", "B[0][0]"]
    assert "thread (0,0) loads B[0, 1] as memory numbers them, stride 1\n" in text
    assert [row[0] for row in rows(shown(capsys, path, "--sizes", 2, 2, 2, "--of", "1,0"))][-1] == "→ C[1][1]"


def test_dynamic_shared_memory_and_a_template(tmp_path, capsys):
    path = tmp_path / "dynamic.cu"
    path.write_text(
        "// lab: block(2, 2) grid((m + 1) / 2, (n + 1) / 2) shared(16)\n"
        "template <typename T> __global__ void tile(const T* a, const T* b, T* c, int n, int l, int m)\n"
        "{\n"
        "    extern __shared__ float rows[];\n"
        "    int x = threadIdx.x, y = threadIdx.y;\n"
        "    T sum = 0;\n"
        "    for (int k = 0; k < l; k += 2) {\n"
        "        rows[y * 2 + x] = a[(blockIdx.y * 2 + y) * l + k + x];\n"
        "        __syncthreads();\n"
        "        for (int e = 0; e < 2; ++e) sum += rows[y * 2 + e] * b[(k + e) * m + blockIdx.x * 2 + x];\n"
        "        __syncthreads();\n"
        "    }\n"
        "    c[(blockIdx.y * 2 + y) * m + blockIdx.x * 2 + x] = sum;\n"
        "}\n"
    )
    text = shown(capsys, path, "--kernel", "tile<float>")
    assert rows(text)[0][3] == "a[1][1] → extern __shared__[0][3]"
    assert len([row for row in rows(text) if "b[" in row[0]]) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["tiled", "--width", "17"], UsageError, "17×17×17 are 4913 multiplications: at most 4096"),
        (["tiled", "--of", "2,0"], UsageError, "--of 2,0: the grid has 2×2 blocks"),
        (["tiled", "--of", "2"], UsageError, "'2' is no X,Y"),
        (["element", "--sizes", "1", "2", "3"], UsageError, "MatrixMulKernel has one size"),
        (["far.cu"], EmulationError, "cannot be shown: SIGSEGV ended it; lab run says where"),
        (["row.cu", "--tile", "2"], UsageError, "constant of the file that is called TILE… or BLOCK…: it has none"),
        (["none.cu"], UsageError, "none.cu cannot be read"),
        (["tiled", "--json", "-"], UsageError, "unknown option --json: one of --help,"),
        (["endless.cu", "--stall", "3"], EmulationError, "cannot be shown: it had not ended after 3 s"),
    ],
)
def test_what_cannot_be_shown(tmp_path, monkeypatch, arguments, error, said):
    monkeypatch.chdir(tmp_path)
    text = (SOLUTIONS / "row.cu").read_text()
    Path("row.cu").write_text(text)
    Path("far.cu").write_text(text.replace("sum += a[", "sum += a[1000000000000 + "))
    Path("endless.cu").write_text(text.replace("k < l; ++k", "k < l; k += 0").replace("sum += a", "sum = a"))
    with pytest.raises(error, match=re.escape(said)):
        lab.work(lab.parse(["show", *arguments]))


def written(tmp_path, capsys, *arguments):
    page = tmp_path / "page.html"
    shown(capsys, *arguments, "--html", page)
    return page


def test_a_picture_of_a_block_s_steps(tmp_path, capsys):
    """As the table says it: who loads what, what the tiles hold, and the last sums."""
    path = tmp_path / "steps.svg"
    shown(capsys, "tiled", "--of", "1,1", "--picture", path)
    panels = path.read_text(encoding="utf-8").split(">step ")[1:]
    assert [panel.partition("<")[0] for panel in panels][:3] == [
        "1: line 11, 0 barriers passed",
        "2: line 12, 0 barriers passed",
        "3: line 14, 1 barrier passed",
    ]
    assert len(panels) == 9
    held = [re.findall(r'class="held fill-soft"[^>]*>([^<]*)', panel) for panel in panels]
    assert held[0] == ["M2,0", "M2,1", "M3,0", "M3,1"]
    assert held[8] == ["M2,2", "M2,3", "M3,2", "M3,3", "N2,2", "N2,3", "N3,2", "N3,3"]
    assert re.findall(r'class="mark"[^>]*>([^<]*)', panels[8]) == ["0,0", "1,0", "0,1", "1,1"]
    assert [len(re.findall('class="grown', panel)) for panel in panels] == [0, 0, 4, 4, 4, 4, 4, 4, 4]
    with pytest.raises(UsageError, match=r"the name must end in \.svg"):
        lab.work(lab.parse(["show", "tiled", "--picture", str(tmp_path / "steps.png")]))


def test_what_was_loaded_into_registers_is_what_shared_memory_holds():
    arrays = (*(Array(name, 4, 4, False) for name in "MNP"), *(Array(name, 2, 2, True) for name in ("Ms", "Ns")))
    loads = [Step(0, line, (Touch(0, line, 1, line, False),)) for line in (0, 1)]
    stores = [Step(0, 3 + of, (Touch(0, of, 0, 0, True), Touch(1, of, 0, 1, True))) for of in (3, 4)]
    data = steps_of(Picture("k(float*)", (), (1, 1), (2, 1), arrays, {(0, 0): (*loads, *stores)})).data
    stored = [[touch[5] for touch in step["touches"]] for step in data["blocks"][0]["steps"]]
    assert stored == [[""], [""], ["M1,0", "0"], ["N1,1", "0"]]


def test_more_steps_than_a_picture_has_are_counted(tmp_path, capsys):
    shown(capsys, "element", "--width", 16, "--picture", tmp_path / "steps.svg")
    text = (tmp_path / "steps.svg").read_text(encoding="utf-8")
    assert "block (0,0), the first 12 of 17 steps" in text
    assert len(re.findall(">step ", text)) == 12


def test_the_page_has_one_script_and_fetches_nothing(tmp_path, capsys):
    path = tmp_path / "x.cu"
    path.write_text(
        (SOLUTIONS / "tiles.cu").read_text() + '// </script><script>alert(1)</script><img src="https://example.org">\n'
    )
    text = written(tmp_path, capsys, path, "--tile", 2).read_text()
    assert len(re.findall(r"<script", text)) == 2
    assert "script-src &#x27;sha256-" in text
    assert not re.findall(r"<[^>]*\b(?:src|href)=", text)


def test_the_page_shows_each_step_in_a_browser(tmp_path, capsys):
    program, page = chromium(), written(tmp_path, capsys, "tiled")
    if program is None:
        pytest.skip("no Chromium on this machine")
    said, after = ("document.getElementById('said').textContent", "document.getElementById('after').click()")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as seen:
        for width in (360, 1280):
            seen.open(page, width)
            assert seen.value("document.documentElement.scrollWidth") <= width
            assert seen.value(said) == "Block (0,0), step 1 of 9, 0 barriers passed, line 11"
            assert seen.value("[...document.querySelectorAll('.cell.now')].map((each) => each.id).join()") == (
                "cell-0-0,cell-0-1,cell-0-4,cell-0-5,cell-3-0,cell-3-1,cell-3-2,cell-3-3"
            )
            seen.value("document.getElementById('phase-after').click()")
            seen.value(after)
            assert seen.value(said) == "Block (0,0), step 4 of 9, 1 barrier passed, line 14"
            assert (
                seen.value("[...document.querySelectorAll('.grown')].map((each) => each.style.height).join()")
                == "50%,50%,50%,50%"
            )
            assert seen.value("[...document.querySelectorAll('#shared .held')].map((each) => each.textContent).join(' ')") == (
                "M0,0 M0,1 M1,0 M1,1 N0,0 N0,1 N1,0 N1,1"
            )
            seen.value("document.querySelectorAll('#blocks button')[3].click()")
            seen.value(f"for (let i = 0; i < 20; ++i) {after}")
            assert seen.value(said) == "Block (1,1), step 9 of 9, 4 barriers passed, line 17"
            assert seen.requested() == [page.as_uri()]
            assert seen.complaints() == []
