# SPDX-License-Identifier: MIT
"""docs/learn.md, The picture on the blackboard, and the pages of `lab run --html`: the steps are those that the kernel does, the
counters stand beside their lines, and nothing that a file says becomes HTML."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from support.chromium import browser, chromium
from support.commands import ROOT
from support.lab import DATA, changed, lab
from support.pages import Page

pytestmark = pytest.mark.needs("compiler", "addr2line")

TILED = (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")


def shown(*arguments, **options):
    done = lab("show", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text):
    """What the threads did in each step."""
    return [re.split(r"\s{2,}", line)[1:] for line in text.splitlines() if line.startswith("line ")]


def test_the_tiled_kernel_does_what_the_slide_s_table_says(tmp_path):
    """Width 4, tiles of 2: in two phases each thread loads one element of each matrix and makes two products. The picture has the
    same steps."""
    text = shown("tiled", "--width", 4, "--tile", 2, "--of", "1,0", "--picture", tmp_path / "steps.svg")
    expected, threads = [], [(x, y) for y in (0, 1) for x in (0, 1)]
    for phase in (0, 1):
        expected.append([f"M[{y}][{2 * phase + x}] → Ms[{y}][{x}]" for x, y in threads])
        expected.append([f"N[{2 * phase + y}][{2 + x}] → Ns[{y}][{x}]" for x, y in threads])
        expected += [[f"Ms[{y}][{k}] Ns[{k}][{x}]" for x, y in threads] for k in (0, 1)]
    expected.append([f"→ P[{y}][{2 + x}]" for x, y in threads])
    assert rows(text) == expected
    assert re.search(r"^block \(1,0\) +thread \(0,0\) +thread \(1,0\) +thread \(0,1\) +thread \(1,1\)", text, re.MULTILINE)
    assert re.findall(r"^-- (\d) barriers? passed$", text, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    panels = (tmp_path / "steps.svg").read_text(encoding="utf-8").split(">step ")[1:]
    assert [panel.partition(":")[0] for panel in panels] == [str(step) for step in range(1, 10)]
    held = [re.findall(r'class="held fill-soft"[^>]*>([^<]*)', panel) for panel in panels]
    assert held[0] == ["M0,0", "M0,1", "M1,0", "M1,1"]
    assert held[8] == ["M0,2", "M0,3", "M1,2", "M1,3", "N2,2", "N2,3", "N3,2", "N3,3"]


@pytest.mark.exhaustive
def test_a_thread_s_way_through_memory(tmp_path):
    text = shown("element", "--width", 4)
    assert "thread (0,0) loads M[0, 1, 2, 3] as memory numbers them, stride 1\n" in text
    assert "thread (0,0) loads N[0, 4, 8, 12] as memory numbers them, stride 4\n" in text
    shown("element", "--width", 16, "--picture", tmp_path / "steps.svg")
    assert len(re.findall(">step ", (tmp_path / "steps.svg").read_text(encoding="utf-8"))) == 12  # of 17


@pytest.mark.exhaustive
def test_a_kernel_of_one_s_own_is_shown_as_it_is_not_as_it_should_be(tmp_path):
    """Here B is read along its rows, by a function, and blocks of one dimension go over the elements."""
    (tmp_path / "mine.cu").write_text(
        "// lab: block(3) grid((n * m + 2) / 3)\n__device__ float at(const float* matrix, int i) { return matrix[i]; }\n"
        "__global__ void mine(float* A, float* B, float* C, int n, int l, int m)\n{\n    int i = blockIdx.x * 3 + threadIdx.x;\n"
        "    if (i >= n * m) return;\n    float sum = 0;\n    for (int k = 0; k < l; ++k)\n        sum += A[i / m * l + k] *\n"
        "            at(B, i % m * l + k);\n    C[i] = sum;\n}\n"
    )
    text = shown(tmp_path / "mine.cu", "--sizes", 2, 2, 2)
    assert next(row for row in rows(text) if "B" in row[0]) == ["B[0][0]", "B[1][0]", "B[0][0]"]
    assert "thread (0,0) loads B[0, 1] as memory numbers them, stride 1\n" in text
    assert [row[0] for row in rows(shown(tmp_path / "mine.cu", "--sizes", 2, 2, 2, "--of", "1,0"))][-1] == "→ C[1][1]"


@pytest.mark.exhaustive
def test_a_small_launch_is_chosen_where_no_size_is_given(tmp_path):
    """Tiles of 2 for those of 16, or blocks of 2."""
    for name, steps in (("tiles", 9), ("element", 5)):
        text = shown(DATA / "solutions" / f"{name}.cu")
        assert "2×2 blocks of 2×2 threads" in text
        assert len(rows(text)) == steps


@pytest.mark.exhaustive
def test_dynamic_shared_memory_and_a_template(tmp_path):
    (tmp_path / "dynamic.cu").write_text(
        "// lab: block(2, 2) grid((m + 1) / 2, (n + 1) / 2) shared(16)\n"
        "template <typename T> __global__ void tile(const T* a, const T* b, T* c, int n, int l, int m)\n{\n"
        "    extern __shared__ float rows[];\n    int x = threadIdx.x, y = threadIdx.y;\n    T sum = 0;\n"
        "    for (int k = 0; k < l; k += 2) {\n        rows[y * 2 + x] = a[(blockIdx.y * 2 + y) * l + k + x];\n"
        "        __syncthreads();\n        for (int e = 0; e < 2; ++e)\n"
        "            sum += rows[y * 2 + e] * b[(k + e) * m + blockIdx.x * 2 + x];\n        __syncthreads();\n    }\n"
        "    c[(blockIdx.y * 2 + y) * m + blockIdx.x * 2 + x] = sum;\n}\n"
    )
    text = shown(tmp_path / "dynamic.cu", "--kernel", "tile<float>", "--width", 4)
    assert rows(text)[0][3] == "a[1][1] → extern __shared__[0][3]"
    assert len([row for row in rows(text) if "b[" in row[0]]) == 4


RACE = """#define TILE 16
__global__ void race(const float* M, const float* N, float* P, int Width)
{
    __shared__ float both[2][TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < Width; k += TILE) {
        both[0][y][x] = row < Width && k + x < Width ? M[row * Width + k + x] : 0;
        both[1][y][x] = column < Width && k + y < Width ? N[(k + y) * Width + column] : 0;
        __syncthreads();
        for (int e = 0; e < TILE; ++e) sum += both[0][y][e] * both[1][e][x];
        __syncthreads();
    }
    if (row < Width && column < Width) P[row * Width + column] = sum;
}
"""


def test_in_a_race_one_thread_runs_ahead_and_planes_of_shared_arrays_are_drawn(tmp_path):
    """Without the second barrier thread (0,0) stores its next elements where (1,0) has not yet read the first ones."""
    (tmp_path / "race.cu").write_text(changed(RACE, [("[e][x];\n        __syncthreads();", "[e][x];")]))
    text = shown(tmp_path / "race.cu", "--html", tmp_path / "race.html", "--picture", tmp_path / "race.svg")
    assert "[data-race]" in text
    ahead = [re.split(r"\s{2,}", line) for line in text.splitlines() if " ahead" in line]
    assert ahead == [
        ["line 11 ahead", "both[0][0][0] both[1][0][0]"],
        ["line 11 ahead", "both[0][0][1] both[1][1][0]"],
        ["line 8 ahead", "M[0][2] → both[0][0][0]"],
    ]
    assert rows(text)[5] == ["both[0][0][0] both[1][0][1]", "both[0][1][0] both[1][0][0]", "both[0][1][0] both[1][0][1]"]
    html = (tmp_path / "race.html").read_text(encoding="utf-8")
    assert re.findall(r">([^<>]*), shared<", html)[:2] == ["both[0]", "both[1]"]
    assert re.search(r"Block \(0,0\), step \d+ of \d+, 1 barrier passed, line 11: 0,0 runs ahead", html)
    assert (tmp_path / "race.svg").read_text(encoding="utf-8").count(", ahead<") == 3


@pytest.mark.exhaustive
def test_the_shape_is_shown_on_which_the_kernel_is_wrong(tmp_path):
    """Whole tiles, where it is right on both; else edges, up to the access that is beyond a matrix."""
    (tmp_path / "right.cu").write_text(RACE)
    (tmp_path / "wrong.cu").write_text(changed(RACE, [("column < Width && k + y < Width", "column < Width")]))
    right, wrong = shown(tmp_path / "right.cu"), shown(tmp_path / "wrong.cu")
    assert ("P (4×4) = M (4×4) · N (4×4)" in right, "ahead" in right, "[out-of-bounds]" in right) == (True, False, False)
    assert ("P (3×3) = M (3×3) · N (3×3)" in wrong, "[out-of-bounds]" in wrong) == (True, True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "code"),
    [(("sum += a[", "sum += n / (m - m) * a["), "kernel-launch"), (("k < l; ++k", "volatile_k < l"), "compile-failed")],
    ids=["divides by zero", "no C++"],
)
def test_what_crashes_is_not_shown(tmp_path, change, code):
    (tmp_path / "row.cu").write_text(changed((DATA / "solutions" / "row.cu").read_text(), [change]))
    done = lab("show", tmp_path / "row.cu", "--stall", 60)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"[{code}]" in done.stderr


def page(folder, text, *options):
    """The exit code of a run, and the page."""
    path = folder / "<b>&.cu"
    path.write_text(text, encoding="utf-8")
    done = lab("run", path, "--html", folder / "page.html", *options)
    return done.returncode, (folder / "page.html").read_text(encoding="utf-8")


def test_the_page_has_counters_beside_their_lines_and_the_steps_and_takes_the_file_as_text(tmp_path):
    """Its steps are those of small tiles where the file's can be changed."""
    hostile = '\n// </td></script><script>alert("x")</script><img src="https://example.org/x.png">\n'
    code, text = page(tmp_path, TILED + hostile, "--sizes", 37, 37, 37, "--gpu", "H200")
    parsed = Page(text)
    assert code == 0
    assert "<h1>&lt;b&gt;&amp;.cu, MatrixMulKernel: right</h1>" in text
    assert "loads from M: " in parsed.rows["line-11"]
    assert "divergent in 66 of 387" in parsed.rows["line-11"]
    assert "no bank conflicts" in parsed.rows["line-14"]
    assert parsed.rows["line-13"].strip() == "13        __syncthreads();"
    assert 'aria-label="roofline of H200"' in text
    assert not {"img", "link", "iframe", "b"} & {*parsed.names}
    assert [attributes.get("id") for tag, attributes in parsed.tags if tag == "script"] == ["data", None]
    assert parsed.attributes("src", "href") == []
    assert "script-src &#x27;sha256-" in text
    steps = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    assert len(steps) == text.count("<button aria-pressed") == 4


def test_the_page_and_the_picture_show_where_c_is_wrong(tmp_path):
    """Here every 16th column is not written."""
    text = changed(TILED, [("if (row < Width && column < Width) P[", "if (column % 16 && row < Width && column < Width) P[")])
    code, html = page(tmp_path, text, "--sizes", 32, 32, 32, "--picture", tmp_path / "map.svg")
    assert code == 1
    assert '<span class="wrong">wrong</span></h1>' in html
    marks = re.findall(r'<rect class="fill-third" x="(\d+)" y="(\d+)" width="1" height="1"/>', html)
    assert {(int(x), int(y)) for x, y in marks} == {(x, y) for x in (0, 16) for y in range(32)}
    assert "never written</text>" in (tmp_path / "map.svg").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_without_a_wrong_c_and_a_gpu_there_is_no_picture(tmp_path):
    done = lab("run", "tiled", "--sizes", 16, 16, 16, "--picture", "it.svg", cwd=tmp_path)
    assert (done.returncode, "not written" in done.stdout, list(tmp_path.iterdir())) == (0, True, [])


@pytest.mark.needs("chromium")
def test_the_page_shows_each_step_in_a_browser(tmp_path):
    """Whole at 390 and 1280 px, without a request to anywhere."""
    shown("tiled", "--html", tmp_path / "page.html")

    def visible(elements):
        shown = f"[...document.querySelectorAll('{elements}')].filter((each) => each.getClientRects().length)"
        return f"{shown}.map((each) => each.textContent).join(' ')"

    said, after = "document.getElementById('said').textContent", "document.getElementById('after').click()"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(chromium(), Path(folder)) as seen:
        for width in (390, 1280):
            seen.open(tmp_path / "page.html", width)
            assert seen.value("document.documentElement.scrollWidth") <= width
            assert "step 1 of 9" in seen.value(said)
            assert seen.value(visible(".mark")) == "0,0 0,0 1,0 1,0 0,1 0,1 1,1 1,1"  # of M, and where they store in Ms
            assert seen.value("document.getElementById('threads').textContent").startswith("0,0 M[0][0] → Ms[0][0]1,0 M[0][1]")
            seen.value("document.getElementById('phase-after').click()")
            seen.value(after)
            assert "step 4 of 9" in seen.value(said)
            assert seen.value(visible(".held")) == "M0,0 M0,1 M1,0 M1,1 N0,0 N0,1 N1,0 N1,1"
            seen.value("document.querySelectorAll('#blocks button')[3].click()")
            seen.value(f"for (let i = 0; i < 20; ++i) {after}")
            assert "(1,1), step 9 of 9" in seen.value(said)
            assert seen.requested() == [(tmp_path / "page.html").as_uri()]
            assert seen.complaints() == []
