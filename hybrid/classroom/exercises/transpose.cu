// SPDX-License-Identifier: MIT
// A transpose through shared memory.
// This kernel is right, but its stores go down a column. Let each block load a tile into shared memory and store it turned, with
// all loads and stores coalesced, and no bank conflicts.
// ? The block's place is turned, too: x comes from blockIdx.y when it stores.
// ? A column of a 32×32 array lies in one bank. One element more in each row moves the rows apart.
// lab: block(32, 32) grid((columns + 31) / 32, (rows + 31) / 32)
__global__ void transpose(const float* in, float* out, int rows, int columns)
{
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    if (x < columns && y < rows) out[x * rows + y] = in[y * columns + x];
}
