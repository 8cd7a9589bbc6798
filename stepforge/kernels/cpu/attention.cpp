// SPDX-License-Identifier: Apache-2.0
// Forward pass of attention on the CPU. Keys (transposed) and values of each document and key-value head are
// first packed, in fp32 or as pairs for matrix tiles; then tasks of one head and one block of queries iterate over blocks of keys with the
// running maximum and sum of softmax. Scores are in units of log2: log2(e) is folded into the scale of q.
#include "stepforge/kernels/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/attention_tiles.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// The keys of a document that some query sees.
struct PackedDocument {
  int64_t begin;         ///< first key
  int64_t length;        ///< keys
  int64_t packed_begin;  ///< where its packed keys and values start, in tokens
  int64_t packed_length;
};

/// Each head of it is a task.
struct DocumentBlock : QueryBlock {
  int64_t document;
};

struct Plan {
  std::vector<PackedDocument> documents;
  std::vector<DocumentBlock> blocks;  ///< most expensive first
  int64_t packed_tokens = 0;
};

Plan make_plan(std::span<const AttentionRange> ranges) {
  Plan plan;
  for (const AttentionRange& range : ranges) {
    if (range.queries == 0) continue;
    if (plan.documents.empty() || plan.documents.back().begin != range.key_begin)
      plan.documents.push_back({range.key_begin, 0, 0, 0});
    int64_t& length = plan.documents.back().length;
    length = std::max(length, range.seen());
    const auto document = static_cast<int64_t>(plan.documents.size()) - 1;
    for (int64_t begin = 0; begin < range.queries; begin += kQueryBlock) {
      plan.blocks.push_back({{range.query_begin + begin, std::min(kQueryBlock, range.queries - begin),
                              range.past + (range.causal ? begin : 0), range.causal},
                             document});
    }
  }
  for (PackedDocument& document : plan.documents) {
    document.packed_begin = plan.packed_tokens;
    document.packed_length = round_up(document.length, kColumnUnit);
    plan.packed_tokens += document.packed_length;
  }
  std::ranges::stable_sort(plan.blocks, std::ranges::greater{}, &DocumentBlock::past);
  return plan;
}

/// Running state of the rows of one strip.
struct StripSoftmax {
  float* scores;  ///< rows kKeyBlock apart: scores in, exp2(scale * score - max) out
  int64_t rows;
  float scale;             ///< of the scores, positive
  VisibleColumns visible;  ///< others become 0
  float* largest;          ///< per row, updated
  float* sum;              ///< per row, updated
  float* mixed;            ///< per row the unnormalized output so far, rescaled to the new maximum
  int64_t mixed_row;
};

STEPFORGE_SIMD_CLONES void update_softmax(const StripSoftmax& strip) {
  const int64_t columns = strip.visible.columns;
  const int64_t mixed_row = strip.mixed_row;
  const float scale = strip.scale;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* row = strip.scores + r * kKeyBlock;
    const int64_t begin = strip.visible.begin(r);
    const int64_t end = strip.visible.end(r);
    std::fill(row, row + begin, 0.0F);
    std::fill(row + end, row + columns, 0.0F);
    if (begin == end) continue;
    const float before = strip.largest[r];
    float largest = row[begin];
#pragma omp simd reduction(max : largest)
    for (int64_t c = begin; c < end; ++c) largest = largest < row[c] ? row[c] : largest;
    largest = std::max(before, largest * scale);
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = begin; c < end; ++c) {
      row[c] = exp2_approx(row[c] * scale - largest);
      sum += row[c];
    }
    const float shrink = exp2_approx(before - largest);
    strip.largest[r] = largest;
    strip.sum[r] = strip.sum[r] * shrink + sum;
    if (shrink == 1.0F) continue;
    float* mixed = strip.mixed + r * mixed_row;
#pragma omp simd
    for (int64_t c = 0; c < mixed_row; ++c) mixed[c] *= shrink;
  }
}

/// score = cap tanh(scale * score / cap) where it is visible; the cap too is in units of log2.
STEPFORGE_SIMD_CLONES void cap_scores(const StripSoftmax& strip, float cap) {
  const float inverse = strip.scale / cap;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* row = strip.scores + r * kKeyBlock;
    const int64_t end = strip.visible.end(r);
#pragma omp simd
    for (int64_t c = strip.visible.begin(r); c < end; ++c) row[c] = cap * tanh_approx(row[c] * inverse);
  }
}

template <typename T>
class Forward {
 public:
  Forward(const QueryKeyValue& inputs, const AttentionShape& shape, const Plan& plan, const at::Tensor& out,
          const at::Tensor& lse, const at::Tensor& sinks)
      : inputs_(inputs),
        shape_(shape),
        plan_(plan),
        out_(out.mutable_data_ptr<T>()),
        lse_(lse.mutable_data_ptr<float>()),
        sinks_(sinks.defined() ? sinks.const_data_ptr<float>() : nullptr),
        dim_(shape.head_dim),
        padded_dim_(round_up(dim_, kColumnUnit)),
        value_dim_(shape.value_size()),
        padded_value_dim_(round_up(value_dim_, kColumnUnit)),
        scale_(static_cast<float>(shape.scale) * kLog2E),
        tiles_(attention_in_tiles<T>(inputs, shape)) {
    packed_ = at::empty({plan.packed_tokens * shape.kv_heads * attention_packed_floats(dim_, value_dim_)},
                        lse.options());
    keys_ = packed_.mutable_data_ptr<float>();
    values_ = keys_ + plan.packed_tokens * shape.kv_heads * dim_;
  }

  void run() {
    const auto documents = static_cast<int64_t>(plan_.documents.size());
    const int64_t packs = documents * shape_.kv_heads;
    parallel_tasks(packs, task_slots(packs), [&](int64_t task, int64_t /*slot*/) {
      pack(plan_.documents[static_cast<size_t>(task / shape_.kv_heads)], task % shape_.kv_heads);
    });
    const int64_t tasks = static_cast<int64_t>(plan_.blocks.size()) * shape_.heads;
    const int64_t slots = task_slots(tasks);
    const at::Tensor memory =
        at::empty({slots, attention_forward_floats(dim_, value_dim_)}, packed_.options());
    parallel_tasks(tasks, slots, [&](int64_t task, int64_t slot) {
      attend(plan_.blocks[static_cast<size_t>(task / shape_.heads)], task % shape_.heads,
             memory.mutable_data_ptr<float>() + slot * memory.size(1));
    });
  }

 private:
  float* keys_of(const PackedDocument& d, int64_t kv_head) const {  // [dim, packed_length]
    return keys_ + (d.packed_begin * shape_.kv_heads + d.packed_length * kv_head) * dim_;
  }
  float* values_of(const PackedDocument& d, int64_t kv_head) const {  // [packed_length, padded_value_dim]
    return values_ + (d.packed_begin * shape_.kv_heads + d.packed_length * kv_head) * padded_value_dim_;
  }

  void pack(const PackedDocument& d, int64_t kv_head) const {
    const T* keys = head_of<T>(inputs_.k, d.begin, kv_head, dim_);
    const T* values = head_of<T>(inputs_.v, d.begin, kv_head, value_dim_);
    if (tiles_) {
      pack_key_blocks(as_bf16(keys), inputs_.k.stride(0), d.length, dim_, keys_of(d, kv_head));
      pack_paired_rows(as_bf16(values), inputs_.v.stride(0), d.length, value_dim_, values_of(d, kv_head),
                       padded_value_dim_, tile_depth(d.length) / 2);
    } else {
      widen_transposed(keys, inputs_.k.stride(0), d.length, dim_, keys_of(d, kv_head), d.packed_length);
      widen_rows(values, inputs_.v.stride(0), d.length, value_dim_, 1.0F, values_of(d, kv_head),
                 padded_value_dim_);
    }
  }

  void attend(const DocumentBlock& block, int64_t head, float* scratch) const {
    const PackedDocument& d = plan_.documents[static_cast<size_t>(block.document)];
    const int64_t rows = block.rows;
    float* scores = scratch;
    float* queries = scores + kQueryBlock * kKeyBlock;
    float* mixed = queries + kQueryBlock * std::max(padded_dim_, kKeyBlock / 2);
    float* largest = mixed + kQueryBlock * padded_value_dim_;
    float* sum = largest + kQueryBlock;
    const T* const source = head_of<T>(inputs_.q, block.begin, head, dim_);
    const float* const left = tiles_ ? as_pairs(source) : queries;
    const int64_t left_row = tiles_ ? inputs_.q.stride(0) / 2 : padded_dim_;
    if (!tiles_) widen_rows(source, inputs_.q.stride(0), rows, dim_, scale_, queries, padded_dim_);
    std::fill_n(mixed, rows * padded_value_dim_, 0.0F);
    // A sink is like a key before all others, whose value is 0.
    std::fill_n(largest, rows,
                sinks_ != nullptr ? sinks_[head] * kLog2E : -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, sinks_ != nullptr ? 1.0F : 0.0F);

    const int64_t kv_head = head / shape_.group();
    const int64_t height = tiles_ ? kQueryBlock : kStrip;
    for (int64_t key = block.first_key(shape_.window); key < block.seen(); key += kKeyBlock) {
      for (int64_t strip = 0; strip < rows; strip += height) {
        const int64_t strip_rows = std::min(height, rows - strip);
        const int64_t visible = block.past - key + (block.causal ? strip + 1 : 0);
        const int64_t seen = std::min(visible + (block.causal ? strip_rows - 1 : 0), kKeyBlock);
        if (seen <= 0 || (shape_.window > 0 && visible - shape_.window >= kKeyBlock)) continue;
        const int64_t filled = tiles_ ? tile_depth(seen) : round_up(seen, kColumnUnit);
        BlockProduct product = {.a = left + strip * left_row,
                                .a_row = left_row,
                                .b = keys_of(d, kv_head) + (tiles_ ? key * dim_ / 2 : key),
                                .b_row = tiles_ ? key_block_row(d.length, key) : d.packed_length,
                                .c = scores,
                                .c_row = kKeyBlock,
                                .rows = strip_rows,
                                .columns = round_up(seen, kColumnUnit),
                                .depth = tiles_ ? dim_ / 2 : dim_,
                                .accumulate = false};
        tiles_ ? multiply_tiles(product) : block_gemm().rows(product);
        StripSoftmax softmax = {.scores = scores,
                                .rows = strip_rows,
                                .scale = tiles_ ? scale_ : 1.0F,
                                .visible = {filled, visible, block.causal ? 1 : 0, shape_.window},
                                .largest = largest + strip,
                                .sum = sum + strip,
                                .mixed = mixed + strip * padded_value_dim_,
                                .mixed_row = padded_value_dim_};
        if (shape_.cap > 0) {
          cap_scores(softmax, static_cast<float>(shape_.cap) * kLog2E);
          softmax.scale = 1.0F;
        }
        update_softmax(softmax);
        product.a = scores;
        product.a_row = kKeyBlock;
        product.b = values_of(d, kv_head) + (tiles_ ? key / 2 : key) * padded_value_dim_;
        product.b_row = padded_value_dim_;
        product.c = softmax.mixed;
        product.c_row = padded_value_dim_;
        product.columns = padded_value_dim_;
        product.depth = seen;
        product.accumulate = true;
        multiply_scores(tiles_, product, filled, queries);
      }
    }
    if (tiles_) release_tiles();
    for (int64_t r = 0; r < rows; ++r) {
      lse_[(block.begin + r) * shape_.heads + head] = (largest[r] + std::log2(sum[r])) * kLn2;
      sum[r] = 1.0F / sum[r];
    }
    narrow_rows(mixed, padded_value_dim_, rows, value_dim_, sum, 1.0F,
                out_ + block.begin * shape_.out_width() + head * value_dim_, shape_.out_width());
  }

  const QueryKeyValue& inputs_;
  const AttentionShape& shape_;
  const Plan& plan_;
  T* out_;
  float* lse_;
  const float* sinks_;  ///< of each head; null if there are none
  int64_t dim_;
  int64_t padded_dim_;
  int64_t value_dim_;
  int64_t padded_value_dim_;
  float scale_;  ///< of scores in units of log2
  bool tiles_;
  at::Tensor packed_;
  float* keys_;
  float* values_;
};

}  // namespace

void attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                       std::span<const AttentionRange> ranges, const at::Tensor& out, const at::Tensor& lse,
                       const at::Tensor& sinks) {
  const Plan plan = make_plan(ranges);
  if (inputs.q.scalar_type() == at::kFloat) {
    Forward<float>(inputs, shape, plan, out, lse, sinks).run();
  } else {
    Forward<BFloat16>(inputs, shape, plan, out, lse, sinks).run();
  }
}

}  // namespace stepforge::cpu
