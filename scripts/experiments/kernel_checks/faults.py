# SPDX-License-Identifier: MIT
"""The faults that scripts/mutants.py plants into the kernels: at least two for every idea that can be got wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

SHAPES = ((33, 29, 45), (17, 5, 130), (64, 64, 64), (40, 90, 70))
VECTORS = ((33, 29, 1), (17, 130, 1), (300, 5, 1))


@dataclass(frozen=True)
class Fault:
    """What is changed in a source, and the quickest mode that notices it."""

    name: str
    old: str
    new: str
    found_by: str = "forward"
    kind: str = "wrong"  # of the verdict that this mode must give
    file: str = ""  # "": the kernel's own source
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    capability: int = 90
    dtype: str = "float64"
    kernel: str = ""  # in which it must be noticed; or the check of remainder_checks.py that must notice it


def in_kernel(kernel: str, *faults: Fault) -> Sequence[Fault]:
    return [replace(fault, kernel=kernel) for fault in faults]


FAULTS = (
    *in_kernel(
        "naive",
        Fault("one row too many", "row < c.rows;", "row <= c.rows;", kind="canary"),
        Fault("a tall C's first rows only", "gridDim.y * Size(blockDim.y)", "c.rows", shapes=((1048586, 1, 1),)),
        Fault("columns taken for the stride", "row * stride + column",
              "row * columns + column", kind="canary", file="matrix.cuh"),
    ),
    *in_kernel(
        "column_per_thread",
        Fault("the sum goes on in the next row", "    for (Size row = 0; row < c.rows; ++row) {\n        T sum = 0;",
              "    T sum = 0;\n    for (Size row = 0; row < c.rows; ++row) {"),
        Fault("a bound of > for >=", "column >= c.columns", "column > c.columns", kind="canary"),
    ),
    *in_kernel(
        "row_per_thread",
        Fault("no bound on the threads", "if (row >= c.rows) return;", "", kind="canary"),
    ),
    *in_kernel(
        "matvec_warp",
        Fault("one fold too few", "distance; distance /= 2", "distance > 1; distance /= 2", shapes=VECTORS),
        Fault("half a warp in the mask", "0xffffffffu", "0x0000ffffu", kind="warp", shapes=VECTORS),
        Fault("lanes overlap", "k += 32", "k += 31", shapes=VECTORS),
    ),
    *in_kernel(
        "tiled",
        Fault("no barrier before the tiles are read", "__syncthreads();  // the tiles are whole", "", "threads", "race"),
        Fault("no barrier after the tiles were read", "__syncthreads();  // nobody needs them any more", ""),
        Fault("no zeros past the edge of k", "b_tile[y][x] = b.holds(left + y, column) ? b(left + y, column) : T(0);",
              "if (b.holds(left + y, column)) b_tile[y][x] = b(left + y, column);"),
        Fault("reads past A's last row", "a.holds(row, left + x) ? ", "left + x < a.columns ? ", "address", "address"),
        Fault("writes past C's last row", "if (c.holds(row, column))", "if (column < c.columns)", kind="canary"),
        Fault("writes past C's last column", "if (c.holds(row, column))",
              "if (row < c.rows && column <= c.columns)", kind="canary"),
        Fault("the wrong place in shared memory", "b_tile[k][x]", "b_tile[k + 1][x]"),
        Fault("a thread leaves before the barrier", "        T sum = 0;",
              "        if (row >= c.rows) return;\n        T sum = 0;", kind="barrier"),
    ),
    *in_kernel(
        "tiled32",
        Fault("a barrier for some threads only", "__syncthreads();  // the tiles are whole",
              "if (row < c.rows) __syncthreads();", kind="barrier"),
    ),
    *in_kernel(
        "register_tiled",
        Fault("no barrier after the tiles were read", "        __syncthreads();\n    }", "    }", "threads", "race"),
        Fault("a vector load half beyond the edge", "from.holds(row, column + WIDTH - 1)",
              "from.holds(row, column)", "address", "address", file="vectors.cuh"),
        Fault("a vector store half beyond the edge", "column + i + WIDTH <= c.columns",
              "column + i < c.columns", kind="canary", file="vectors.cuh"),
        Fault("a thread's second piece in the wrong column", "x + j * COLUMN_STEP", "x + j * VECTOR"),
        Fault("an unaligned vector load", "T a_tile[DEPTH][ROWS + VECTOR]", "T a_tile[DEPTH][ROWS + 1]",
              "undefined", "undefined"),
    ),
    *in_kernel(
        "pipelined",
        Fault("a wait too weak", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();", file="stages.cuh"),
        Fault("no barrier between tiles", "        __syncthreads();\n", "", file="stages.cuh"),
        Fault("a copy into the tile that is read", "tile < Pipeline::AHEAD", "tile < Pipeline::AHEAD + 1"),
        Fault("no zeros past the last row", "i * ROWS_PER_PASS < rows ? valid_bytes : 0", "valid_bytes", file="stages.cuh"),
        Fault("the swizzle of the copy is not that of the load", "tile + Tile::offset(row + i * ROWS_PER_PASS, column)",
              "tile + (row + i * ROWS_PER_PASS) * Tile::COLUMNS + column", file="stages.cuh"),
    ),
    *in_kernel(
        "warp_tiled",
        Fault("no barrier between tiles", "        __syncthreads();\n", "", file="stages.cuh"),
        Fault("copies are never closed as a group", "        copies_commit();\n", "", kind="copy", file="stages.cuh"),
        Fault("B is read where it was", "b_from += forward;", ""),
        Fault("lanes' rows overlap", "y = lane / 8 * VECTOR", "y = lane / 8", "undefined", "undefined"),
    ),
    *in_kernel(
        "tensor",
        Fault("a wait too weak", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();", file="stages.cuh"),
        Fault("no barrier between tiles", "        __syncthreads();\n", "", "threads", "race", file="stages.cuh"),
        Fault("an operand's k and column exchanged", "BTile::offset(2 * t, warp_column + 2 * g)",
              "BTile::offset(2 * (g % 4), warp_column + 2 * t)"),
        Fault("the results' order", "{sums[j][i][odd], sums[j][i][odd + 2]}", "{sums[j][i][2 * odd], sums[j][i][2 * odd + 1]}"),
        Fault("half of A's operands stay behind", "                        a_from[1] += forward;\n", ""),
        Fault("the last tile is copied without care", "tile + Pipeline::AHEAD < pipeline.full_tiles",
              "tile + Pipeline::AHEAD <= pipeline.full_tiles", shapes=((40, 90, 70),)),
        Fault("what is left along k is an earlier tile's", "pipeline.copy_checked(tile + Pipeline::AHEAD)",
              "pipeline.copy_checked(tile)"),
        Fault("an edge through a piece is forgotten", "cut ? 0 : ",
              "", "address", "address", file="stages.cuh", shapes=((130, 200, 129),)),
        Fault("the swizzle repeats too early", "to[i % PHASES] + i / PHASES * PHASES * ROWS_PER_PASS",
              "to[0] + i * ROWS_PER_PASS", file="stages.cuh", shapes=((64, 200, 64),)),
        Fault("the halves of an mma exchanged", "mma_m8n8k4(part, a[half + 2], b[1]);",
              "mma_m8n8k4(part, a[half + 2], b[0]);", file="hardware.cuh", capability=80),
    ),
    *in_kernel(
        "tensor_half",
        Fault("a wait too weak", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();", file="stages.cuh", dtype="float16"),
        Fault("no barrier between tiles", "        __syncthreads();\n", "", "threads", "race", file="stages.cuh",
              dtype="float16"),
        Fault("B is not transposed", "load_matrices_transposed(b_fragment", "load_matrices(b_fragment", dtype="bfloat16"),
        Fault("A's halves along k exchanged", "16 * step + lane / 16 * 8);", "16 * step + (1 - lane / 16) * 8);",
              dtype="bfloat16"),
        Fault("the first 8 of 16 columns twice", "[j / 2] + j % 2 * 2;", "[j / 2];", dtype="float16"),
        Fault("A is read without the swizzle", "ATile::offset(warp_row + lane % 16, 16 * step + lane / 16 * 8)",
              "(warp_row + lane % 16) * DEPTH + 16 * step + lane / 16 * 8", dtype="float16"),
        Fault("A is read without the swizzle of shorter rows", "ATile::offset(warp_row + lane % 16, 16 * step + lane / 16 * 8)",
              "(warp_row + lane % 16) * DEPTH + 16 * step + lane / 16 * 8", dtype="bfloat16", capability=80),
        Fault("B is read without the swizzle", "BTile::offset(lane % 16, warp_column + 16 * part + lane / 16 * 8)",
              "lane % 16 * COLUMNS + warp_column + 16 * part + lane / 16 * 8", dtype="float16"),
        Fault("one register buffer for two steps", "load_matrices_transposed(b_fragment[step % 2][part]",
              "load_matrices_transposed(b_fragment[0][part]", dtype="float16"),
        Fault("the last of A's addresses stays behind", "i < STEPS; ++i) a_from[i]", "i < STEPS - 1; ++i) a_from[i]",
              file="mma_loop.cuh", dtype="float16", shapes=((40, 300, 70),)),
        Fault("on to the next tile one step too early", "if (step == STEPS - 1) {", "if (step == STEPS - 2) {",
              file="mma_loop.cuh", dtype="float16"),
        Fault("rows of C exchanged", "16 * i + 8 * half + g,", "16 * i + 2 * g + half,", dtype="bfloat16"),
        Fault("pairs are stored to addresses of one", "WIDTH >= 4 ? 2 : 1", "2", "undefined", "undefined", dtype="float16"),
        Fault("no zeros for single elements beyond the edge", "valid ? *static_cast<const unsigned short*>(global) : 0",
              "*static_cast<const unsigned short*>(global)", file="stages.cuh", dtype="float16"),
        Fault("an edge through a piece is forgotten", "cut ? 0 : ",
              "", "address", "address", file="stages.cuh", shapes=((130, 300, 129),), dtype="float16"),
    ),
    *in_kernel(
        "tensor_int8",
        Fault("a wait too weak", "copies_wait<STAGES - 2>();", "copies_wait<STAGES - 1>();", file="stages.cuh", dtype="int8"),
        Fault("no barrier between tiles", "        __syncthreads();\n", "", "threads", "race", file="stages.cuh", dtype="int8"),
        Fault("rows of B in the order in which they lie", "lane % 8 * 2 + lane / 8 % 2", "lane % 16", dtype="int8"),
        Fault("bytes below each other put together wrong", "(r[0], r[1], 0x6240)", "(r[0], r[1], 0x6420)", dtype="int8"),
        Fault("even columns twice", "(r[2], r[3], 0x7351)", "(r[2], r[3], 0x6240)", dtype="int8"),
        Fault("A is read without the swizzle", "ATile::offset(warp_row + lane % 16, 32 * step + lane / 16 * 16)",
              "(warp_row + lane % 16) * DEPTH + 32 * step + lane / 16 * 16", dtype="int8"),
        Fault("B is read without the swizzle", "BTile::offset(row, warp_column + 16 * part)",
              "row * COLUMNS + warp_column + 16 * part", dtype="int8"),
        Fault("unsigned instead of signed bytes", "mma_m16n8k32<T>", "mma_m16n8k32<unsigned char>", dtype="int8"),
        Fault("even columns of C before the odd ones", "even[0], odd[0], even[1], odd[1]", "even[0], even[1], odd[0], odd[1]",
              dtype="int8", shapes=((33, 29, 48),)),
        Fault("single columns of C in the wrong order", "n % 2 ? odd[n / 2] : even[n / 2]", "n / 2 ? odd[n % 2] : even[n % 2]",
              dtype="int8"),
        Fault("four are stored beyond the edge", "WIDTH == 16 && column + 3 < c.columns", "WIDTH == 16 && column < c.columns",
              kind="canary", dtype="int8"),
        Fault("no bound on the rows", "if (r >= c.rows) continue;", "", kind="canary", dtype="int8"),
        Fault("no zeros for single bytes beyond the edge", "valid ? *static_cast<const unsigned char*>(global) : 0",
              "*static_cast<const unsigned char*>(global)", file="stages.cuh", dtype="int8"),
    ),
)  # fmt: skip
