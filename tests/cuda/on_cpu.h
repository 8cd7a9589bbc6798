// SPDX-License-Identifier: Apache-2.0
// Kernels of stepforge/cuda on tensors of the CPU, by cuda_on_cpu.h: memory with margins, and both orders of threads.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/plugin/arguments.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {

using cuda_plugin::dtype_of;

/// Of rows: one element, fewer than a load takes, and several loads for each thread.
constexpr int64_t kWidths[] = {1, 3, 17, 256, 1000, 4096};

/// What the reference in fp64 gets. Undefined tensors stay so.
inline at::Tensor wide(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kDouble) : tensor;
}

/// For expect_close(), of elements of this type: so many roundings of fp32, or that of a bf16 result.
inline double tolerance_of(at::ScalarType type, double roundings) {
  return type == at::kBFloat16 ? kEps16 : roundings * kEps32;
}

/// Memory of a kernel. Before it are bytes 0xFF (of floating-point numbers, NaN), which must stay as they are; after it, but for less
/// than 16 bytes, is memory that may not be touched.
class Guarded {
 public:
  /// A copy of `values`; `shift` elements after an address that is aligned to 16 bytes.
  explicit Guarded(const at::Tensor& values, int64_t shift = 0)
      : Guarded(values.sizes(), values.scalar_type(), shift) {
    view_.copy_(values);
  }

  /// Uninitialised: all NaN.
  Guarded(at::IntArrayRef shape, at::ScalarType type, int64_t shift = 0) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes =
        static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
    const std::size_t shifted = static_cast<std::size_t>(shift) * c10::elementSize(type);
    open_ = (bytes + shifted + kMargin + page - 1) / page * page;
    all_ = open_ + page;
    void* const memory = mmap(nullptr, all_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<unsigned char*>(memory);
    mprotect(begin_ + open_, page, PROT_NONE);
    std::memset(begin_, 0xFF, open_);
    first_ = (open_ - bytes - shifted) / 16 * 16 + shifted;
    view_ = at::from_blob(begin_ + first_, shape, at::TensorOptions(type));
  }

  ~Guarded() {
    const std::size_t last = first_ + view_.nbytes();
    const auto is_written = [](unsigned char byte) { return byte != 0xFF; };
    EXPECT_TRUE(std::none_of(begin_, begin_ + first_, is_written)) << "a write before memory";
    EXPECT_TRUE(std::none_of(begin_ + last, begin_ + open_, is_written)) << "a write behind memory";
    munmap(begin_, all_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  void* data() const { return view_.mutable_data_ptr(); }
  template <typename T>
  T* data() const {
    return view_.mutable_data_ptr<T>();
  }
  const at::Tensor& tensor() const { return view_; }
  at::Tensor copy() const { return view_.clone(); }

 private:
  static constexpr std::size_t kMargin = 256;
  unsigned char* begin_ = nullptr;
  std::size_t all_ = 0;
  std::size_t open_ = 0;   ///< bytes that may be touched
  std::size_t first_ = 0;  ///< of the tensor
  at::Tensor view_;
};

/// While it exists, threads run in this order.
class UseOrder {
 public:
  explicit UseOrder(cuda_on_cpu::Order order) : before_(cuda_on_cpu::machine().order) {
    cuda_on_cpu::machine().order = order;
  }
  ~UseOrder() { cuda_on_cpu::machine().order = before_; }
  UseOrder(const UseOrder&) = delete;
  UseOrder& operator=(const UseOrder&) = delete;

 private:
  cuda_on_cpu::Order before_;
};

inline bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

inline void expect_same_bits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                             const char* otherwise) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << "output " << i << otherwise;
}

/// What `compute` returns, which must be the same bits in both orders of threads.
inline std::vector<at::Tensor> in_both_orders(const std::function<std::vector<at::Tensor>()>& compute) {
  std::vector<at::Tensor> up = compute();
  const UseOrder descending(cuda_on_cpu::Order::descending);
  expect_same_bits(compute(), up, " depends on the order of threads");
  return up;
}

}  // namespace stepforge::testing
