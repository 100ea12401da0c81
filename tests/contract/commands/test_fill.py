# SPDX-License-Identifier: MIT
"""The matrices that --fill makes: the page's formulas, the same on any machine and for any ranks, nodes, threads and types;
others for another seed."""

import itertools

import numpy as np
import pytest
from support.matmul import good
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

ROWS, WIDTH, BLOCK = 1100, 1000, 1 << 19  # three blocks of numbers that begin anew, in the middle of rows


@pytest.fixture
def made(tmp_path):
    """A or B as the command makes it: its product with the identity."""
    np.save(tmp_path / "eye.npy", np.eye(WIDTH, dtype=np.int8))

    def matrix(which, *arguments, rows=ROWS, dtype="float64", **more):
        if which == "A":
            sizes, eye = (rows, WIDTH, WIDTH), "--b"
        else:
            sizes, eye = (WIDTH, WIDTH, rows), "--a"
        good(*sizes, eye, "eye.npy", "--out", "c.npy", "--check", "off", "--dtype", dtype, *arguments, cwd=tmp_path, **more)
        return np.load(tmp_path / "c.npy")

    return matrix


def sfc64(*start):
    """The words of SFC64 after a start from three, as its author seeds it: 18 steps first."""
    below = 2**64 - 1
    a, b, c = start
    for counter in itertools.count(1):
        word = (a + b + counter) & below
        a, b, c = b ^ (b >> 11), (c + (c << 3)) & below, (((c << 24) | (c >> 40)) + word) & below
        if counter > 18:
            yield word


def by_definition(fill, matrix, seed, block, count, single=False):
    """The first numbers of a block of 2^19, from the words of SFC64 that begins with seed, matrix and block."""
    words = list(itertools.islice(sfc64(seed % 2**64, "AB".index(matrix), block), count))
    halves = [half for word in words for half in (word & (2**32 - 1), word >> 32)]
    if fill == "uniform":
        return [(half >> 8) / 2.0**24 for half in halves][:count] if single else [(word >> 11) / 2.0**53 for word in words]
    if matrix == "B":
        return [(half >> bit) & 1 for half in halves for bit in range(32)][:count]
    # Bytes, times 3, divided by 256; byte 0 alone is drawn again: 256 is 85·3 + 1.
    return [byte * 3 // 256 for half in halves for byte in half.to_bytes(4, "little") if byte * 3 % 256 >= 1][:count]


@pytest.mark.parametrize(
    ("fill", "matrix", "dtype", "seed"),
    exhaustive(
        [("uniform", "A", "float64", -1), ("lecture", "A", "float64", 5), ("lecture", "B", "float32", 2**64 - 2),
         ("uniform", "B", "float32", 5)],
        itertools.product(("uniform", "lecture"), "AB", ("float32", "float64"), (5, -1, 2**64 - 2)),
    ),
)  # fmt: skip
def test_the_same_numbers_on_every_machine(made, fill, matrix, dtype, seed):
    """A change of these words changes the results of all seeds: keep it for a new version."""
    found = made(matrix, "--fill", fill, "--seed", seed, dtype=dtype).reshape(-1)
    for block in (0, 1, 2):
        start = block * BLOCK
        wanted = by_definition(fill, matrix, seed, block, 300, single=dtype == "float32")
        np.testing.assert_array_equal(found[start : start + 300], wanted, err_msg=f"block {block}")
    values = np.unique(found)
    if fill == "lecture":
        assert values.tolist() == list(range(3 if matrix == "A" else 2))
        counts = np.unique(found, return_counts=True)[1] / found.size
        np.testing.assert_allclose(counts, 1 / len(values), atol=0.01)
    else:
        assert (values.min() >= 0, values.max() < 1) == (True, True)
        np.testing.assert_allclose(np.histogram(found, 10, (0, 1))[0] / found.size, 0.1, atol=0.005)


@pytest.mark.parametrize("fill", exhaustive(["normal"], ["normal", "lecture", "uniform", "index"]))
def test_the_same_for_any_ranks_nodes_and_threads(made, fill):
    whole = made("A", "--fill", fill, "--seed", 7, "--threads", 1)
    for way, threads in (("2 nodes", 1), ("staged", 3)):
        np.testing.assert_array_equal(made("A", "--fill", fill, "--seed", 7, "--threads", threads, way=way), whole)
    np.testing.assert_array_equal(made("A", "--fill", fill, "--seed", 7, rows=501), whole[:501])  # whatever follows
    if fill == "normal":
        assert abs(whole.mean()) < 0.01
        assert abs(whole.std() - 1) < 0.01
        assert (np.abs(whole) > 2).mean() == pytest.approx(0.0455, abs=0.002)
        blocks = whole.reshape(-1)[: 2 * BLOCK].reshape(2, BLOCK)
        assert abs(np.corrcoef(blocks)[0, 1]) < 6 / BLOCK**0.5  # six deviations of the correlation of independent blocks
    if fill == "index":
        np.testing.assert_array_equal(whole, np.arange(ROWS * WIDTH * 1.0).reshape(ROWS, WIDTH))


def test_index_is_the_page_s_formula_of_both_matrices(made):
    """[y][x] = x + y·width."""
    y, x = np.mgrid[:30, :WIDTH]
    np.testing.assert_array_equal(made("A", "--fill", "index", rows=30), x + y * WIDTH)
    y, x = np.mgrid[:WIDTH, :30]
    np.testing.assert_array_equal(made("B", "--fill", "index", rows=30), x + y * 30)


def test_seeds_matrices_and_rows_differ(made):
    a, b = (made(which, "--fill", "uniform", "--seed", 2**63, rows=WIDTH) for which in "AB")
    assert not (a == b).any()
    assert len(np.unique(a, axis=0)) == WIDTH
    for seed in (2**63 + 1, -(2**63) + 1, 0):
        assert not (made("A", "--fill", "uniform", "--seed", seed, rows=WIDTH) == a).any(), seed
