// Squares on the GPU, compared with the CPU: exits 0 only where a kernel really ran.
#include <cstdio>

__global__ void square(const int *in, int *out, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) out[at] = in[at] * in[at];
}

static int failed(const char *where, cudaError_t error) {
  std::fprintf(stderr, "%s: %s\n", where, cudaGetErrorString(error));
  return 1;
}

int main() {
  constexpr int count = 1 << 16;
  int *in = nullptr, *out = nullptr;
  if (cudaError_t e = cudaMallocManaged(&in, count * sizeof(int))) return failed("malloc", e);
  if (cudaError_t e = cudaMallocManaged(&out, count * sizeof(int))) return failed("malloc", e);
  for (int i = 0; i < count; ++i) in[i] = i % 1000, out[i] = -1;
  square<<<(count + 255) / 256, 256>>>(in, out, count);
  if (cudaError_t e = cudaGetLastError()) return failed("launch", e);
  if (cudaError_t e = cudaDeviceSynchronize()) return failed("run", e);
  for (int i = 0; i < count; ++i)
    if (out[i] != in[i] * in[i]) return std::fprintf(stderr, "%d is wrong\n", i), 1;
  std::printf("squared %d\n", count);
  return 0;
}
