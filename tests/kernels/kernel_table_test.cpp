// SPDX-License-Identifier: Apache-2.0
// The table of kernels: it is complete, and each of its rows is called here, once by its kernel and once by its reference.
#include "stepforge/kernels/kernel_table.h"

#include <cstddef>
#include <cstring>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kN = 12;  // tokens

/// Calls operations on tensors of a type, and returns what they wrote.
struct TableCase {
  const char* name;
  Tensors (*run)(at::ScalarType type);
};

at::Tensor some(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return random_tensor(shape, seed, type);
}

at::Tensor unwritten(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::full(shape, 77, type);
}

Tensors call_rms_norm(at::ScalarType type) {
  const at::Tensor x = some({kN, 33}, 1, type);
  const at::Tensor weight = some({33}, 2);
  Tensors r = {unwritten({kN, 33}, type), unwritten({kN}), unwritten({kN, 33}, type), unwritten({33})};
  rms_norm_forward(x, weight, 1e-5, r[0], r[1], 1.0);
  rms_norm_backward(some({kN, 33}, 3, type), x, weight, r[1], some({kN, 33}, 4, type), r[2], r[3], 1.0);
  return r;
}

Tensors call_bias_rows(at::ScalarType type) {
  Tensors r = {some({kN, 20}, 1, type), unwritten({20})};
  bias_forward(r[0], some({20}, 2));
  bias_backward(some({kN, 20}, 3, type), r[1]);
  return r;
}

Tensors call_swiglu_rows(at::ScalarType type) {
  Tensors r;
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    const at::Tensor gate_up = some({kN, 40}, 1, type);
    r.insert(r.end(), {unwritten({kN, 20}, type), unwritten({kN, 40}, type)});
    swiglu_forward(gate_up, r[r.size() - 2], activation);
    swiglu_backward(some({kN, 20}, 2, type), gate_up, r.back(), activation);
  }
  return r;
}

Tensors call_expert_swiglu(at::ScalarType type) {
  const at::Tensor gate_up = some({kN, 40}, 1, type) * 3;
  const at::Tensor weights = some({kN / 2, 2}, 2);
  const at::Tensor slots = int_tensor({3, 0, 1, 2, 11, 9, 10, 8, 4, 7, 6, 5});
  const at::Tensor grad = some({kN, 20}, 3, type);
  Tensors r;
  for (const bool clamped : {false, true}) {
    const ClampedSwiglu limits = {.limit = 2.5, .alpha = 1.3};
    const at::Tensor out = unwritten({kN, 20}, type);
    const Tensors back = {unwritten({kN, 40}, type), unwritten({kN / 2, 2})};
    if (clamped) {
      clamped_swiglu_forward(gate_up, weights, slots, limits, out);
      clamped_swiglu_backward(grad, gate_up, weights, slots, limits, back[0], back[1]);
    } else {
      expert_swiglu_forward(gate_up, weights, slots, out);
      expert_swiglu_backward(grad, gate_up, weights, slots, back[0], back[1]);
    }
    r.insert(r.end(), {out, back[0], back[1]});
  }
  return r;
}

Tensors call_dropout(at::ScalarType type) {
  // Numbers of rows and positions that need all 64 and 32 bits.
  const at::Tensor rows = at::empty({kN}, at::kLong);
  const at::Tensor positions = at::empty({kN}, at::kInt);
  for (int64_t n = 0; n < kN; ++n) {
    rows.mutable_data_ptr<int64_t>()[n] = static_cast<int64_t>(mix_bits(static_cast<uint64_t>(n)) >> 1);
    positions.mutable_data_ptr<int32_t>()[n] = static_cast<int32_t>(0x7FFFFFFF - n);
  }
  const TokenCoords coords{rows, positions};
  const DropoutKey key{0xFEDCBA9876543210};
  Tensors r = {unwritten({kN, 39}, type), unwritten({kN, 39}, type)};
  dropout_add_forward(some({kN, 39}, 1, type), some({kN, 39}, 2, type), 0.3, key, coords, r[0]);
  dropout_add_backward(some({kN, 39}, 3, type), 0.3, key, coords, r[1]);
  return r;
}

at::Tensor table_positions() {
  return int_tensor({0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7});
}

Tensors call_rope(at::ScalarType type) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 10};
  const at::Tensor qkv = some({kN, shape.qkv_width()}, 1, type);
  const RopeTable table = make_rope_table(8, 10, 100.0, {});
  Tensors r;
  for (const int64_t span : {1, 4}) {
    const QkNorm norm{.q_weight = some({10 * span}, 2), .k_weight = some({span > 1 ? 20 : 10}, 3)};
    const at::Tensor out = unwritten(qkv.sizes(), type);
    const at::Tensor rstd = unwritten({kN, norm.count(shape)});
    const at::Tensor grad = some(qkv.sizes(), 4, type);
    const Tensors weights = {unwritten({norm.q_weight.numel()}), unwritten({norm.k_weight.numel()})};
    qk_norm_rope_forward(qkv, shape, table_positions(), table, norm, out, rstd);
    qk_norm_rope_backward(grad, qkv, shape, table_positions(), table, norm, rstd, weights[0], weights[1]);
    r.insert(r.end(), {out, rstd, grad, weights[0], weights[1]});
  }
  return r;
}

Tensors call_latent_heads(at::ScalarType type) {
  const AttentionShape shape{.heads = 3, .kv_heads = 3, .head_dim = 10, .value_dim = 7};
  const RopeTable table = make_rope_table(8, 4, 100.0, {});
  Tensors r = {unwritten({kN, shape.qkv_width()}, type), some({kN, shape.qkv_width()}, 4, type),
               unwritten({kN, 30}, type), unwritten({kN, 39}, type), unwritten({kN, 4}, type)};
  latent_heads_forward(some({kN, 30}, 1, type), some({kN, 39}, 2, type), some({kN, 4}, 3, type), shape,
                       table_positions(), table, r[0]);
  latent_heads_backward(r[1], shape, table_positions(), table, r[2], r[3], r[4]);
  return r;
}

/// Two documents, the second of which has a range of its own for its last queries.
Tensors call_attention(at::ScalarType type) {
  const std::vector<AttentionRange> ranges = {{0, 4, 0, 4, 0}, {4, 5, 4, 8, 0}, {9, 3, 4, 8, 5}};
  const at::Tensor sinks = some({4}, 5);
  Tensors r;
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.4, .window = 3, .value_dim = 6},
        AttentionShape{.heads = 4, .kv_heads = 1, .head_dim = 8, .scale = 0.4, .cap = 1.5}}) {
    const QueryKeyValue inputs = split_qkv(some({kN, shape.qkv_width()}, 1, type), shape);
    const at::Tensor grads = unwritten({kN, shape.qkv_width()}, type);
    const at::Tensor grad_out = some({kN, shape.out_width()}, 2, type);
    const Tensors out = {unwritten({kN, shape.out_width()}, type), unwritten({kN, 4}), unwritten({4})};
    attention_forward(inputs, shape, ranges, out[0], out[1], sinks);
    attention_backward(grad_out, inputs, out[0], out[1], shape, ranges, split_qkv(grads, shape));
    attention_sink_gradient(grad_out, out[0], out[1], sinks, shape, ranges, out[2]);
    const at::Tensor generated = unwritten({2, 3, shape.out_width()}, type);
    attention_cached(some({2, 3, shape.q_width()}, 6, type),
                     some({2, 9, shape.kv_heads, shape.head_dim}, 7, type),
                     some({2, 9, shape.kv_heads, shape.value_size()}, 8, type), std::array<int64_t, 2>{6, 1},
                     shape, generated, sinks);
    r.insert(r.end(), {out[0], out[1], out[2], grads, generated});
  }
  return r;
}

at::Tensor table_labels() {
  return int_tensor({0, 5, -100, 18, 7, 7, 1, 12, -100, 10, 9, 11});
}

Tensors call_cross_entropy(at::ScalarType type) {
  LossGradient gradient{.scale = scalar(0.25), .z_weight = 0.01, .weights = some({kN}, 3), .cap = 2.0};
  Tensors r;
  for (const double smoothing : {0.0, 0.1}) {
    gradient.smoothing = smoothing;
    r.insert(r.end(), {some({kN, 19}, 1, type) * 3, unwritten({kN})});
    const at::Tensor logits = r[r.size() - 2];
    cap_logits(logits, 2.0);
    cross_entropy_forward_backward(logits, table_labels(), gradient, r.back());
  }
  return r;
}

/// One rank with half of the vocabulary; the sums are as if the other half were the same.
Tensors call_part_of_vocabulary(at::ScalarType type) {
  TensorExchange ranks;
  ranks.max = [](const at::Tensor&) {};
  ranks.sum = [](const at::Tensor& terms) { terms.mul_(2); };
  LossGradient gradient{.scale = scalar(0.25), .z_weight = 0.01, .weights = some({kN}, 3), .cap = 2.0};
  Tensors r;
  for (const double smoothing : {0.0, 0.1}) {
    gradient.smoothing = smoothing;
    LinearCrossEntropyOutputs outputs{.token_loss = unwritten({kN}),
                                      .grad_hidden = unwritten({kN, 8}, type),
                                      .grad_weight = unwritten({10, 8})};
    linear_cross_entropy(some({kN, 8}, 1, type), some({10, 8}, 2, type), table_labels(), gradient, 7, outputs,
                         {.begin = 9, .size = 20}, ranks);
    r.insert(r.end(), {outputs.token_loss, outputs.grad_hidden, outputs.grad_weight});
  }
  return r;
}

Tensors call_embedding(at::ScalarType type) {
  const at::Tensor tokens = int_tensor({0, 4, kNoEmbedding, 4, 6, 0, 1, 2, 3, 4, 5, 6});
  Tensors r = {unwritten({kN, 9}, type), some({7, 9}, 3), unwritten({kN, 9}, type), unwritten({4, 9})};
  embedding_forward(tokens, some({7, 9}, 1, type), r[0], {}, 1.5);
  embedding_backward(tokens, some({kN, 9}, 2, type), r[1], /*accumulate=*/true, {}, 1.5);
  embedding_forward(tokens, some({4, 9}, 1, type), r[2], {.begin = 2, .size = 7});
  embedding_backward(tokens, some({kN, 9}, 2, type), r[3], /*accumulate=*/false, {.begin = 2, .size = 7});
  return r;
}

const std::vector<int64_t> kTableOffsets = {0, 5, 5, 12};

Tensors call_grouped(at::ScalarType type) {
  const at::Tensor weights = some({3, 6, 10}, 1, type);
  const at::Tensor grad = some({kN, 6}, 2, type);
  Tensors r = {unwritten({kN, 6}, type), unwritten({kN, 10}, type), some({3, 6, 10}, 3)};
  grouped_product(some({kN, 10}, 4, type), weights, kTableOffsets, r[0]);
  grouped_input_gradient(grad, weights, kTableOffsets, r[1]);
  grouped_weight_gradient(grad, some({kN, 10}, 4, type), kTableOffsets, r[2], /*accumulate=*/true);
  return r;
}

Tensors call_router(at::ScalarType) {
  const RouterOptions options{.score = RouterScore::sigmoid,
                              .chosen = 3,
                              .groups = 2,
                              .chosen_groups = 1,
                              .normalize = true,
                              .factor = 2.0};
  const at::Tensor logits = some({kN, 8}, 1);
  const at::Tensor counted = at::ones({kN});
  counted[2] = 0;
  Tensors r = {at::zeros({kN, 3}, at::kInt), unwritten({kN, 3}),
               unwritten({2, router_columns(8)}, at::kDouble), unwritten({kN, 8})};
  router_forward(logits, some({8}, 2) * 0.1, counted, options, r[0], r[1], r[2]);
  router_backward(some({kN, 3}, 3), logits, r[0], counted, r[2], options,
                  {.balance_weight = 0.1, .z_weight = 0.01, .scale = scalar(0.5)}, r[3]);
  return r;
}

Tensors call_expert_rows(at::ScalarType type) {
  const ExpertRows rows = sort_by_expert(int_tensor({0, 3, 1, 3, 2, 0, 3, 1}).view({4, 2}), 4);
  return {gather_rows(some({4, 9}, 1, type), rows), combine_rows(some({8, 9}, 2, type), rows)};
}

Tensors call_expert_bias(at::ScalarType type) {
  const RowFactors factors{some({kN / 2, 2}, 1), int_tensor({3, 0, 1, 2, 11, 9, 10, 8, 4, 7, 6, 5})};
  const at::Tensor bias = some({3, 9}, 2);
  Tensors r = {some({kN, 9}, 3, type), unwritten({3, 9}), some({kN / 2, 2}, 4)};
  add_expert_bias(r[0], kTableOffsets, bias, factors);
  expert_bias_gradient(some({kN, 9}, 5, type), kTableOffsets, factors, r[1]);
  add_factor_gradients(some({kN, 9}, 5, type), kTableOffsets, bias, factors.slots, r[2]);
  return r;
}

Tensors call_linear_product(at::ScalarType type) {
  Tensors r = {unwritten({3, 11}, type), unwritten({3, 70}, type), unwritten({11, 70})};
  linear_product(some({3, 70}, 1, type), some({11, 70}, 2, type), r[0]);
  linear_input_gradient(some({3, 11}, 3, type), some({11, 70}, 2, type), {}, r[1]);
  linear_weight_gradient(some({3, 11}, 3, type), some({3, 70}, 1, type), r[2], false);
  return r;
}

Tensors call_gated_add(at::ScalarType type) {
  const at::Tensor y = some({kN, 9}, 1, type);
  const at::Tensor gate = some({kN}, 2);
  Tensors r = {unwritten({kN, 9}, type), unwritten({kN, 9}, type), unwritten({kN})};
  gated_add_forward(some({kN, 9}, 3, type), y, gate, r[0]);
  gated_add_backward(some({kN, 9}, 4, type), y, gate, r[1], r[2]);
  return r;
}

Tensors call_codes(at::ScalarType type) {
  const at::Tensor codes = (some({640}, 1).abs() * 100).to(at::kByte);
  Tensors r = {unwritten({640}, type), unwritten({640}, type), unwritten({600})};
  dequantize_nf4(codes.narrow(0, 0, 320), some({10}, 2), r[0]);
  dequantize_int8(codes, some({10}, 3), r[1]);
  dequantize_factors(codes.narrow(0, 0, 600), some({8}, 4), {.first = 5, .width = 30, .stride = 90}, r[2]);
  return r;
}

Tensors call_updates(at::ScalarType moments) {
  const UpdateScalars scalars{scalar(1), scalar(3), scalar(0.5), scalar(0.8)};
  const at::Tensor grad = some({1024}, 1);
  Tensors r = {some({1024}, 2), some({1024}, 3, moments), some({1024}, 4, moments).abs(),
               some({1024}, 5), some({1024}, 6),          some({1024}, 7)};
  adamw_update(r[0], grad, r[1], r[2], 5, 1000, {}, scalars);
  lion_update(r[3], grad, r[4], {}, scalars);
  const Tensors bits = {at::zeros({1024}, at::kByte), at::zeros({4}), at::zeros({1024}, at::kByte),
                        at::zeros({4})};
  adamw_8bit_update(r[5], grad, {bits[0], bits[1]}, {bits[2], bits[3]}, {}, first_update_scalars(at::kCPU));
  r.insert(r.end(), {bits[1], bits[3]});
  return r;
}

Tensors call_reductions(at::ScalarType) {
  const at::Tensor flat = some({2500}, 1);
  Tensors r;
  for (const NormType type : {NormType::l1, NormType::l2, NormType::l3, NormType::inf}) {
    r.insert(r.end(), {unwritten({3}, at::kDouble), scalar(0.5), unwritten({}, at::kDouble)});
    const Tensors own(r.end() - 3, r.end());
    norm_terms_by_chunk(flat, type, own[0]);
    join_norm_terms(type, own[0], own[1]);
    norm_of_terms(type, own[1], own[2]);
  }
  r.push_back(unwritten({}, at::kDouble));
  sum_in_order(flat, r.back());
  r.push_back(at::tensor(all_finite(flat) ? 1.0 : 0.0));
  return r;
}

Tensors call_scalars(at::ScalarType) {
  Tensors r;
  const auto result = [&]() -> at::Tensor& { return r.emplace_back(unwritten({}, at::kDouble)); };
  for (const double count : {0.0, 4.0}) {
    reciprocal_or_zero(scalar(count), result());
    mean_in_order(some({5}, 1, at::kDouble), scalar(count), result());
  }
  for (const double limit : {0.0, 1.0, 5.0}) clip_coefficient(scalar(3.0), limit, result());
  for (const double number : {1.0, std::nan("")}) flag_if_finite(scalar(number), scalar(2), result());
  return r;
}

constexpr TableCase kTableCases[] = {
    {"rms_norm", call_rms_norm},
    {"bias", call_bias_rows},
    {"swiglu", call_swiglu_rows},
    {"expert_swiglu", call_expert_swiglu},
    {"dropout", call_dropout},
    {"rope", call_rope},
    {"latent_heads", call_latent_heads},
    {"attention", call_attention},
    {"cross_entropy", call_cross_entropy},
    {"part_of_vocabulary", call_part_of_vocabulary},
    {"embedding", call_embedding},
    {"grouped", call_grouped},
    {"router", call_router},
    {"expert_rows", call_expert_rows},
    {"expert_bias", call_expert_bias},
    {"linear_product", call_linear_product},
    {"gated_add", call_gated_add},
    {"codes", call_codes},
    {"updates", call_updates},
    {"reductions", call_reductions},
    {"scalars", call_scalars},
};

/// A row, whatever its signature: KernelTable is an array of them, and a switch.
struct AnyRow {
  void (*reference)();
  void (*cpu)();
  KernelTypes types;
  void (*device)();
};
constexpr size_t kRows = sizeof(KernelTable) / sizeof(AnyRow);
static_assert(sizeof(KernelTable) == kRows * sizeof(AnyRow) + alignof(KernelTable));

AnyRow row_of(const KernelTable& table, size_t row) {
  AnyRow any{};
  std::memcpy(&any, reinterpret_cast<const std::byte*>(&table) + row * sizeof any, sizeof any);
  return any;
}

KernelTable without_row(size_t row) {
  KernelTable table;
  const AnyRow none{};
  std::memcpy(reinterpret_cast<std::byte*>(&table) + row * sizeof none, &none, sizeof none);
  return table;
}

Tensors run_with(const KernelTable& table, const TableCase& of, at::ScalarType type) {
  const ChargeMemory rank(make_rank_memory(table));
  return of.run(type);
}

TEST(KernelTable, EveryOperationHasAReferenceAndAKernelForTheCpu) {
  for (size_t row = 0; row < kRows; ++row) {
    EXPECT_NE(row_of({}, row).reference, nullptr) << "row " << row;
    EXPECT_NE(row_of({}, row).cpu, nullptr) << "row " << row;
  }
}

TEST(KernelTable, EveryRowIsComparedWithItsReference) {
  for (size_t row = 0; row < kRows; ++row) {
    const KernelTable table = without_row(row);
    int callers = 0;
    for (const TableCase& of : kTableCases) {
      try {
        run_with(table, of, at::kFloat);
      } catch (const Error&) {
        ++callers;
      }
    }
    EXPECT_GT(callers, 0) << "no case calls row " << row;
  }
}

TEST(KernelTable, KernelsAgreeWithReferencesOfTheSameType) {
  KernelTable references;
  references.references_only = true;
  for (const TableCase& of : kTableCases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors kernel = run_with({}, of, type);
      const Tensors reference = run_with(references, of, type);
      for (size_t i = 0; i < kernel.size(); ++i) {
        const bool narrow = type == at::kBFloat16;
        expect_close(kernel[i], reference[i], narrow ? 4 * kEps16 : 64 * kEps32,
                     format("{} {} of {}", of.name, i, c10::toString(type)).c_str());
      }
    }
  }
}

TEST(KernelTable, KernelsRunTheirTypesOnTheCpuAndReferencesTheRest) {
  const auto of_type = [](at::ScalarType type) { return at::empty({1}, type); };
  const auto kernel = [](auto operation, const at::Tensor& tensor) {
    return pick(operation, tensor) == (KernelTable().*operation).cpu;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf}) {
    const bool fp32 = type == at::kFloat;
    EXPECT_EQ(kernel(&KernelTable::bias_forward, of_type(type)), fp32 || type == at::kBFloat16);
    EXPECT_EQ(kernel(&KernelTable::adamw_update, of_type(type)), fp32);
    EXPECT_TRUE(kernel(&KernelTable::sum_in_order, of_type(type)));
  }
  EXPECT_FALSE(kernel(&KernelTable::bias_forward, at::empty({1}, at::TensorOptions(at::kMeta))));
}

TEST(KernelTable, AnOperationOfThisThreadIsThatOfItsRank) {
  KernelTable own;
  own.bias_forward.cpu = [](const at::Tensor& x, const at::Tensor&) { x.fill_(5); };
  const auto result = [] {
    const at::Tensor x = at::zeros({1, 1});
    bias_forward(x, at::ones({1}));
    return x.item<float>();
  };
  EXPECT_EQ(result(), 1);
  {
    const ChargeMemory rank(make_rank_memory(own));
    EXPECT_EQ(result(), 5);
    own.references_only = true;
    const ChargeMemory inner(make_rank_memory(own));
    EXPECT_EQ(result(), 1);
  }
  EXPECT_EQ(result(), 1);
}

}  // namespace
}  // namespace stepforge::testing
