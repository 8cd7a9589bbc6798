// SPDX-License-Identifier: Apache-2.0
// MKL computes libtorch's matrix products on the CPU. Two of its defaults do not suit us (docs/dependencies.md).
//
// It checks the processor's vendor before its instruction set, and has slow kernels for processors that are not from Intel. The
// first two functions replace its own, so that it chooses by instruction set. The program and libstepforge_torch both define them. The
// dynamic linker finds those before libtorch's own: first in the program, which loads libtorch later, or in a library that is linked before it.
//
// It also divides a product over threads in ways that change the last bits of small ones. In the strict mode of its conditional
// numerical reproducibility, which those slow kernels do not have, the number of threads changes no bit.

#include <cstdlib>

extern "C" {

// Functions of MKL's own service library; its manual does not list the first two, and the third as mkl_cbwr_set.
int mkl_serv_intel_cpu_true();
int mkl_serv_intel_cpu();
int mkl_serv_cbwr_set(int mode) __attribute__((weak));  // null if libtorch has another library

int mkl_serv_intel_cpu_true() {
  return __builtin_cpu_is("intel") || __builtin_cpu_supports("avx2") ? 1 : 0;
}

int mkl_serv_intel_cpu() {
  return mkl_serv_intel_cpu_true();
}
}

namespace {

/// When this library is loaded: MKL takes the mode only before its first product. A user's MKL_CBWR is respected.
__attribute__((constructor)) void set_mkl_mode() {
  constexpr int kBestInstructionSet = 2;  // MKL_CBWR_AUTO
  constexpr int kStrict = 0x10000;        // MKL_CBWR_STRICT
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the environment is never written
  if (mkl_serv_cbwr_set != nullptr && std::getenv("MKL_CBWR") == nullptr)
    mkl_serv_cbwr_set(kBestInstructionSet | kStrict);
}

}  // namespace
