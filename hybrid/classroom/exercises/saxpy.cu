// SPDX-License-Identifier: MIT
// More elements than threads.
// y[i] = a * x[i] + y[i] for n elements, by 4 blocks of 256 threads, however large n is.
// ? A thread goes on to the element that lies as far away as there are threads in the grid.
// ? The grid has gridDim.x * blockDim.x threads.
// lab: block(256) grid(4)
__global__ void saxpy(float a, const float* x, float* y, int n)
{
    // elements of y
}
