// Work in two streams, with what orders it missing in each case; main() takes its name, and "" for none.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <chrono>

__global__ void twice(const int* from, int* to) { to[threadIdx.x] = 2 * from[threadIdx.x]; }

int main(int argc, char** argv)
{
    auto is = [&](const char* name) { return argc > 1 && !strcmp(argv[1], name); };
    const size_t bytes = 64 * sizeof(int), half = bytes / 2;
    int *host, *from, *to, sum = 0;
    cudaStream_t one, two;
    cudaEvent_t copied, begin, end;
    cudaStreamCreate(&one), cudaStreamCreate(&two);
    cudaEventCreate(&copied), cudaEventCreate(&begin), cudaEventCreate(&end);
    cudaMallocHost(&host, bytes), cudaMalloc(&from, bytes), cudaMalloc(&to, bytes);
    for (int i = 0; i < 64; ++i) host[i] = i;
    cudaMemcpyAsync(from, host, bytes, cudaMemcpyHostToDevice, two);
    cudaEventRecord(copied, two);
    if (!is("copy not awaited")) cudaStreamWaitEvent(one, copied, 0);
    if (!is("not recorded")) cudaEventRecord(begin, one);
    clock_t began = clock();
    auto now = std::chrono::steady_clock::now();
    twice<<<1, 64, 0, one>>>(from, to);  //! copy not awaited: data-race
    if (is("clock")) printf("%ld\n", (long)(clock() - began));  //! clock: too-early
    if (is("chrono")) printf("%d\n", std::chrono::steady_clock::now() > now);  //! chrono: too-early
    cudaEventRecord(end, one);
    if (is("overwritten")) host[3] = 1;  //! overwritten: data-race
    if (is("copy not awaited")) cudaStreamSynchronize(two);
    cudaMemcpyAsync(host, to, half, cudaMemcpyDeviceToHost, one);  // halves in turn, in two streams
    cudaEventSynchronize(end);
    cudaMemcpyAsync(host + 32, to + 32, half, cudaMemcpyDeviceToHost, two);
    if (!is("result too early")) cudaStreamSynchronize(one);
    while (cudaStreamQuery(two) != cudaSuccess) {}
    sum = host[0];  //! result too early: data-race
    float ms = 0;
    if (is("not ready")) cudaEventRecord(end, one);
    if (cudaEventElapsedTime(&ms, begin, end)) return 0;  //! not recorded: cudaErrorInvalidResourceHandle //! not ready: cudaErrorNotReady
    cudaFree(from), cudaFree(to);
    if (is("after reset")) cudaDeviceReset(), cudaMemset(to, 0, bytes);  //! after reset: cudaErrorInvalidValue
    printf("%d, %d\n", sum, now == now);
    return 0;
}
