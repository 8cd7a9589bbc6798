// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/dropout_add.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

constexpr int64_t kLanes = 16;

/// philox() of base/random.h for sixteen consecutive counters at once: words[w][lane] is word w for counter +
/// lane.
STEPFORGE_INLINE void philox_lanes(uint64_t key, uint64_t counter, uint64_t counter_high,
                                   uint32_t words[4][kLanes]) {
  uint32_t s0[kLanes], s1[kLanes], s2[kLanes], s3[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const uint64_t low = counter + static_cast<uint64_t>(lane);
    s0[lane] = static_cast<uint32_t>(low);
    s1[lane] = static_cast<uint32_t>(low >> 32);
    s2[lane] = static_cast<uint32_t>(counter_high);
    s3[lane] = static_cast<uint32_t>(counter_high >> 32);
  }
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t product0 = uint64_t{0xD2511F53} * s0[lane];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * s2[lane];
      const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ s1[lane] ^ key0;
      const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ s3[lane] ^ key1;
      s0[lane] = next0;
      s1[lane] = static_cast<uint32_t>(product1);
      s2[lane] = next2;
      s3[lane] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    words[0][lane] = s0[lane];
    words[1][lane] = s1[lane];
    words[2][lane] = s2[lane];
    words[3][lane] = s3[lane];
  }
}

/// Dropout of the elements of one token.
struct RowDraw {
  uint64_t key;
  uint64_t row_id;
  uint64_t position;
  int64_t channel;     ///< of the first element
  uint32_t threshold;  ///< an element is kept when its word is at least this
  float scale;         ///< of kept elements
};

/// out = residual + factor * x, where factor is 0 or draw.scale; `residual` may be null.
template <typename T>
STEPFORGE_INLINE void drop_row_body(const T* x, const T* residual, T* out, int64_t width,
                                    const RowDraw& draw) {
  constexpr int64_t kBlock =
      4 * kLanes;  // channels per call of philox_lanes(), which begins with a multiple of four
  const int64_t skipped = draw.channel % 4;
  const int64_t taken = skipped == 0 ? kBlock : kBlock - 4;
  for (int64_t begin = 0; begin < width; begin += taken) {
    uint32_t words[4][kLanes];
    const int64_t first = draw.channel + begin - skipped;
    philox_lanes(draw.key, (draw.position << 32) | static_cast<uint64_t>(first / 4), draw.row_id, words);
    float drawn[kBlock];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t w = 0; w < 4; ++w)
        drawn[4 * lane + w] = words[w][lane] >= draw.threshold ? draw.scale : 0.0F;
    }
    const float* const factors = drawn + skipped;
    const int64_t count = width - begin < taken ? width - begin : taken;
    if (residual != nullptr) {  // NOLINT(bugprone-branch-clone): they differ inside the directives
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        store(out + begin + c, load(residual + begin + c) + load(x + begin + c) * factors[c]);
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) store(out + begin + c, load(x + begin + c) * factors[c]);
    }
  }
}

STEPFORGE_SIMD_CLONES void drop_row(const float* x, const float* residual, float* out, int64_t width,
                                    const RowDraw& draw) {
  drop_row_body(x, residual, out, width, draw);
}
STEPFORGE_SIMD_CLONES void drop_row(const BFloat16* x, const BFloat16* residual, BFloat16* out, int64_t width,
                                    const RowDraw& draw) {
  drop_row_body(x, residual, out, width, draw);
}

template <typename T>
STEPFORGE_INLINE void add_body(const T* x, const T* residual, T* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(out + i, load(residual + i) + load(x + i));
}
STEPFORGE_SIMD_CLONES void add(const float* x, const float* residual, float* out, int64_t count) {
  add_body(x, residual, out, count);
}
STEPFORGE_SIMD_CLONES void add(const BFloat16* x, const BFloat16* residual, BFloat16* out, int64_t count) {
  add_body(x, residual, out, count);
}

/// drop_row() for every token; `residual` may be undefined.
template <typename T>
void drop_rows(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
               const TokenCoords& coords, const at::Tensor& out) {
  const int64_t width = x.size(1);
  const T* source = x.const_data_ptr<T>();
  const T* base = residual.defined() ? residual.const_data_ptr<T>() : nullptr;
  T* target = out.mutable_data_ptr<T>();
  const auto* rows = coords.row_ids.const_data_ptr<int64_t>();
  const auto* positions = coords.positions.const_data_ptr<int32_t>();
  at::parallel_for(0, x.size(0), rows_per_task(8 * width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const RowDraw draw = {.key = key.key,
                            .row_id = static_cast<uint64_t>(rows[n]),
                            .position = static_cast<uint32_t>(positions[n]),
                            .channel = coords.channel,
                            .threshold = static_cast<uint32_t>(p * 0x1.0p32),
                            .scale = static_cast<float>(1.0 / (1.0 - p))};
      drop_row(source + n * width, base == nullptr ? nullptr : base + n * width, target + n * width, width,
               draw);
    }
  });
}

template <typename T>
void add_all(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& out) {
  const T* source = x.const_data_ptr<T>();
  const T* base = residual.const_data_ptr<T>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, x.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    add(source + begin, base + begin, target + begin, end - begin);
  });
}

}  // namespace

void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out) {
  const bool is_fp32 = x.scalar_type() == at::kFloat;
  if (p == 0.0) {
    is_fp32 ? add_all<float>(x, residual, out) : add_all<BFloat16>(x, residual, out);
  } else {
    is_fp32 ? drop_rows<float>(x, residual, p, key, coords, out)
            : drop_rows<BFloat16>(x, residual, p, key, coords, out);
  }
}

void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x) {
  if (p == 0.0) {
    if (grad_x.const_data_ptr() != grad_out.const_data_ptr()) grad_x.copy_(grad_out);
  } else if (grad_out.scalar_type() == at::kFloat) {
    drop_rows<float>(grad_out, {}, p, key, coords, grad_x);
  } else {
    drop_rows<BFloat16>(grad_out, {}, p, key, coords, grad_x);
  }
}

}  // namespace stepforge::cpu
