// SPDX-License-Identifier: Apache-2.0
// Backward pass of attention on the CPU. A task is one document and one key-value head: it owns the gradients
// of its keys and values, so nothing is shared between tasks and every sum has one order. Per block of
// queries and block of keys, with P = exp(score - lse) recomputed and delta = grad_out . out:
//   dV += P^T dO        dS = P * (dO V^T - delta)        dQ += dS K        dK += dS^T Q
#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/attention_tiles.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

struct Document {
  int64_t begin;                            ///< first key
  int64_t keys;                             ///< all of them
  int64_t length;                           ///< those that some query sees
  std::span<const AttentionRange> queries;  ///< all with these keys
};

/// Scratch of one task: the document's keys and values, and one block of queries. In tiles, operands have half as many rows, of pairs,
/// and queries are not scaled.
struct Scratch {
  float* keys;           ///< [length, padded_dim]
  float* keys_by_dim;    ///< [dim, packed_length]
  float* values_by_dim;  ///< [value_dim, packed_length]
  float* grad_keys;      ///< [length, padded_dim]
  float* grad_values;    ///< [length, padded_value_dim]
  float* queries;        ///< [kQueryBlock, padded_dim], times scale and log2(e)
  float* grad_out;       ///< [kQueryBlock, padded_value_dim]
  float* grad_queries;   ///< [kQueryBlock, padded_dim]
  float* probabilities;  ///< [kQueryBlock, kKeyBlock]
  float* grad_scores;    ///< [kQueryBlock, kKeyBlock]
  float* narrow;         ///< in tiles, two blocks of scores in bf16
  float* log_sums;       ///< [kQueryBlock], in units of log2
  float* deltas;         ///< [kQueryBlock]
};

/// Some rows of a block of scores and of grad_out V^T, which become P and dS.
struct StripGradient {
  float* scores;
  float* grad_scores;
  int64_t rows;
  float scale;             ///< of the scores
  VisibleColumns visible;  ///< others become 0
  const float* log_sums;
  const float* deltas;
};

/// With a cap scores are those before it, and so is dS.
template <bool kCapped>
STEPFORGE_INLINE void differentiate_body(const StripGradient& strip, float cap) {
  const int64_t columns = strip.visible.columns;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* probability = strip.scores + r * kKeyBlock;
    float* grad = strip.grad_scores + r * kKeyBlock;
    const float log_sum = strip.log_sums[r];
    const float delta = strip.deltas[r];
    const int64_t begin = strip.visible.begin(r);
    const int64_t end = strip.visible.end(r);
    for (float* scores : {probability, grad}) {
      std::fill(scores, scores + begin, 0.0F);
      std::fill(scores + end, scores + columns, 0.0F);
    }
    const float scale = strip.scale;
    if constexpr (kCapped) {
      const float inverse = scale / cap;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        const float t = tanh_approx(probability[c] * inverse);
        const float p = exp2_approx(cap * t - log_sum);
        probability[c] = p;
        grad[c] = p * (grad[c] - delta) * (1.0F - t * t);
      }
    } else {
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        const float p = exp2_approx(probability[c] * scale - log_sum);
        probability[c] = p;
        grad[c] = p * (grad[c] - delta);
      }
    }
  }
}

STEPFORGE_SIMD_CLONES void differentiate_softmax(const StripGradient& strip) {
  differentiate_body<false>(strip, 0.0F);
}
STEPFORGE_SIMD_CLONES void differentiate_capped_softmax(const StripGradient& strip, float cap) {
  differentiate_body<true>(strip, cap);
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
struct Operands {
  const at::Tensor& grad_out;
  const QueryKeyValue& inputs;
  const at::Tensor& out;
  const at::Tensor& lse;
  const QueryKeyValue& gradients;
};

template <typename T>
class Backward {
 public:
  Backward(const Operands& operands, const AttentionShape& shape, std::span<const AttentionRange> ranges)
      : tensors_(operands),
        shape_(shape),
        lse_(operands.lse.const_data_ptr<float>()),
        dim_(shape.head_dim),
        padded_dim_(round_up(dim_, kColumnUnit)),
        value_dim_(shape.value_size()),
        padded_value_dim_(round_up(value_dim_, kColumnUnit)),
        tiles_(attention_in_tiles<T>(operands.inputs, shape)) {
    for (size_t i = 0; i < ranges.size();) {
      Document d{ranges[i].key_begin, ranges[i].keys, 0, {}};
      const size_t first = i;
      for (; i < ranges.size() && ranges[i].key_begin == d.begin; ++i)
        d.length = std::max(d.length, ranges[i].seen());
      d.queries = ranges.subspan(first, i - first);
      documents_.push_back(d);
      longest_ = std::max(longest_, round_up(d.length, kColumnUnit));
    }
    // Long documents first: a thread that took one last would keep the others waiting.
    std::ranges::stable_sort(documents_, std::ranges::greater{}, &Document::length);
  }

  void run() {
    const int64_t tasks = static_cast<int64_t>(documents_.size()) * shape_.kv_heads;
    const int64_t slots = task_slots(tasks);
    const auto [per_key, fixed] = attention_backward_floats(dim_, value_dim_);
    const at::Tensor memory =
        at::empty({slots, round_up(longest_ * per_key + fixed, kColumnUnit)}, tensors_.lse.options());
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
    s.values_by_dim = take(longest_ * value_dim_);
    s.grad_keys = take(longest_ * padded_dim_);
    s.grad_values = take(longest_ * padded_value_dim_);
    s.queries = take(kQueryBlock * padded_dim_);
    s.grad_out = take(kQueryBlock * padded_value_dim_);
    s.grad_queries = take(kQueryBlock * padded_dim_);
    s.probabilities = take(kQueryBlock * kKeyBlock);
    s.grad_scores = take(kQueryBlock * kKeyBlock);
    s.narrow = take(kQueryBlock * kKeyBlock);
    s.log_sums = take(kQueryBlock);
    s.deltas = take(kQueryBlock);
    return s;
  }

  void differentiate(const Document& d, int64_t kv_head, const Scratch& s) const {
    const QueryKeyValue& inputs = tensors_.inputs;
    const int64_t packed = round_up(d.length, kColumnUnit);
    const T* keys = head_of<T>(inputs.k, d.begin, kv_head, dim_);
    const T* values = head_of<T>(inputs.v, d.begin, kv_head, value_dim_);
    if (tiles_) {
      pack_paired_rows(as_bf16(keys), inputs.k.stride(0), d.length, dim_, s.keys, padded_dim_,
                       tile_depth(d.length) / 2);
      pack_key_blocks(as_bf16(keys), inputs.k.stride(0), d.length, dim_, s.keys_by_dim);
      pack_key_blocks(as_bf16(values), inputs.v.stride(0), d.length, value_dim_, s.values_by_dim);
    } else {
      widen_rows(keys, inputs.k.stride(0), d.length, dim_, 1.0F, s.keys, padded_dim_);
      widen_transposed(keys, inputs.k.stride(0), d.length, dim_, s.keys_by_dim, packed);
      widen_transposed(values, inputs.v.stride(0), d.length, value_dim_, s.values_by_dim, packed);
    }
    std::fill_n(s.grad_keys, d.length * padded_dim_, 0.0F);
    std::fill_n(s.grad_values, d.length * padded_value_dim_, 0.0F);
    for (int64_t head = kv_head * shape_.group(); head < (kv_head + 1) * shape_.group(); ++head) {
      for (const AttentionRange& range : d.queries) {
        for (int64_t begin = 0; begin < range.queries; begin += kQueryBlock) {
          query_block(d, head,
                      {range.query_begin + begin, std::min(kQueryBlock, range.queries - begin),
                       range.past + (range.causal ? begin : 0), range.causal},
                      s);
        }
      }
    }
    if (tiles_) release_tiles();
    // The queries include scale * log2(e), of which only the scale belongs in the gradient; in tiles neither.
    store_keys(tensors_.gradients.k, d, kv_head, s.grad_keys, dim_,
               tiles_ ? static_cast<float>(shape_.scale) : kLn2);
    store_keys(tensors_.gradients.v, d, kv_head, s.grad_values, value_dim_, 1.0F);
  }

  /// Keys that no query sees have the gradient 0.
  void store_keys(const at::Tensor& to, const Document& d, int64_t kv_head, const float* gradients,
                  int64_t dim, float factor) const {
    T* rows = mutable_head_of<T>(to, d.begin, kv_head, dim);
    narrow_rows(gradients, round_up(dim, kColumnUnit), d.length, dim, nullptr, factor, rows, to.stride(0));
    for (int64_t key = d.length; key < d.keys; ++key) std::fill_n(rows + key * to.stride(0), dim, T(0));
  }

  void query_block(const Document& d, int64_t head, const QueryBlock& block, const Scratch& s) const {
    const QueryKeyValue& inputs = tensors_.inputs;
    const int64_t out_width = shape_.out_width();
    const T* grad_out = head_of<T>(tensors_.grad_out, block.begin, head, value_dim_);
    const T* out = head_of<T>(tensors_.out, block.begin, head, value_dim_);
    const auto scale = static_cast<float>(shape_.scale);
    const T* queries = head_of<T>(inputs.q, block.begin, head, dim_);
    if (tiles_) {
      const int64_t pairs = round_up(block.rows, kColumnUnit) / 2;
      pack_paired_rows(as_bf16(queries), inputs.q.stride(0), block.rows, dim_, s.queries, padded_dim_, pairs);
      pack_paired_rows(as_bf16(grad_out), out_width, block.rows, value_dim_, s.grad_out, padded_value_dim_,
                       pairs);
    } else {
      widen_rows(queries, inputs.q.stride(0), block.rows, dim_, scale * kLog2E, s.queries, padded_dim_);
      widen_rows(grad_out, out_width, block.rows, value_dim_, 1.0F, s.grad_out, padded_value_dim_);
    }
    const LeftRows left =
        tiles_ ? LeftRows{as_pairs(queries), inputs.q.stride(0) / 2, as_pairs(grad_out), out_width / 2}
               : LeftRows{s.queries, padded_dim_, s.grad_out, padded_value_dim_};
    std::fill_n(s.grad_queries, block.rows * padded_dim_, 0.0F);
    for (int64_t r = 0; r < block.rows; ++r) {
      s.log_sums[r] = lse_[(block.begin + r) * shape_.heads + head] * kLog2E;
      s.deltas[r] = dot(grad_out + r * out_width, out + r * out_width, value_dim_);
    }
    for (int64_t key = block.first_key(shape_.window); key < block.seen(); key += kKeyBlock) {
      score_gradients(d, block, key, left, s);
      tiles_ ? key_gradients_in_tiles(block, key, s) : key_gradients(block, key, s);
    }
    narrow_rows(s.grad_queries, padded_dim_, block.rows, dim_, nullptr, scale,
                mutable_head_of<T>(tensors_.gradients.q, block.begin, head, dim_),
                tensors_.gradients.q.stride(0));
  }

  /// The left factors of one block of queries, of words in tiles.
  struct LeftRows {
    const float* queries;
    int64_t queries_row;
    const float* grad_out;
    int64_t grad_out_row;
  };

  void differentiate_scores(const StripGradient& gradient) const {
    if (shape_.cap > 0)
      differentiate_capped_softmax(gradient, static_cast<float>(shape_.cap) * kLog2E);
    else
      differentiate_softmax(gradient);
  }

  /// P and dS of one block of queries and keys, and dQ += dS K.
  void score_gradients(const Document& d, const QueryBlock& block, int64_t key, const LeftRows& left,
                       const Scratch& s) const {
    const int64_t block_seen = std::min(block.seen() - key, kKeyBlock);
    const int64_t filled = tiles_ ? tile_depth(block_seen) : round_up(block_seen, kColumnUnit);
    const int64_t height = tiles_ ? kQueryBlock : kStrip;
    for (int64_t strip = 0; strip < block.rows; strip += height) {
      const int64_t strip_rows = std::min(height, block.rows - strip);
      const int64_t visible = block.past - key + (block.causal ? strip + 1 : 0);
      const int64_t seen = std::clamp<int64_t>(visible + (block.causal ? strip_rows - 1 : 0), 0, kKeyBlock);
      float* scores = s.probabilities + strip * kKeyBlock;
      float* grad_scores = s.grad_scores + strip * kKeyBlock;
      BlockProduct product = {
          .a = left.queries + strip * left.queries_row,
          .a_row = left.queries_row,
          .b = s.keys_by_dim + (tiles_ ? key * dim_ / 2 : key),
          .b_row = tiles_ ? key_block_row(d.length, key) : round_up(d.length, kColumnUnit),
          .c = scores,
          .c_row = kKeyBlock,
          .rows = strip_rows,
          .columns = round_up(seen, kColumnUnit),
          .depth = tiles_ ? dim_ / 2 : dim_,
          .accumulate = false};
      if (seen > 0) {
        multiply_rows(product);
        product.a = left.grad_out + strip * left.grad_out_row;
        product.a_row = left.grad_out_row;
        product.b = s.values_by_dim + (tiles_ ? key * value_dim_ / 2 : key);
        product.c = grad_scores;
        product.depth = tiles_ ? value_dim_ / 2 : value_dim_;
        multiply_rows(product);
      }
      differentiate_scores({.scores = scores,
                            .grad_scores = grad_scores,
                            .rows = strip_rows,
                            .scale = tiles_ ? static_cast<float>(shape_.scale) * kLog2E : 1.0F,
                            .visible = {filled, visible, block.causal ? 1 : 0, shape_.window},
                            .log_sums = s.log_sums + strip,
                            .deltas = s.deltas + strip});
      if (seen == 0) continue;
      product.a = grad_scores;
      product.a_row = kKeyBlock;
      product.b = s.keys + (tiles_ ? key / 2 : key) * padded_dim_;
      product.b_row = padded_dim_;
      product.c = s.grad_queries + strip * padded_dim_;
      product.c_row = padded_dim_;
      product.columns = padded_dim_;
      product.depth = seen;
      product.accumulate = true;
      multiply_scores(tiles_, product, filled, s.narrow);
    }
  }

  void multiply_rows(const BlockProduct& product) const {
    tiles_ ? multiply_tiles(product) : block_gemm().rows(product);
  }

  /// dV += P^T dO and dK += dS^T Q, of all keys at once.
  void key_gradients_in_tiles(const QueryBlock& block, int64_t key, const Scratch& s) const {
    const int64_t keys = std::min(block.seen() - key, kKeyBlock);
    float* const transposed = s.narrow + kQueryBlock / 2 * kKeyBlock;
    narrow_scores_transposed(s.probabilities, block.rows, round_up(keys, kColumnUnit), s.narrow, transposed);
    BlockProduct product = {.a = transposed,
                            .a_row = kQueryBlock / 2,
                            .b = s.grad_out,
                            .b_row = padded_value_dim_,
                            .c = s.grad_values + key * padded_value_dim_,
                            .c_row = padded_value_dim_,
                            .rows = keys,
                            .columns = padded_value_dim_,
                            .depth = round_up(block.rows, kColumnUnit) / 2,
                            .accumulate = true};
    multiply_tiles(product);
    narrow_scores_transposed(s.grad_scores, block.rows, round_up(keys, kColumnUnit), s.narrow, transposed);
    product.b = s.queries;
    product.b_row = padded_dim_;
    product.c = s.grad_keys + key * padded_dim_;
    product.c_row = padded_dim_;
    product.columns = padded_dim_;
    multiply_tiles(product);
  }

  /// dV += P^T dO and dK += dS^T Q, skipping queries that precede all keys of a strip.
  void key_gradients(const QueryBlock& block, int64_t key, const Scratch& s) const {
    const int64_t keys = std::min(block.seen() - key, kKeyBlock);
    const int64_t before_diagonal = std::clamp<int64_t>(block.past - key, 0, keys);
    for (int64_t strip = 0; strip < keys;) {
      const int64_t strip_keys = strip < before_diagonal ? before_diagonal : std::min(kStrip, keys - strip);
      const int64_t skipped = std::max<int64_t>(key + strip - block.past, 0);
      BlockProduct product = {.a = s.probabilities + skipped * kKeyBlock + strip,
                              .a_row = kKeyBlock,
                              .b = s.grad_out + skipped * padded_value_dim_,
                              .b_row = padded_value_dim_,
                              .c = s.grad_values + (key + strip) * padded_value_dim_,
                              .c_row = padded_value_dim_,
                              .rows = strip_keys,
                              .columns = padded_value_dim_,
                              .depth = block.rows - skipped,
                              .accumulate = true};
      block_gemm().score_columns(product);
      product.a = s.grad_scores + skipped * kKeyBlock + strip;
      product.b = s.queries + skipped * padded_dim_;
      product.b_row = padded_dim_;
      product.c = s.grad_keys + (key + strip) * padded_dim_;
      product.c_row = padded_dim_;
      product.columns = padded_dim_;
      block_gemm().score_columns(product);
      strip += strip_keys;
    }
  }

  Operands tensors_;
  const AttentionShape& shape_;
  const float* lse_;
  int64_t dim_;
  int64_t padded_dim_;
  int64_t value_dim_;
  int64_t padded_value_dim_;
  bool tiles_;
  std::vector<Document> documents_;
  int64_t longest_ = 0;
};

}  // namespace

void attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  const Operands operands{grad_out, inputs, out, lse, gradients};
  if (inputs.q.scalar_type() == at::kFloat) {
    Backward<float>(operands, shape, ranges).run();
  } else {
    Backward<BFloat16>(operands, shape, ranges).run();
  }
}

}  // namespace stepforge::cpu
