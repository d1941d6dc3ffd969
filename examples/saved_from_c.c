/* Calls the kernel that saved_from_c.py saved, from C.

   Without a GPU it only asks what the header knows by itself: which arguments the launcher refuses.
   With one, compiled by nvcc with -DWITH_GPU together with the
   .cu, it launches the kernel on ones and compares a result. */

#include <stdio.h>

#include "pg_up.h"

#ifdef WITH_GPU
#include <cuda_runtime_api.h>
#include <stdlib.h>
#endif

enum { M = 512, N = 256, K = 128 };

static int told(const char* what, int code) {
  printf("%s: %d\n", what, code);
  return code;
}

static int on_cpu(void) {
  /* Addresses are only compared here, never followed. */
  static unsigned short memory[64];
  char* at = (char*)memory;
  at += (16 - (unsigned long long)at % 16) % 16;
  const unsigned short* x = (const unsigned short*)at;
  const unsigned short* w = (const unsigned short*)(at + (1 << 24));
  const unsigned short* b = (const unsigned short*)(at + (2 << 24));
  unsigned short* y = (unsigned short*)(at + (3 << 24));
  if (told("arguments that fit", pg_up_check(x, w, b, y, M, K, N, K, K, N))) return 1;
  if (!told("rows that end inside a copy", pg_up_check(x, w, b, y, M, K + 1, N, K + 1, K + 1, N)))
    return 1;
  if (!told("a result over an operand", pg_up_check(x, w, b, (unsigned short*)at, M, K, N, K, K, N)))
    return 1;
  return 0;
}

#ifdef WITH_GPU
static int on_gpu(void) {
  const unsigned short one = 0x3f80; /* 1.0 in bfloat16 */
  unsigned short* host = (unsigned short*)malloc(sizeof(*host) * M * N);
  unsigned short *x, *w, *b, *y;
  for (int i = 0; i < M * N; ++i) host[i] = one;
  if (cudaMalloc((void**)&x, 2 * M * K) || cudaMalloc((void**)&w, 2 * N * K)) return 1;
  if (cudaMalloc((void**)&b, 2 * N) || cudaMalloc((void**)&y, 2 * M * N)) return 1;
  if (cudaMemcpy(x, host, 2 * M * K, cudaMemcpyHostToDevice)) return 1;
  if (cudaMemcpy(w, host, 2 * N * K, cudaMemcpyHostToDevice)) return 1;
  if (cudaMemcpy(b, host, 2 * N, cudaMemcpyHostToDevice)) return 1;
  if (told("launch", pg_up_launch(x, w, b, y, M, K, N, K, K, N, 0))) return 1;
  if (cudaMemcpy(host, y, 2 * M * N, cudaMemcpyDeviceToHost)) return 1;
  /* gelu(128 + 1) is 129 in bfloat16. */
  for (int i = 0; i < M * N; ++i)
    if (host[i] != 0x4301) return told("a wrong result, in bits", host[i]);
  printf("all %d results are 129\n", M * N);
  return 0;
}
#endif

int main(void) {
  if (on_cpu()) return 1;
#ifdef WITH_GPU
  if (on_gpu()) return 1;
#endif
  printf("right\n");
  return 0;
}
