// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/rope.h"

namespace stepforge::cuda {

namespace {

constexpr int kRopeThreads = kRopeWarps * kWarp;

/// Some elements of both halves of a head: pairs that are rotated together.
template <int kCount>
struct Pairs {
  float low[kCount];
  float high[kCount];

  template <typename T>
  __device__ void read(const T* head, int half, int i) {
    load(head + i, low);
    load(head + half + i, high);
  }
  template <typename T>
  __device__ void write(T* head, int half, int i) const {
    store(low, head + i);
    store(high, head + half + i);
  }
  /// `direction`: 1, or -1 for the transpose.
  __device__ void rotate(const float* cos, const float* sin, int i, float direction) {
    float c[kCount];
    float s[kCount];
    load(cos + i, c);
    load(sin + i, s);
    for (int k = 0; k < kCount; ++k) {
      const float turn = direction * s[k];
      const float rotated = low[k] * c[k] - high[k] * turn;
      high[k] = high[k] * c[k] + low[k] * turn;
      low[k] = rotated;
    }
  }
};

/// Sizes of a call: small numbers, whose products are cheap.
struct Sizes {
  int head_dim;
  int half;
  int query_units;
  int units;  ///< of a token: its norms, or heads without a norm
  float offset;

  __device__ explicit Sizes(const QkRotation& r)
      : head_dim(static_cast<int>(r.head_dim)),
        half(head_dim / 2),
        query_units(static_cast<int>(r.heads) / static_cast<int>(r.q_span)),
        units(query_units + static_cast<int>(r.kv_heads) / static_cast<int>(r.k_span)),
        offset(static_cast<float>(r.offset)) {}
};

/// Heads of one token that a warp handles together.
template <typename W>
struct Unit {
  bool is_query;
  int span;          ///< heads
  int64_t begin;     ///< of the first head, in qkv
  const float* cos;  ///< of the token
  const float* sin;
  const W* weight;  ///< null without a norm

  __device__ Unit(const QkRotation& r, const Sizes& sizes, int64_t token, int index)
      : is_query(index < sizes.query_units), span(static_cast<int>(is_query ? r.q_span : r.k_span)) {
    const int64_t head = is_query ? index * span : r.heads + (index - sizes.query_units) * span;
    begin = token * r.row_width() + head * r.head_dim;
    const int64_t angles = int64_t{r.positions[token]} * sizes.half;
    cos = r.cos + angles;
    sin = r.sin + angles;
    weight = static_cast<const W*>(is_query ? r.q_weight : r.k_weight);
  }

  template <int kCount>
  __device__ Pairs<kCount> scale(const Sizes& sizes, int head, int i) const {
    Pairs<kCount> factors;
    factors.read(weight + head * sizes.head_dim, sizes.half, i);
    for (int k = 0; k < kCount; ++k) {
      factors.low[k] += sizes.offset;
      factors.high[k] += sizes.offset;
    }
    return factors;
  }

  /// visit(head, i) for the pairs of this lane: the same in each unit of this span.
  template <int kCount, typename Visit>
  __device__ void for_pairs(int half, const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ROLLED for (int head = 0; head < span; ++head) {
      ROLLED for (int i = lane * kCount; i < half; i += kWarp * kCount) visit(head, i);
    }
  }
};

template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kRopeThreads)
    forward_units(QkRotation r, const T* qkv, T* out, float* rstd) {
  const Sizes sizes(r);
  for (int64_t token = blockIdx.x; token < r.tokens; token += gridDim.x) {
    for (int index = static_cast<int>(threadIdx.x) / kWarp; index < sizes.units; index += kRopeWarps) {
      const Unit<W> unit(r, sizes, token, index);
      const T* const x = qkv + unit.begin;
      float factor = 1.0F;
      if (unit.weight != nullptr) {
        float squares = 0.0F;
        unit.template for_pairs<kCount>(sizes.half, [&](int head, int i) {
          Pairs<kCount> pairs;
          pairs.read(x + head * sizes.head_dim, sizes.half, i);
          for (int k = 0; k < kCount; ++k)
            squares += pairs.low[k] * pairs.low[k] + pairs.high[k] * pairs.high[k];
        });
        squares = join_in_warp(squares, Sum());
        const auto count = static_cast<float>(unit.span * sizes.head_dim);
        factor = 1.0F / sqrtf(squares / count + static_cast<float>(r.eps));
        if (threadIdx.x % kWarp == 0) rstd[token * sizes.units + index] = factor;
      }
      unit.template for_pairs<kCount>(sizes.half, [&](int head, int i) {
        Pairs<kCount> pairs;
        pairs.read(x + head * sizes.head_dim, sizes.half, i);
        if (unit.weight != nullptr) {
          const auto scale = unit.template scale<kCount>(sizes, head, i);
          for (int k = 0; k < kCount; ++k) {
            pairs.low[k] *= factor * scale.low[k];
            pairs.high[k] *= factor * scale.high[k];
          }
        }
        pairs.rotate(unit.cos, unit.sin, i, 1.0F);
        pairs.write(out + unit.begin + head * sizes.head_dim, sizes.half, i);
      });
    }
  }
}

/// The v heads, if they are not in place.
template <typename T>
__global__ void __launch_bounds__(kRopeThreads) copy_values(QkRotation r, const T* qkv, T* out) {
  const int64_t width = r.kv_heads * r.head_dim;
  const int64_t first = (r.heads + r.kv_heads) * r.head_dim;
  for (int64_t n = blockIdx.x; n < r.tokens; n += gridDim.x) {
    const int64_t begin = n * r.row_width() + first;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) out[begin + d] = qkv[begin + d];
  }
}

/// Without a norm.
template <typename T, int kCount>
__global__ void __launch_bounds__(kRopeThreads) turn_back(QkRotation r, T* grad_qkv) {
  const Sizes sizes(r);
  for (int64_t token = blockIdx.x; token < r.tokens; token += gridDim.x) {
    for (int index = static_cast<int>(threadIdx.x) / kWarp; index < sizes.units; index += kRopeWarps) {
      const Unit<T> unit(r, sizes, token, index);
      unit.template for_pairs<kCount>(sizes.half, [&](int head, int i) {
        T* const grad = grad_qkv + unit.begin + head * sizes.head_dim;
        Pairs<kCount> pairs;
        pairs.read(grad, sizes.half, i);
        pairs.rotate(unit.cos, unit.sin, i, -1.0F);
        pairs.write(grad, sizes.half, i);
      });
    }
  }
}

/// The gradient of one unit; `sums`, of its weight, gets the unit's share. A lane has the same pairs in every unit, so no other
/// touches its sums.
template <int kCount, typename T, typename W>
__device__ void unit_gradient(const Sizes& sizes, const Unit<W>& unit, T* grad_qkv, const T* qkv, float rstd,
                              float* sums) {
  const auto turned = [&](int head, int i) {
    Pairs<kCount> pairs;
    pairs.read(grad_qkv + unit.begin + head * sizes.head_dim, sizes.half, i);
    pairs.rotate(unit.cos, unit.sin, i, -1.0F);
    return pairs;
  };
  float dot = 0.0F;
  unit.template for_pairs<kCount>(sizes.half, [&](int head, int i) {
    const Pairs<kCount> grad = turned(head, i);
    const Pairs<kCount> scale = unit.template scale<kCount>(sizes, head, i);
    Pairs<kCount> x;
    x.read(qkv + unit.begin + head * sizes.head_dim, sizes.half, i);
    for (int k = 0; k < kCount; ++k)
      dot += grad.low[k] * scale.low[k] * x.low[k] + grad.high[k] * scale.high[k] * x.high[k];
  });
  dot = join_in_warp(dot, Sum());
  const float pull = dot * rstd * rstd / static_cast<float>(unit.span * sizes.head_dim);
  unit.template for_pairs<kCount>(sizes.half, [&](int head, int i) {
    Pairs<kCount> grad = turned(head, i);
    const Pairs<kCount> scale = unit.template scale<kCount>(sizes, head, i);
    Pairs<kCount> x;
    Pairs<kCount> sum;
    x.read(qkv + unit.begin + head * sizes.head_dim, sizes.half, i);
    sum.read(sums + head * sizes.head_dim, sizes.half, i);
    for (int k = 0; k < kCount; ++k) {
      sum.low[k] += grad.low[k] * x.low[k] * rstd;
      sum.high[k] += grad.high[k] * x.high[k] * rstd;
      grad.low[k] = rstd * (grad.low[k] * scale.low[k] - x.low[k] * pull);
      grad.high[k] = rstd * (grad.high[k] * scale.high[k] - x.high[k] * pull);
    }
    sum.write(sums + head * sizes.head_dim, sizes.half, i);
    grad.write(grad_qkv + unit.begin + head * sizes.head_dim, sizes.half, i);
  });
}

/// A block has a part of the tokens; each of its warps sums gradients of the weights for itself, in shared memory if they fit.
template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kRopeThreads, 2)
    backward_units(QkRotation r, int64_t tokens_of_block, T* grad_qkv, const T* qkv, const float* rstd,
                   float* partials) {
  constexpr int kSharedSums = 8192;
  __shared__ SharedArray<float, kSharedSums> of_warps;
  const Sizes sizes(r);
  const int width = static_cast<int>(r.weight_width());
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* const partial = partials + (int64_t{blockIdx.x} * kRopeWarps + warp) * width;
  float* const sums = width * kRopeWarps <= kSharedSums ? &of_warps[0] + warp * width : partial;
  for (int i = lane; i < width; i += kWarp) sums[i] = 0.0F;
  __syncwarp();
  const int64_t begin = blockIdx.x * tokens_of_block;
  const int64_t end = begin + tokens_of_block < r.tokens ? begin + tokens_of_block : r.tokens;
  for (int64_t token = begin; token < end; ++token) {
    for (int index = warp; index < sizes.units; index += kRopeWarps) {
      const Unit<W> unit(r, sizes, token, index);
      unit_gradient<kCount>(sizes, unit, grad_qkv, qkv, rstd[token * sizes.units + index],
                            unit.is_query ? sums : sums + r.q_span * r.head_dim);
    }
  }
  __syncwarp();
  if (sums == partial) return;
  for (int i = lane; i < width; i += kWarp) partial[i] = sums[i];
}

/// Calls run<T, kCount>(): two pairs at a time where all lanes have work.
template <typename Run>
void with_pairs(const QkRotation& r, std::initializer_list<const void*> addresses, const Run& run) {
  const bool by_two = r.head_dim % (4 * kWarp) == 0 && are_aligned(addresses) &&
                      are_aligned({r.cos, r.sin, r.q_weight, r.k_weight});
  with_type(r.type, [&]<typename T>() {
    if (by_two) {
      run.template operator()<T, 2>();
    } else {
      run.template operator()<T, 1>();
    }
  });
}

}  // namespace

void qk_norm_rope_forward(const QkRotation& rotation, const void* qkv, void* out, float* rstd,
                          Stream stream) {
  with_pairs(rotation, {qkv, out}, [&]<typename T, int kCount>() {
    with_weight<T>(rotation.weight_type, [&]<typename W>() {
      const auto kernel = forward_units<T, W, kCount>;
      LAUNCH(kernel, blocks_for(rotation.tokens), kRopeThreads, stream, rotation, static_cast<const T*>(qkv),
             static_cast<T*>(out), rstd);
    });
    if (qkv == out) return;
    const auto copy = copy_values<T>;
    LAUNCH(copy, blocks_for(rotation.tokens), kRopeThreads, stream, rotation, static_cast<const T*>(qkv),
           static_cast<T*>(out));
  });
}

void qk_norm_rope_backward(const QkRotation& rotation, void* grad_qkv, const void* qkv, const float* rstd,
                           float* grad_q_weight, float* grad_k_weight, float* workspace, Stream stream) {
  if (!rotation.has_norm()) {
    with_pairs(rotation, {grad_qkv}, [&]<typename T, int kCount>() {
      const auto kernel = turn_back<T, kCount>;
      LAUNCH(kernel, blocks_for(rotation.tokens), kRopeThreads, stream, rotation, static_cast<T*>(grad_qkv));
    });
    return;
  }
  const int64_t parts = parts_of(rotation.tokens);
  with_pairs(rotation, {grad_qkv, qkv, workspace}, [&]<typename T, int kCount>() {
    with_weight<T>(rotation.weight_type, [&]<typename W>() {
      if (parts == 0) return;
      const auto kernel = backward_units<T, W, kCount>;
      LAUNCH(kernel, static_cast<unsigned>(parts), kRopeThreads, stream, rotation,
             rows_of_part(rotation.tokens), static_cast<T*>(grad_qkv), static_cast<const T*>(qkv), rstd,
             workspace);
    });
  });
  const int64_t width = rotation.weight_width();
  const int64_t q_width = rotation.q_span * rotation.head_dim;
  sum_columns(workspace, parts * kRopeWarps, q_width, width, grad_q_weight, stream);
  sum_columns(workspace + q_width, parts * kRopeWarps, width - q_width, width, grad_k_weight, stream);
}

}  // namespace stepforge::cuda
