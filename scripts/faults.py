"""The faults that scripts/mutants.py plants into the kernels: at least two for every idea that can be got wrong."""

from __future__ import annotations

from dataclasses import dataclass

SHAPES = ((33, 29, 45), (17, 5, 130), (64, 64, 64), (40, 90, 70))
VECTORS = ((33, 29, 1), (17, 130, 1), (300, 5, 1))


@dataclass(frozen=True)
class Fault:
    """What is changed in `file`, in which kernel it must be noticed, and the quickest mode that does."""

    name: str
    kernel: str
    file: str
    old: str
    new: str
    found_by: str = "forward"
    kind: str = "wrong"  # of the verdict that this mode must give
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    dtype: str = "float64"
    capability: int = 90


FAULTS = (
    Fault("one row too many", "naive", "naive.cu", "row < c.rows;", "row <= c.rows;", kind="canary"),
    Fault(
        "a tall C's first rows only",
        "naive",
        "naive.cu",
        "gridDim.y * Size(blockDim.y)",
        "c.rows",
        shapes=((1048570 + 16, 1, 1),),
    ),
    Fault(
        "the sum goes on in the next row",
        "column_per_thread",
        "column_per_thread.cu",
        "    for (Size row = 0; row < c.rows; ++row) {\n        T sum = 0;",
        "    T sum = 0;\n    for (Size row = 0; row < c.rows; ++row) {",
    ),
    Fault("no bound on the threads", "row_per_thread", "row_per_thread.cu", "if (row >= c.rows) return;", "", kind="canary"),
    Fault(
        "a bound of > for >=",
        "column_per_thread",
        "column_per_thread.cu",
        "column >= c.columns",
        "column > c.columns",
        kind="canary",
    ),
    Fault(
        "columns taken for the stride", "naive", "matrix.cuh", "row * stride + column", "row * columns + column", kind="canary"
    ),
    Fault(
        "one fold too few", "matvec_warp", "matvec.cu", "distance; distance /= 2", "distance > 1; distance /= 2", shapes=VECTORS
    ),
    Fault("half a warp in the mask", "matvec_warp", "matvec.cu", "0xffffffffu", "0x0000ffffu", shapes=VECTORS, kind="warp"),
    Fault("lanes overlap", "matvec_warp", "matvec.cu", "k += 32", "k += 31", shapes=VECTORS),
    Fault(
        "no barrier before the tiles are read",
        "tiled",
        "tiled.cu",
        "__syncthreads();  // the tiles are whole",
        "",
        "threads",
        "race",
    ),
    Fault("no barrier after the tiles were read", "tiled", "tiled.cu", "__syncthreads();  // nobody needs them any more", ""),
    Fault(
        "no zeros past the edge of k",
        "tiled",
        "tiled.cu",
        "b_tile[y][x] = b.holds(left + y, column) ? b(left + y, column) : T(0);",
        "if (b.holds(left + y, column)) b_tile[y][x] = b(left + y, column);",
    ),
    Fault(
        "reads past A's last row",
        "tiled",
        "tiled.cu",
        "a.holds(row, left + x) ? ",
        "left + x < a.columns ? ",
        "address",
        kind="address",
    ),
    Fault("writes past C's last row", "tiled", "tiled.cu", "if (c.holds(row, column))", "if (column < c.columns)", kind="canary"),
    Fault(
        "writes past C's last column",
        "tiled",
        "tiled.cu",
        "if (c.holds(row, column))",
        "if (row < c.rows && column <= c.columns)",
        kind="canary",
    ),
    Fault("the wrong place in shared memory", "tiled", "tiled.cu", "b_tile[k][x]", "b_tile[k + 1][x]"),
    Fault(
        "a thread leaves before the barrier",
        "tiled",
        "tiled.cu",
        "        T sum = 0;",
        "        if (row >= c.rows) return;\n        T sum = 0;",
        kind="barrier",
    ),
    Fault(
        "a barrier for some threads only",
        "tiled32",
        "tiled.cu",
        "__syncthreads();  // the tiles are whole",
        "if (row < c.rows) __syncthreads();",
        kind="barrier",
    ),
    Fault(
        "no barrier after the tiles were read",
        "register_tiled",
        "register_tiled.cu",
        "        __syncthreads();\n    }",
        "    }",
        "threads",
        "race",
    ),
    Fault(
        "a vector load half beyond the edge",
        "register_tiled",
        "vectors.cuh",
        "from.holds(row, column + WIDTH - 1)",
        "from.holds(row, column)",
        "address",
        kind="address",
    ),
    Fault(
        "a vector store half beyond the edge",
        "register_tiled",
        "vectors.cuh",
        "column + i + WIDTH <= c.columns",
        "column + i < c.columns",
        kind="canary",
    ),
    Fault(
        "a thread's second piece in the wrong column",
        "register_tiled",
        "register_tiled.cu",
        "x + j * COLUMN_STEP",
        "x + j * VECTOR",
    ),
    Fault(
        "an unaligned vector load",
        "register_tiled",
        "register_tiled.cu",
        "T a_tile[DEPTH][ROWS + VECTOR]",
        "T a_tile[DEPTH][ROWS + 1]",
        "undefined",
        kind="undefined",
    ),
    Fault("a wait too weak", "pipelined", "stages.cuh", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();"),
    Fault("no barrier between tiles", "pipelined", "stages.cuh", "        __syncthreads();\n", ""),
    Fault(
        "a copy into the tile that is read", "pipelined", "pipelined.cu", "tile < Pipeline::AHEAD", "tile < Pipeline::AHEAD + 1"
    ),
    Fault("no zeros past the last row", "pipelined", "stages.cuh", "i * ROWS_PER_PASS < rows ? valid_bytes : 0", "valid_bytes"),
    Fault(
        "the swizzle of the copy is not that of the load",
        "pipelined",
        "stages.cuh",
        "tile + Tile::offset(row + i * ROWS_PER_PASS, column)",
        "tile + (row + i * ROWS_PER_PASS) * Tile::COLUMNS + column",
    ),
    Fault("no barrier between tiles", "warp_tiled", "stages.cuh", "        __syncthreads();\n", ""),
    Fault("copies are never closed as a group", "warp_tiled", "stages.cuh", "        copies_commit();\n", "", kind="copy"),
    Fault("B is read where it was", "warp_tiled", "warp_tiled.cu", "b_from += forward;", ""),
    Fault(
        "lanes' rows overlap",
        "warp_tiled",
        "warp_tiled.cu",
        "y = lane / 8 * VECTOR",
        "y = lane / 8",
        found_by="undefined",
        kind="undefined",
    ),
    Fault("a wait too weak", "tensor", "stages.cuh", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();"),
    Fault("no barrier between tiles", "tensor", "stages.cuh", "        __syncthreads();\n", "", "threads", "race"),
    Fault(
        "an operand's k and column exchanged",
        "tensor",
        "tensor.cu",
        "BTile::offset(2 * t, warp_column + 2 * g)",
        "BTile::offset(2 * (g % 4), warp_column + 2 * t)",
    ),
    Fault(
        "the results' order",
        "tensor",
        "tensor.cu",
        "{sums[j][i][odd], sums[j][i][odd + 2]}",
        "{sums[j][i][2 * odd], sums[j][i][2 * odd + 1]}",
    ),
    Fault("half of A's operands stay behind", "tensor", "tensor.cu", "                        a_from[1] += forward;\n", ""),
    Fault(
        "the last tile is copied without care",
        "tensor",
        "tensor.cu",
        "tile + Pipeline::AHEAD < pipeline.full_tiles",
        "tile + Pipeline::AHEAD <= pipeline.full_tiles",
        shapes=((40, 90, 70),),
    ),
    Fault(
        "what is left along k is an earlier tile's",
        "tensor",
        "tensor.cu",
        "pipeline.copy_checked(tile + Pipeline::AHEAD)",
        "pipeline.copy_checked(tile)",
    ),
    Fault(
        "an edge through a piece is forgotten",
        "tensor",
        "stages.cuh",
        "cut ? 0 : ",
        "",
        "address",
        shapes=((130, 200, 129),),
        kind="address",
    ),
    Fault(
        "the swizzle repeats too early",
        "tensor",
        "stages.cuh",
        "to[i % PHASES] + i / PHASES * PHASES * ROWS_PER_PASS",
        "to[0] + i * ROWS_PER_PASS",
        shapes=((64, 200, 64),),
    ),
    Fault(
        "the halves of an mma exchanged",
        "tensor",
        "tensor.cu",
        "mma_m8n8k4(part, a[half + 2], b[1]);",
        "mma_m8n8k4(part, a[half + 2], b[0]);",
        capability=80,
    ),
)
