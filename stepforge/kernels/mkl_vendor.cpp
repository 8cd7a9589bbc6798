// SPDX-License-Identifier: Apache-2.0
// MKL computes libtorch's matrix products on the CPU. It checks the processor's vendor before its instruction
// set, and uses AVX2 kernels on processors that are not from Intel. These replacements make it choose by
// instruction set: on an AMD EPYC with AVX-512 its fp32 products are 2.2 times as fast
// (docs/dependencies.md). The dynamic linker finds these definitions before libtorch's own, because programs
// load libtorch through this library.

extern "C" {

// Functions of MKL's own service library; its manual does not list them.
int mkl_serv_intel_cpu_true();
int mkl_serv_intel_cpu();

int mkl_serv_intel_cpu_true() {
  return __builtin_cpu_is("intel") || __builtin_cpu_supports("avx512f") ? 1 : 0;
}

int mkl_serv_intel_cpu() {
  return mkl_serv_intel_cpu_true();
}
}
