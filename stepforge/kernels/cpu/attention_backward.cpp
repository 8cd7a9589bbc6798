// SPDX-License-Identifier: Apache-2.0
// Backward pass of attention on the CPU. A task is one document and one key-value head: it owns the gradients
// of its keys and values, so nothing is shared between tasks and every sum has one order. Per block of
// queries and block of keys, with P = exp(score - lse) recomputed and delta = grad_out . out:
//   dV += P^T dO        dS = P * (dO V^T - delta)        dQ += dS K        dK += dS^T Q
#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/kernels.h"

namespace stepforge::cpu {
namespace {

struct Document {
  int64_t begin;
  int64_t length;
};

/// Scratch of one task: the whole document's keys and values, and one block of queries.
struct Scratch {
  float* keys;           ///< [length, padded_dim]
  float* keys_by_dim;    ///< [dim, packed_length]
  float* values_by_dim;  ///< [dim, packed_length]
  float* grad_keys;      ///< [length, padded_dim]
  float* grad_values;    ///< [length, padded_dim]
  float* queries;        ///< [kQueryBlock, padded_dim], times scale and log2(e)
  float* grad_out;       ///< [kQueryBlock, padded_dim]
  float* grad_queries;   ///< [kQueryBlock, padded_dim]
  float* probabilities;  ///< [kQueryBlock, kKeyBlock]
  float* grad_scores;    ///< [kQueryBlock, kKeyBlock]
  float* log_sums;       ///< [kQueryBlock], in units of log2
  float* deltas;         ///< [kQueryBlock]
};

/// Some rows of a block of scores and of grad_out V^T, which become P and dS.
struct StripGradient {
  float* scores;
  float* grad_scores;
  int64_t rows;
  int64_t columns;  ///< written; 0 beyond the visible ones
  int64_t visible;  ///< columns that row 0 may see; one more in each following row
  const float* log_sums;
  const float* deltas;
};

STEPFORGE_SIMD_CLONES void differentiate_softmax(const StripGradient& strip) {
  const int64_t columns = strip.columns;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* probability = strip.scores + r * kKeyBlock;
    float* grad = strip.grad_scores + r * kKeyBlock;
    const float log_sum = strip.log_sums[r];
    const float delta = strip.deltas[r];
    const int64_t visible = strip.visible + r < columns ? strip.visible + r : columns;
#pragma omp simd
    for (int64_t c = 0; c < visible; ++c) {
      const float p = exp2_approx(probability[c] - log_sum);
      probability[c] = p;
      grad[c] = p * (grad[c] - delta);
    }
    for (int64_t c = visible; c < columns; ++c) {
      probability[c] = 0.0F;
      grad[c] = 0.0F;
    }
  }
}

template <typename T>
STEPFORGE_INLINE float dot_body(const T* a, const T* b, int64_t count) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += load(a + i) * load(b + i);
  return sum;
}
STEPFORGE_SIMD_CLONES float dot(const float* a, const float* b, int64_t count) {
  return dot_body(a, b, count);
}
STEPFORGE_SIMD_CLONES float dot(const BFloat16* a, const BFloat16* b, int64_t count) {
  return dot_body(a, b, count);
}

/// Tensors of the whole call.
template <typename T>
struct Operands {
  const T* grad_out;
  const T* qkv;
  const T* out;
  const float* lse;
  T* grad_qkv;
};

template <typename T>
class Backward {
 public:
  Backward(const Operands<T>& operands, const AttentionShape& shape, std::span<const int32_t> cu_seqlens)
      : tensors_(operands),
        shape_(shape),
        dim_(shape.head_dim),
        padded_dim_(round_up(shape.head_dim, kColumnUnit)) {
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
      const int64_t length = cu_seqlens[i] - cu_seqlens[i - 1];
      if (length > 0) documents_.push_back({cu_seqlens[i - 1], length});
      longest_ = std::max(longest_, round_up(length, kColumnUnit));
    }
    // Long documents first: a thread that took one last would keep the others waiting.
    std::ranges::stable_sort(documents_, std::ranges::greater{}, &Document::length);
  }

  void run(const at::TensorOptions& fp32) {
    const int64_t tasks = static_cast<int64_t>(documents_.size()) * shape_.kv_heads;
    const int64_t slots = task_slots(tasks);
    const auto [per_key, fixed] = attention_backward_floats(dim_);
    const at::Tensor memory = at::empty({slots, round_up(longest_ * per_key + fixed, kColumnUnit)}, fp32);
    parallel_tasks(tasks, slots, [&](int64_t task, int64_t slot) {
      const Scratch scratch = carve(memory.mutable_data_ptr<float>() + slot * memory.size(1));
      differentiate(documents_[static_cast<size_t>(task / shape_.kv_heads)], task % shape_.kv_heads, scratch);
    });
  }

 private:
  Scratch carve(float* memory) const {
    const auto take = [&memory](int64_t floats) {
      float* part = memory;
      memory += floats;
      return part;
    };
    Scratch s{};
    s.keys = take(longest_ * padded_dim_);
    s.keys_by_dim = take(longest_ * dim_);
    s.values_by_dim = take(longest_ * dim_);
    s.grad_keys = take(longest_ * padded_dim_);
    s.grad_values = take(longest_ * padded_dim_);
    s.queries = take(kQueryBlock * padded_dim_);
    s.grad_out = take(kQueryBlock * padded_dim_);
    s.grad_queries = take(kQueryBlock * padded_dim_);
    s.probabilities = take(kQueryBlock * kKeyBlock);
    s.grad_scores = take(kQueryBlock * kKeyBlock);
    s.log_sums = take(kQueryBlock);
    s.deltas = take(kQueryBlock);
    return s;
  }

  void differentiate(const Document& d, int64_t kv_head, const Scratch& s) const {
    const int64_t width = shape_.qkv_width();
    const int64_t packed = round_up(d.length, kColumnUnit);
    const int64_t key_column = (shape_.heads + kv_head) * dim_;
    const int64_t value_column = key_column + shape_.kv_heads * dim_;
    const T* rows = tensors_.qkv + d.begin * width;
    widen_rows(rows + key_column, width, d.length, dim_, 1.0F, s.keys, padded_dim_);
    widen_transposed(rows + key_column, width, d.length, dim_, s.keys_by_dim, packed);
    widen_transposed(rows + value_column, width, d.length, dim_, s.values_by_dim, packed);
    std::fill_n(s.grad_keys, d.length * padded_dim_, 0.0F);
    std::fill_n(s.grad_values, d.length * padded_dim_, 0.0F);
    for (int64_t head = kv_head * shape_.group(); head < (kv_head + 1) * shape_.group(); ++head) {
      for (int64_t begin = 0; begin < d.length; begin += kQueryBlock) query_block(d, head, begin, s);
    }
    T* grads = tensors_.grad_qkv + d.begin * width;
    // The queries include scale * log2(e), of which only the scale belongs in the gradient.
    narrow_rows(s.grad_keys, padded_dim_, d.length, dim_, nullptr, kLn2, grads + key_column, width);
    narrow_rows(s.grad_values, padded_dim_, d.length, dim_, nullptr, 1.0F, grads + value_column, width);
  }

  void query_block(const Document& d, int64_t head, int64_t begin, const Scratch& s) const {
    const int64_t rows = std::min(kQueryBlock, d.length - begin);
    const int64_t token = d.begin + begin;
    const int64_t out_width = shape_.out_width();
    const int64_t offset = token * out_width + head * dim_;
    const auto scale = static_cast<float>(shape_.scale);
    widen_rows(tensors_.qkv + token * shape_.qkv_width() + head * dim_, shape_.qkv_width(), rows, dim_,
               scale * kLog2E, s.queries, padded_dim_);
    widen_rows(tensors_.grad_out + offset, out_width, rows, dim_, 1.0F, s.grad_out, padded_dim_);
    std::fill_n(s.grad_queries, rows * padded_dim_, 0.0F);
    for (int64_t r = 0; r < rows; ++r) {
      s.log_sums[r] = tensors_.lse[(token + r) * shape_.heads + head] * kLog2E;
      s.deltas[r] =
          dot(tensors_.grad_out + offset + r * out_width, tensors_.out + offset + r * out_width, dim_);
    }
    for (int64_t key = 0; key < begin + rows; key += kKeyBlock) {
      score_gradients(d, begin, rows, key, s);
      key_gradients(begin, rows, key, s);
    }
    narrow_rows(s.grad_queries, padded_dim_, rows, dim_, nullptr, scale,
                tensors_.grad_qkv + token * shape_.qkv_width() + head * dim_, shape_.qkv_width());
  }

  /// P and dS of one block of queries and keys, and dQ += dS K.
  void score_gradients(const Document& d, int64_t begin, int64_t rows, int64_t key, const Scratch& s) const {
    const int64_t packed = round_up(d.length, kColumnUnit);
    const int64_t block_columns = round_up(std::min(begin + rows - key, kKeyBlock), kColumnUnit);
    for (int64_t strip = 0; strip < rows; strip += kStrip) {
      const int64_t strip_rows = std::min(kStrip, rows - strip);
      const int64_t seen = std::min(begin + strip + strip_rows - key, kKeyBlock);
      float* scores = s.probabilities + strip * kKeyBlock;
      float* grad_scores = s.grad_scores + strip * kKeyBlock;
      BlockProduct product = {.a = s.queries + strip * padded_dim_,
                              .a_row = padded_dim_,
                              .b = s.keys_by_dim + key,
                              .b_row = packed,
                              .c = scores,
                              .c_row = kKeyBlock,
                              .rows = strip_rows,
                              .columns = round_up(seen, kColumnUnit),
                              .depth = dim_,
                              .accumulate = false};
      block_gemm().rows(product);
      product.a = s.grad_out + strip * padded_dim_;
      product.b = s.values_by_dim + key;
      product.c = grad_scores;
      block_gemm().rows(product);
      differentiate_softmax({.scores = scores,
                             .grad_scores = grad_scores,
                             .rows = strip_rows,
                             .columns = block_columns,
                             .visible = begin + strip + 1 - key,
                             .log_sums = s.log_sums + strip,
                             .deltas = s.deltas + strip});
      block_gemm().score_rows({.a = grad_scores,
                               .a_row = kKeyBlock,
                               .b = s.keys + key * padded_dim_,
                               .b_row = padded_dim_,
                               .c = s.grad_queries + strip * padded_dim_,
                               .c_row = padded_dim_,
                               .rows = strip_rows,
                               .columns = padded_dim_,
                               .depth = seen,
                               .accumulate = true});
    }
  }

  /// dV += P^T dO and dK += dS^T Q, skipping queries that precede all keys of a strip.
  void key_gradients(int64_t begin, int64_t rows, int64_t key, const Scratch& s) const {
    const int64_t keys = std::min(begin + rows - key, kKeyBlock);
    const int64_t before_diagonal = std::clamp<int64_t>(begin - key, 0, keys);
    for (int64_t strip = 0; strip < keys;) {
      const int64_t strip_keys = strip < before_diagonal ? before_diagonal : std::min(kStrip, keys - strip);
      const int64_t skipped = std::max<int64_t>(key + strip - begin, 0);
      BlockProduct product = {.a = s.probabilities + skipped * kKeyBlock + strip,
                              .a_row = kKeyBlock,
                              .b = s.grad_out + skipped * padded_dim_,
                              .b_row = padded_dim_,
                              .c = s.grad_values + (key + strip) * padded_dim_,
                              .c_row = padded_dim_,
                              .rows = strip_keys,
                              .columns = padded_dim_,
                              .depth = rows - skipped,
                              .accumulate = true};
      block_gemm().score_columns(product);
      product.a = s.grad_scores + skipped * kKeyBlock + strip;
      product.b = s.queries + skipped * padded_dim_;
      product.c = s.grad_keys + (key + strip) * padded_dim_;
      block_gemm().score_columns(product);
      strip += strip_keys;
    }
  }

  Operands<T> tensors_;
  const AttentionShape& shape_;
  int64_t dim_;
  int64_t padded_dim_;
  std::vector<Document> documents_;
  int64_t longest_ = 0;
};

template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
              const AttentionShape& shape, std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv) {
  const Operands<T> operands = {.grad_out = grad_out.const_data_ptr<T>(),
                                .qkv = qkv.const_data_ptr<T>(),
                                .out = out.const_data_ptr<T>(),
                                .lse = lse.const_data_ptr<float>(),
                                .grad_qkv = grad_qkv.mutable_data_ptr<T>()};
  Backward<T>(operands, shape, cu_seqlens).run(lse.options());
}

}  // namespace

void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv) {
  if (qkv.scalar_type() == at::kFloat) {
    backward<float>(grad_out, qkv, out, lse, shape, cu_seqlens, grad_qkv);
  } else {
    backward<BFloat16>(grad_out, qkv, out, lse, shape, cu_seqlens, grad_qkv);
  }
}

}  // namespace stepforge::cpu
