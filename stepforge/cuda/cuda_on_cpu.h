// SPDX-License-Identifier: Apache-2.0
// Included by every .cu file. Under nvcc it is CUDA. Under another compiler the same source runs on the CPU, to be proved
// there: blocks run one after another, the threads of a block as fibers that switch only where they wait for each other, and each
// warp as far as it gets alone.
// A missing barrier shows as a difference between the two orders of threads, or as a NaN of shared memory, whose bytes are
// 0xFF when a block starts. Threads that wait for each other at different places end the launch with a std::logic_error.
//
// Grids and blocks have one dimension. Warps have 32 threads, which call warp functions all together.
#pragma once

#ifdef __CUDACC__

#include <cuda_bf16.h>

#define ROLLED _Pragma("unroll 1")  // the next loop stays a loop
#define LAUNCH(kernel, grid, block, stream, ...) (kernel)<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)

namespace stepforge::cuda {

/// Declare it __shared__.
template <typename T, int kCount>
struct SharedArray {
  alignas(16) T items[kCount];
  __device__ T& operator[](int i) { return items[i]; }
};

__device__ inline void check_alignment(const void*, int) {}

}  // namespace stepforge::cuda

#else

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/cuda/fiber.h"

#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define ROLLED
#define LAUNCH(kernel, grid, block, stream, ...) \
  (static_cast<void>(stream),                    \
   ::stepforge::cuda_on_cpu::machine().launch(grid, block, [&] { (kernel)(__VA_ARGS__); }))

struct CudaIndex {
  unsigned x = 0;
};
inline thread_local CudaIndex threadIdx;
inline thread_local CudaIndex blockIdx;
inline thread_local CudaIndex blockDim;
inline thread_local CudaIndex gridDim;

namespace stepforge::cuda_on_cpu {

enum class Order : uint8_t { ascending, descending };

enum class Wait : uint8_t { none, for_warp, for_block };

struct Thread {
  Fiber fiber = {};
  Wait wait = Wait::none;
  std::source_location place = {};  ///< where it waits
  bool ended = false;
  unsigned exchanges = 0;
  uint64_t values[2] = {};  ///< what it gave to its last two exchanges
};

/// The device that a host thread has.
class Machine {
 public:
  Order order = Order::ascending;  ///< of blocks, and of the threads of a block

  void launch(unsigned grid, unsigned block, const std::function<void()>& run) {
    if (grid == 0 || block == 0 || block > kMaxThreads) throw std::logic_error("a grid that CUDA refuses");
    run_ = &run;
    gridDim.x = grid;
    blockDim.x = block;
    while (threads_.size() < block) threads_.push_back(std::make_unique<Thread>());
    for (unsigned i = 0; i < grid; ++i) {
      blockIdx.x = in_order(i, grid);
      run_block(block);
    }
  }

  /// Of a thread of a kernel: goes on when all threads of its warp or block have come here.
  void wait(Wait wait, const std::source_location& place) {
    if (wait == Wait::for_warp && blockDim.x % kWarp != 0) throw std::logic_error("a warp that is not whole");
    Thread& thread = *threads_[threadIdx.x];
    thread.wait = wait;
    thread.place = place;
    thread.fiber.pause();
  }

  /// Of a thread of a kernel: `value` of the lane whose number differs in the bits of `distance`.
  template <typename T>
  T exchange(T value, unsigned distance, const std::source_location& place) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    Thread& own = *threads_[threadIdx.x];
    const unsigned turn = own.exchanges++ % 2;  // a lane may be one exchange ahead of another
    std::memcpy(&own.values[turn], &value, sizeof(T));
    wait(Wait::for_warp, place);
    std::memcpy(&value, &threads_[threadIdx.x ^ distance]->values[turn], sizeof(T));
    return value;
  }

  /// A number that each block has for itself; the first is 1.
  uint64_t block() const { return block_; }

 private:
  static constexpr unsigned kMaxThreads = 1024;
  static constexpr unsigned kWarp = 32;

  static void enter();  // of a fiber

  void run_block(unsigned count) {
    ++block_;
    for (unsigned i = 0; i < count; ++i) {
      threads_[i]->wait = Wait::none;
      threads_[i]->ended = false;
      threads_[i]->exchanges = 0;
      threads_[i]->fiber.start(enter);
    }
    const unsigned warps = (count + kWarp - 1) / kWarp;
    for (unsigned ended = 0; ended < count;) {
      for (unsigned i = 0; i < warps; ++i) {
        const unsigned begin = in_order(i, warps) * kWarp;
        ended += run_warp(begin, std::min(begin + kWarp, count));
      }
      if (ended < count) release_block(count);
    }
  }

  /// Goes as far as the warp can alone: a warp may be a whole barrier ahead of another. Returns how many threads have ended.
  unsigned run_warp(unsigned begin, unsigned end) {
    unsigned ended = 0;
    do {
      for (unsigned i = 0; i < end - begin; ++i) {
        threadIdx.x = begin + in_order(i, end - begin);
        Thread& thread = *threads_[threadIdx.x];
        if (thread.ended || thread.wait != Wait::none) continue;
        thread.fiber.resume();
        if (failure_ != nullptr) fail();
        if (thread.ended) ++ended;
      }
    } while (release(begin, end, Wait::for_warp));
    return ended;
  }

  unsigned in_order(unsigned i, unsigned count) const {
    return order == Order::ascending ? i : count - 1 - i;
  }

  /// Whether a thread is in the state of another.
  static bool alike(const Thread& one, const Thread& other) {
    return one.ended == other.ended && one.wait == other.wait && one.place.line() == other.place.line() &&
           one.place.column() == other.place.column() &&
           std::strcmp(one.place.file_name(), other.place.file_name()) == 0;
  }

  /// Lets threads [begin, end) go on if all of them wait at one place.
  bool release(unsigned begin, unsigned end, Wait wait) {
    for (unsigned i = begin; i < end; ++i) {
      const Thread& thread = *threads_[i];
      if (thread.ended || thread.wait != wait || !alike(*threads_[begin], thread)) return false;
    }
    for (unsigned i = begin; i < end; ++i) threads_[i]->wait = Wait::none;
    return true;
  }

  void release_block(unsigned count) {
    if (release(0, count, Wait::for_block)) return;
    failure_ = std::make_exception_ptr(std::logic_error(difference(count)));
    fail();
  }

  /// Two threads that do not wait together.
  std::string difference(unsigned count) const {
    unsigned other = 1;
    while (other + 1 < count && alike(*threads_[0], *threads_[other])) ++other;
    return "threads wait for each other at different places:" + state_of(0) + ";" + state_of(other);
  }

  std::string state_of(unsigned index) const {
    const Thread& thread = *threads_[index];
    const std::string name = " thread " + std::to_string(index);
    if (thread.ended) return name + " has ended";
    return name + (thread.wait == Wait::for_warp ? " waits for its warp in " : " waits for its block in ") +
           thread.place.function_name() + " at line " + std::to_string(thread.place.line());
  }

  /// Threads that have not ended are given up with their stacks.
  [[noreturn]] void fail() {
    threads_.clear();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  const std::function<void()>* run_ = nullptr;
  std::exception_ptr failure_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  uint64_t block_ = 0;
};

inline Machine& machine() {
  static thread_local Machine own;
  return own;
}

inline void Machine::enter() {
  Machine& own = machine();
  Thread& thread = *own.threads_[threadIdx.x];
  try {
    (*own.run_)();
  } catch (...) {
    own.failure_ = std::current_exception();
  }
  thread.ended = true;
  thread.fiber.pause();
}

}  // namespace stepforge::cuda_on_cpu

namespace stepforge::cuda {

/// Declare it __shared__. An index outside it throws std::logic_error.
template <typename T, int kCount>
class SharedArray {
 public:
  T& operator[](int i) {
    if (i < 0 || i >= kCount) throw std::logic_error("shared memory: no element " + std::to_string(i));
    if (block_ != cuda_on_cpu::machine().block()) std::memset(items_, 0xFF, sizeof items_);
    block_ = cuda_on_cpu::machine().block();
    return items_[i];
  }

 private:
  uint64_t block_ = 0;  ///< that uses it
  alignas(16) T items_[kCount] = {};
};

/// The device faults at addresses that are not aligned, most CPUs do not.
inline void check_alignment(const void* address, int bytes) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<unsigned>(bytes) != 0)
    throw std::logic_error("an address that is not aligned to " + std::to_string(bytes) + " bytes");
}

}  // namespace stepforge::cuda

inline void __syncthreads(const std::source_location& place = std::source_location::current()) {
  stepforge::cuda_on_cpu::machine().wait(stepforge::cuda_on_cpu::Wait::for_block, place);
}

inline void __syncwarp(const std::source_location& place = std::source_location::current()) {
  stepforge::cuda_on_cpu::machine().wait(stepforge::cuda_on_cpu::Wait::for_warp, place);
}

template <typename T>
T __shfl_xor_sync(unsigned /*lanes*/, T value, int distance,
                  const std::source_location& place = std::source_location::current()) {
  return stepforge::cuda_on_cpu::machine().exchange(value, static_cast<unsigned>(distance), place);
}

using std::isfinite;

struct __nv_bfloat16 {
  uint16_t bits = 0;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

/// To the nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

#endif
