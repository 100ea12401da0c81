// Several columns a thread; the launch has the kernel's own name of the size.
#define TILE_WIDTH 16
#define COARSE 4
// lab: grid((Width + TILE_WIDTH * COARSE - 1) / (TILE_WIDTH * COARSE), (Width + TILE_WIDTH - 1) / TILE_WIDTH) block(TILE_WIDTH, TILE_WIDTH)
__global__ void matrixMulKernel(float* M, float* N, float* P, int Width)
{
    __shared__ float Mds[TILE_WIDTH][TILE_WIDTH];
    __shared__ float Nds[TILE_WIDTH][TILE_WIDTH];
    int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
    int row = by * TILE_WIDTH + ty, colStart = bx * TILE_WIDTH * COARSE + tx;
    float Pvalue[COARSE];
    for (int c = 0; c < COARSE; ++c) Pvalue[c] = 0.0f;
    for (int ph = 0; ph < (Width + TILE_WIDTH - 1) / TILE_WIDTH; ++ph) {
        Mds[ty][tx] = (row < Width && ph * TILE_WIDTH + tx < Width) ? M[row * Width + ph * TILE_WIDTH + tx] : 0;
        for (int c = 0; c < COARSE; ++c) {
            int col = colStart + c * TILE_WIDTH;
            Nds[ty][tx] = (col < Width && ph * TILE_WIDTH + ty < Width) ? N[(ph * TILE_WIDTH + ty) * Width + col] : 0;
            __syncthreads();
            for (int k = 0; k < TILE_WIDTH; ++k) Pvalue[c] += Mds[ty][k] * Nds[k][tx];
            __syncthreads();
        }
    }
    for (int c = 0; c < COARSE; ++c) {
        int col = colStart + c * TILE_WIDTH;
        if (row < Width && col < Width) P[row * Width + col] = Pvalue[c];
    }
}
