// MKL, which does libtorch's matrix products on the CPU, asks for the maker of the processor before it looks
// at what the processor can do, and gives others than Intel's its AVX2 kernels. Here it is told by
// instruction set: on an AMD EPYC with AVX-512 its fp32 products are 2.2 times as fast
// (docs/dependencies.md). The dynamic linker finds these definitions before libtorch's own, because programs
// load libtorch through this library.

extern "C" {

// Questions MKL asks of its own service library, not in its manual.
int mkl_serv_intel_cpu_true();
int mkl_serv_intel_cpu();

int mkl_serv_intel_cpu_true() {
  return __builtin_cpu_is("intel") || __builtin_cpu_supports("avx512f") ? 1 : 0;
}

int mkl_serv_intel_cpu() {
  return mkl_serv_intel_cpu_true();
}
}
