// Who am I? Every thread of the grid says its block, its place in the block, and which process launched it.
//
// The lecture's first kernel on several processes: no memory, only the two numbers that tell threads apart. printf here
// writes into a buffer of the GPU's; the host shows it when it waits for the kernel. So the lines of one kernel come in any
// order, and what exceeds the buffer is lost without a word.

__global__ void greeting(int process)
{
    printf("Hello from block %u, thread %u of the GPU, called by process %d\n", blockIdx.x, threadIdx.x, process);
}
