// SPDX-License-Identifier: MIT
// Who am I? Every thread of the grid prints blockIdx.x, threadIdx.x and which process launched the kernel.
//
// The lecture's first kernel, launched by several processes: it uses no memory, only the two indices that tell threads apart.
// printf writes to a buffer on the GPU, which the host prints when it synchronizes. So the lines of a kernel come in any order,
// and lines beyond the buffer's size are lost silently.

__global__ void greeting(int process)
{
    printf("Hello from block %u, thread %u of the GPU, called by process %d\n", blockIdx.x, threadIdx.x, process);
}
