// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/reduce.h"

namespace stepforge::cuda {

namespace {

constexpr int kReduceThreads = 256;
constexpr int kChunk = 1024;
constexpr int kLanes = 16;  // of a chunk's sum
constexpr int kChunksOfBlock = kReduceThreads / kLanes;

// A norm's terms: `term` of an element is added to a lane, and lanes are joined.

struct Magnitudes {
  static __device__ double add(double lane, double value) { return lane + value; }
  static __device__ double join(double left, double right) { return left + right; }
};

struct Squares : Magnitudes {
  static __device__ double add(double lane, double value) { return lane + value * value; }
};

struct Cubes : Magnitudes {
  static __device__ double add(double lane, double value) { return lane + value * value * value; }
};

/// NaN wins, from either side.
struct LargestMagnitude {
  static __device__ double join(double left, double right) {
    return right > left || right != right ? right : left;
  }
  static __device__ double add(double lane, double value) { return join(lane, value); }
};

/// The order of cpu/reduce.cpp: sixteen lanes, element i of a chunk in lane i % 16, folded in halves. Each is a thread here.
template <typename Norm>
__global__ void __launch_bounds__(kReduceThreads)
    terms_of_chunks(const float* flat, int64_t elements, double* partials) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t chunks = (elements + kChunk - 1) / kChunk;
  for (int64_t first = int64_t{blockIdx.x} * kChunksOfBlock; first < chunks;
       first += int64_t{gridDim.x} * kChunksOfBlock) {
    const int64_t chunk = first + threadIdx.x / kLanes;  // perhaps past the end, but all lanes shuffle
    const int64_t end = (chunk + 1) * kChunk < elements ? (chunk + 1) * kChunk : elements;
    double sum = 0.0;
    for (int64_t i = chunk * kChunk + lane; i < end; i += kLanes) sum = Norm::add(sum, fabs(double{flat[i]}));
    for (int half = kLanes / 2; half > 0; half /= 2)
      sum = Norm::join(sum, __shfl_xor_sync(kAllLanes, sum, half));
    if (lane == 0 && chunk < chunks) partials[chunk] = sum;
  }
}

/// Calls run(norm).
template <typename Run>
void with_norm(NormType type, const Run& run) {
  switch (type) {
    case NormType::l1:
      return run(Magnitudes());
    case NormType::l2:
      return run(Squares());
    case NormType::l3:
      return run(Cubes());
    case NormType::inf:
      return run(LargestMagnitude());
  }
}

/// One block: its threads read a tile together, and the first adds it in order. With a count it writes the mean. The result may be
/// where `start` or `count` is.
template <typename Norm, typename T>
__global__ void __launch_bounds__(kReduceThreads)
    join_in_order(const T* values, int64_t elements, const double* start, double* joined,
                  const double* count) {
  __shared__ SharedArray<double, kReduceThreads> tile;
  double all = start == nullptr ? 0.0 : *start;
  for (int64_t begin = 0; begin < elements; begin += kReduceThreads) {
    const int own = static_cast<int>(threadIdx.x);
    if (begin + own < elements) tile[own] = values[begin + own];
    __syncthreads();
    const int size = elements - begin < kReduceThreads ? static_cast<int>(elements - begin) : kReduceThreads;
    if (own == 0) {
      for (int i = 0; i < size; ++i) all = Norm::join(all, tile[i]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *joined = count == nullptr ? all : *count > 0.0 ? all / *count : 0.0;
}

__global__ void __launch_bounds__(kReduceThreads)
    find_bad(const float* flat, int64_t elements, double* finite) {
  for (int64_t i = thread_of_grid(); i < elements; i += threads_of_grid()) {
    if (!isfinite(flat[i])) *finite = 0.0;  // all that write, write the same
  }
}

/// write(): by one thread.
template <typename Write>
__global__ void run_once(Write write) {
  write();
}

struct WriteNumber {
  double number;
  double* to;
  __device__ void operator()() const { *to = number; }
};

struct WriteNorm {
  NormType type;
  const double* terms;
  double* norm;
  __device__ void operator()() const {
    *norm = type == NormType::l2 ? sqrt(*terms) : type == NormType::l3 ? cbrt(*terms) : *terms;
  }
};

struct WriteReciprocal {
  const double* count;
  double* weight;
  __device__ void operator()() const { *weight = *count > 0.0 ? 1.0 / *count : 0.0; }
};

struct WriteClip {
  const double* norm;
  double max_norm;
  double* coefficient;
  __device__ void operator()() const {
    const double ratio = max_norm / (*norm + 1e-6);
    *coefficient = max_norm > 0.0 && ratio < 1.0 ? ratio : 1.0;
  }
};

struct WriteFlag {
  const double* first;
  const double* second;
  double* flag;
  __device__ void operator()() const { *flag = isfinite(*first) && isfinite(*second) ? 1.0 : 0.0; }
};

template <typename Write>
void launch_once(Write write, Stream stream) {
  const auto kernel = run_once<Write>;
  LAUNCH(kernel, 1, 1, stream, write);
}

template <typename T>
void add_in_order(const T* values, int64_t elements, double* sum, const double* count, Stream stream) {
  const auto kernel = join_in_order<Magnitudes, T>;
  const double* const from_zero = nullptr;
  LAUNCH(kernel, 1, kReduceThreads, stream, values, elements, from_zero, sum, count);
}

}  // namespace

void norm_terms_by_chunk(const float* flat, int64_t elements, NormType type, double* partials,
                         Stream stream) {
  with_norm(type, [&](auto norm) {
    const auto kernel = terms_of_chunks<decltype(norm)>;
    LAUNCH(kernel, blocks_for(elements, kChunksOfBlock * kChunk), kReduceThreads, stream, flat, elements,
           partials);
  });
}

void join_norm_terms(NormType type, const double* terms, int64_t count, double* joined, Stream stream) {
  const double* const no_mean = nullptr;
  const auto run = [&](auto kernel) {
    LAUNCH(kernel, 1, kReduceThreads, stream, terms, count, joined, joined, no_mean);
  };
  if (type == NormType::inf) {
    run(join_in_order<LargestMagnitude, double>);
  } else {
    run(join_in_order<Magnitudes, double>);
  }
}

void norm_of_terms(NormType type, const double* terms, double* norm, Stream stream) {
  launch_once(WriteNorm{type, terms, norm}, stream);
}

void all_finite(const float* flat, int64_t elements, double* finite, Stream stream) {
  launch_once(WriteNumber{1.0, finite}, stream);
  LAUNCH(find_bad, blocks_for(elements, kReduceThreads), kReduceThreads, stream, flat, elements, finite);
}

void sum_in_order(DType type, const void* flat, int64_t elements, double* sum, Stream stream) {
  if (type == DType::f32) {
    add_in_order(static_cast<const float*>(flat), elements, sum, nullptr, stream);
  } else {
    add_in_order(static_cast<const double*>(flat), elements, sum, nullptr, stream);
  }
}

void reciprocal_or_zero(const double* count, double* weight, Stream stream) {
  launch_once(WriteReciprocal{count, weight}, stream);
}

void mean_in_order(const double* values, int64_t elements, const double* count, double* mean, Stream stream) {
  add_in_order(values, elements, mean, count, stream);
}

void clip_coefficient(const double* norm, double max_norm, double* coefficient, Stream stream) {
  launch_once(WriteClip{norm, max_norm, coefficient}, stream);
}

void flag_if_finite(const double* first, const double* second, double* flag, Stream stream) {
  launch_once(WriteFlag{first, second, flag}, stream);
}

}  // namespace stepforge::cuda
