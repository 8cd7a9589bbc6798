// SPDX-License-Identifier: Apache-2.0
// The rows of the CUDA plug-in against their references, on tensors of the CPU, at addresses that are not aligned. The plug-in itself
// needs CUDA.
#include <limits>
#include <optional>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"
#include "tests/kernels/compare.h"

namespace stepforge::cuda_plugin {

namespace {
int launches = 0;  // calls of on_stream_of()
}

void on_stream_of(const at::Tensor&, c10::function_ref<void(cuda::Stream)> enqueue) {
  ++launches;
  enqueue(nullptr);
}

}  // namespace stepforge::cuda_plugin

namespace stepforge::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A contiguous copy that begins inside its storage. Undefined tensors stay so.
at::Tensor inside(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor flat = at::empty({tensor.numel() + 3}, tensor.options());
  const at::Tensor copy = flat.slice(0, 3).view(tensor.sizes());
  copy.copy_(tensor);
  return copy;
}

at::Tensor number(double value) {
  return at::full({}, value, at::kDouble);
}

/// An output: NaN until it is written.
at::Tensor unwritten(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN(), type);
}

/// What a row does its work by. For what its kernel cannot take, it is the reference.
enum class By { kernel, reference };

/// How often `run` enqueues kernels.
template <typename Run>
int launches_of(const Run& run) {
  const int before = cuda_plugin::launches;
  run();
  return cuda_plugin::launches - before;
}

/// call(implementation, tensors) leaves the same in all tensors, whichever implementation it is.
template <typename Signature, typename Call>
void expect_same(Signature* row, Signature* reference, const Tensors& tensors, const Call& call,
                 By by = By::kernel) {
  Tensors actual;
  Tensors expected;
  for (const at::Tensor& tensor : tensors) {
    actual.push_back(inside(tensor));
    expected.push_back(inside(tensor));
  }
  EXPECT_EQ(launches_of([&] { call(row, actual); }), by == By::kernel ? 1 : 0);
  call(reference, expected);
  for (size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(i);
    if (!tensors[i].defined() || at::equal(actual[i], expected[i])) continue;
    const bool narrow = tensors[i].scalar_type() == at::kBFloat16;
    expect_close(actual[i], expected[i], narrow ? kEps16 : 64 * kEps32, "tensor");
  }
}

#define BOTH(name) cuda_plugin::name, reference::name

at::Tensor row_of(int64_t width, uint64_t seed, at::ScalarType type) {
  return random_tensor({width}, seed).to(type);
}

/// Calls body(rows, width, type, another type).
template <typename Body>
void for_shapes(const Body& body) {
  for (const int64_t rows : {0, 1, 21}) {
    for (const int64_t width : {6, 64}) {
      body(rows, width, at::kFloat, at::kBFloat16);
      body(rows, width, at::kBFloat16, at::kFloat);
    }
  }
}

TEST(CudaPlugin, FillsTheRowsThatHaveAKernel) {
  KernelTable table;
  cuda_plugin::add_cuda_kernels(table);
  EXPECT_EQ(table.part_losses.device, &cuda_plugin::part_losses);
  EXPECT_EQ(table.rms_norm_backward.device, &cuda_plugin::rms_norm_backward);
  EXPECT_EQ(table.attention_cached.device, nullptr);
}

// The tensors of a call are t[0], t[1] and so on.

/// A weight of this type with activations of that type.
By by_weight(at::ScalarType weight, at::ScalarType type) {
  return weight == type || weight == at::kFloat ? By::kernel : By::reference;
}

TEST(CudaPlugin, NormsAndBiases) {
  for_shapes([](int64_t rows, int64_t width, at::ScalarType type, at::ScalarType other) {
    const at::Tensor x = random_tensor({rows, width}, 1).to(type);
    const at::Tensor grad = random_tensor({rows, width}, 2).to(type);
    for (const at::ScalarType weight : {type, other}) {
      const By by = by_weight(weight, type);
      expect_same(
          BOTH(rms_norm_forward),
          {x, row_of(width, 3, weight), unwritten({rows, width}, type), unwritten({rows})},
          [](auto* run, const Tensors& t) { run(t[0], t[1], 1e-5, t[2], t[3], 1.0); }, by);
      for (const at::Tensor& residual : {at::Tensor(), grad}) {
        expect_same(
            BOTH(rms_norm_backward),
            {grad, x, row_of(width, 3, weight), random_tensor({rows}, 4), residual,
             unwritten({rows, width}, type), unwritten({width})},
            [](auto* run, const Tensors& t) { run(t[0], t[1], t[2], t[3], t[4], t[5], t[6], 1.0); }, by);
      }
      expect_same(
          BOTH(bias_forward), {x, row_of(width, 5, weight)},
          [](auto* run, const Tensors& t) { run(t[0], t[1]); }, by);
    }
    expect_same(
        BOTH(bias_forward), {x, row_of(2 * width, 5, type)},
        [](auto* run, const Tensors& t) { run(t[0], t[1].slice(0, 0, std::nullopt, 2)); }, By::reference);
    expect_same(BOTH(bias_backward), {grad, unwritten({width})},
                [](auto* run, const Tensors& t) { run(t[0], t[1]); });
  });
}

TEST(CudaPlugin, ResidualBranches) {
  for_shapes([](int64_t rows, int64_t width, at::ScalarType type, at::ScalarType) {
    const at::Tensor x = random_tensor({rows, width}, 1).to(type);
    const at::Tensor y = random_tensor({rows, width}, 2).to(type);
    const at::Tensor out = unwritten({rows, width}, type);
    const Tensors coords{at::arange(rows, at::kLong).add(5000000000), at::arange(rows, at::kInt)};
    constexpr DropoutKey kKey{0x123456789ABCDEF0};
    expect_same(BOTH(gated_add_forward), {x, y, random_tensor({rows}, 3), out},
                [](auto* run, const Tensors& t) { run(t[0], t[1], t[2], t[3]); });
    expect_same(BOTH(gated_add_backward), {x, y, random_tensor({rows}, 3), out, unwritten({rows})},
                [](auto* run, const Tensors& t) { run(t[0], t[1], t[2], t[3], t[4]); });
    if (rows == 0) return;  // WorkWithoutRows
    for (const double p : {0.0, 0.3}) {
      const bool none = p == 0.0;
      expect_same(BOTH(dropout_add_forward),
                  {x, y, none ? at::Tensor() : coords[0], none ? at::Tensor() : coords[1], out},
                  [&](auto* run, const Tensors& t) { run(t[0], t[1], p, kKey, {t[2], t[3]}, t[4]); });
      expect_same(BOTH(dropout_add_backward),
                  {x, none ? at::Tensor() : coords[0], none ? at::Tensor() : coords[1], out},
                  [&](auto* run, const Tensors& t) { run(t[0], p, kKey, {t[1], t[2]}, t[3]); });
    }
  });
}

TEST(CudaPlugin, GatedRows) {
  for_shapes([](int64_t rows, int64_t width, at::ScalarType type, at::ScalarType) {
    if (rows == 0) return;  // WorkWithoutRows
    const at::Tensor gate_up = random_tensor({rows, 2 * width}, 1).to(type) * 4;
    const at::Tensor grad = random_tensor({rows, width}, 2).to(type);
    const at::Tensor slots = at::arange(rows, at::kInt).flip(0).contiguous();
    const auto compare = [&](const GatedRows& form, const at::Tensor& weights,
                             const at::Tensor& grad_weights) {
      const auto with = [&form](const at::Tensor& of_rows, const at::Tensor& places) {
        GatedRows all = form;
        all.weights = of_rows;
        all.slots = places;
        return all;
      };
      expect_same(BOTH(gated_forward), {gate_up, weights, slots, unwritten({rows, width}, type)},
                  [&](auto* run, const Tensors& t) { run(t[0], with(t[1], t[2]), t[3]); });
      expect_same(BOTH(gated_backward),
                  {grad, gate_up, weights, slots, unwritten({rows, 2 * width}, type), grad_weights},
                  [&](auto* run, const Tensors& t) { run(t[0], t[1], with(t[2], t[3]), t[4], t[5]); });
    };
    compare({.activation = Activation::silu}, {}, {});
    compare({.activation = Activation::gelu_tanh}, {}, {});
    compare({}, random_tensor({rows, 1}, 3), unwritten({rows, 1}));
    compare({.clamped = ClampedSwiglu{.limit = 2.0}}, random_tensor({rows, 1}, 3), unwritten({rows, 1}));
  });
}

TEST(CudaPlugin, Rotations) {
  constexpr AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 8};
  const RopeTable table = make_rope_table(50, 8, 10000, {});
  const auto norm_of = [](const at::Tensor& q_weight, const at::Tensor& k_weight) {
    return QkNorm{.q_weight = q_weight, .k_weight = k_weight, .eps = 1e-5, .offset = 1.0};
  };
  for_shapes([&](int64_t tokens, int64_t, at::ScalarType type, at::ScalarType other) {
    if (tokens == 0) return;  // WorkWithoutRows
    const at::Tensor qkv = random_tensor({tokens, kShape.qkv_width()}, 1).to(type);
    const at::Tensor positions = at::arange(tokens, at::kInt).mul_(7).remainder_(50);
    // Without a norm; of each head; of all heads, with another type; with two types.
    for (const Tensors& weights : {Tensors{{}, {}}, Tensors{row_of(8, 2, type), row_of(8, 3, type)},
                                   Tensors{row_of(32, 2, other), row_of(16, 3, other)},
                                   Tensors{row_of(8, 2, type), row_of(16, 3, other)}}) {
      const QkNorm norm = norm_of(weights[0], weights[1]);
      const bool normed = norm.present();
      const By by = !normed || (weights[0].scalar_type() == weights[1].scalar_type() &&
                                by_weight(weights[0].scalar_type(), type) == By::kernel)
                        ? By::kernel
                        : By::reference;
      const at::Tensor rstd = normed ? unwritten({tokens, norm.count(kShape)}) : at::Tensor();
      expect_same(
          BOTH(qk_norm_rope_forward),
          {qkv, positions, weights[0], weights[1], unwritten(qkv.sizes(), type), rstd},
          [&](auto* run, const Tensors& t) {
            run(t[0], kShape, t[1], table, norm_of(t[2], t[3]), t[4], t[5]);
          },
          by);
      const auto if_normed = [&](const at::Tensor& tensor) { return normed ? tensor : at::Tensor(); };
      expect_same(
          BOTH(qk_norm_rope_backward),
          {random_tensor(qkv.sizes(), 4).to(type), if_normed(qkv), positions, weights[0], weights[1],
           normed ? random_tensor(rstd.sizes(), 5) : rstd, normed ? unwritten(weights[0].sizes()) : rstd,
           normed ? unwritten(weights[1].sizes()) : rstd},
          [&](auto* run, const Tensors& t) {
            run(t[0], t[1], kShape, t[2], table, norm_of(t[3], t[4]), t[5], t[6], t[7]);
          },
          by);
    }
  });
}

/// The rows whose references cannot reshape tensors without rows.
TEST(CudaPlugin, WorkWithoutRows) {
  const at::Tensor none = at::empty({0, 6});
  const at::Tensor none_twice = at::empty({0, 12});
  const TokenCoords coords{at::empty({0}, at::kLong), at::empty({0}, at::kInt)};
  const GatedRows weighted{.weights = at::empty({0, 1}), .slots = at::empty({0}, at::kInt)};
  const auto run_layers = [&] {
    cuda_plugin::dropout_add_forward(none, none, 0.3, {7}, coords, none);
    cuda_plugin::dropout_add_backward(none, 0.3, {7}, coords, none);
    cuda_plugin::gated_forward(none_twice, {}, none);
    cuda_plugin::gated_backward(none, none_twice, weighted, none_twice, at::empty({0, 1}));
  };
  EXPECT_EQ(launches_of(run_layers), 4);
  constexpr AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 8};
  const RopeTable table = make_rope_table(50, 8, 10000, {});
  const QkNorm norm{.q_weight = row_of(8, 2, at::kFloat), .k_weight = row_of(16, 3, at::kFloat)};
  const at::Tensor qkv = at::empty({0, kShape.qkv_width()});
  const at::Tensor rstd = at::empty({0, norm.count(kShape)});
  const Tensors grads{unwritten({8}), unwritten({16})};
  const auto run_rotations = [&] {
    cuda_plugin::qk_norm_rope_forward(qkv, kShape, coords.positions, table, norm, qkv, rstd);
    cuda_plugin::qk_norm_rope_backward(qkv, qkv, kShape, coords.positions, table, norm, rstd, grads[0],
                                       grads[1]);
    cuda_plugin::qk_norm_rope_backward(qkv, {}, kShape, coords.positions, table, {}, {}, {}, {});
  };
  EXPECT_EQ(launches_of(run_rotations), 3);
  for (const at::Tensor& grad : grads) EXPECT_TRUE(grad.eq(0).all().item<bool>());
}

TEST(CudaPlugin, Embeddings) {
  for_shapes([](int64_t count, int64_t width, at::ScalarType type, at::ScalarType) {
    const at::Tensor tokens = at::arange(count, at::kInt).mul_(5).remainder_(11);
    const at::Tensor grad = random_tensor({count, width}, 2).to(type);
    for (const VocabularyPart& part : {VocabularyPart{}, VocabularyPart{.begin = 4, .size = 20}}) {
      const int64_t rows = part.size > 0 ? 5 : 12;
      expect_same(BOTH(embedding_forward),
                  {tokens, random_tensor({rows, width}, 1).to(type), unwritten({count, width}, type)},
                  [&](auto* run, const Tensors& t) { run(t[0], t[1], t[2], part, 2.5); });
      for (const bool accumulate : {false, true}) {
        expect_same(BOTH(embedding_backward), {tokens, grad, random_tensor({rows, width}, 3)},
                    [&](auto* run, const Tensors& t) { run(t[0], t[1], t[2], accumulate, part, 2.5); });
      }
    }
  });
}

/// -100 in every fourth row.
at::Tensor labels_of(int64_t rows, int64_t width, at::ScalarType type) {
  const at::Tensor labels = at::arange(rows, at::kLong).mul_(3).remainder_(width);
  return labels.masked_fill(at::arange(rows, at::kLong).remainder(4).eq(1), -100).to(type);
}

TEST(CudaPlugin, Losses) {
  for_shapes([](int64_t rows, int64_t width, at::ScalarType type, at::ScalarType) {
    const at::Tensor logits = random_tensor({rows, width}, 1).to(type);
    const auto gradient_of = [](const at::Tensor& scale, const at::Tensor& weights) {
      return LossGradient{.scale = scale, .z_weight = 1e-2, .weights = weights, .cap = 9.0, .smoothing = 0.1};
    };
    for (const at::Tensor& scale : {at::Tensor(), number(0.3)}) {
      const at::Tensor weights = scale.defined() ? random_tensor({rows}, 2) : at::Tensor();
      for (const at::ScalarType label : {at::kInt, at::kLong}) {
        expect_same(BOTH(cross_entropy),
                    {logits, labels_of(rows, width, label), scale, weights, unwritten({rows})},
                    [&](auto* run, const Tensors& t) { run(t[0], t[1], gradient_of(t[2], t[3]), t[4]); });
      }
      const VocabularyPart part{.begin = 2, .size = width + 5};
      const at::Tensor largest = logits.to(at::kFloat).abs().sum(1);
      expect_same(BOTH(part_terms),
                  {logits, labels_of(rows, width, at::kLong), largest, unwritten({2, rows}, at::kDouble)},
                  [&](auto* run, const Tensors& t) { run(t[0], t[1], part, t[2], 0.1, t[3]); });
      expect_same(BOTH(part_losses),
                  {logits, labels_of(rows, width, at::kLong), largest,
                   random_tensor({2, rows}, 3).abs().to(at::kDouble), scale, weights, unwritten({rows})},
                  [&](auto* run, const Tensors& t) {
                    run(t[0], t[1], part, t[2], t[3], gradient_of(t[4], t[5]), t[6]);
                  });
    }
    expect_same(BOTH(part_maxima), {logits, unwritten({rows})},
                [](auto* run, const Tensors& t) { run(t[0], t[1]); });
    expect_same(BOTH(cap_logits), {logits}, [](auto* run, const Tensors& t) { run(t[0], 0.5); });
    expect_same(
        BOTH(cap_logits), {logits}, [](auto* run, const Tensors& t) { run(t[0].slice(1, 1), 0.5); },
        rows > 1 ? By::reference : By::kernel);  // one row has no gaps
  });
}

TEST(CudaPlugin, Updates) {
  const Tensors numbers{number(1), number(3), number(0.5), number(0.7)};
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
    expect_same(BOTH(adamw_update),
                {random_tensor({101}, 1), random_tensor({101}, 2), row_of(101, 3, moments),
                 row_of(101, 4, moments).abs(), numbers[0], numbers[1], numbers[2], numbers[3]},
                [](auto* run, const Tensors& t) {
                  run(t[0], t[1], t[2], t[3], 7, 90, {.lr = 0.1}, {t[4], t[5], t[6], t[7]});
                });
  }
  expect_same(BOTH(lion_update),
              {random_tensor({101}, 1), random_tensor({101}, 2), random_tensor({101}, 3), numbers[0],
               numbers[1], numbers[2], numbers[3]},
              [](auto* run, const Tensors& t) {
                run(t[0], t[1], t[2], {.lr = 0.1, .weight_decay = 0.2}, {t[3], t[4], t[5], t[6]});
              });
}

TEST(CudaPlugin, Reductions) {
  for (const int64_t elements : {0, 1, 1024, 3000}) {
    const at::Tensor flat = random_tensor({elements}, 1);
    const int64_t chunks = reduce_chunks(elements);
    for (const NormType type : {NormType::l1, NormType::l2, NormType::l3, NormType::inf}) {
      expect_same(BOTH(norm_terms_by_chunk), {flat, unwritten({chunks}, at::kDouble)},
                  [&](auto* run, const Tensors& t) { run(t[0], type, t[1]); });
      expect_same(BOTH(join_norm_terms), {flat.to(at::kDouble), number(0.5)},
                  [&](auto* run, const Tensors& t) { run(type, t[0], t[1]); });
      expect_same(BOTH(norm_of_terms), {number(7), unwritten({}, at::kDouble)},
                  [&](auto* run, const Tensors& t) { run(type, t[0], t[1]); });
    }
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      expect_same(BOTH(sum_in_order), {flat.to(type), unwritten({}, at::kDouble)},
                  [](auto* run, const Tensors& t) { run(t[0], t[1]); });
    }
    EXPECT_EQ(launches_of([&] { EXPECT_TRUE(cuda_plugin::all_finite(inside(flat))); }), 1);
    if (elements > 0) {
      EXPECT_FALSE(cuda_plugin::all_finite(inside(flat / 0)));
    }
  }
}

TEST(CudaPlugin, Numbers) {
  const at::Tensor out = unwritten({}, at::kDouble);
  for (const double value : {0.0, 3.0}) {
    expect_same(BOTH(reciprocal_or_zero), {number(value), out},
                [](auto* run, const Tensors& t) { run(t[0], t[1]); });
    const Tensors mean{random_tensor({9}, 1).to(at::kDouble), number(value), out};
    expect_same(BOTH(mean_in_order), mean, [](auto* run, const Tensors& t) { run(t[0], t[1], t[2]); });
    expect_same(BOTH(clip_coefficient), {number(2), out},
                [&](auto* run, const Tensors& t) { run(t[0], value, t[1]); });
    expect_same(BOTH(flag_if_finite), {number(2), number(1 / value), out},
                [](auto* run, const Tensors& t) { run(t[0], t[1], t[2]); });
  }
}

TEST(CudaPlugin, AMeanMayBeWrittenOverItsCount) {
  const at::Tensor values = random_tensor({700}, 1).to(at::kDouble);
  for (const double value : {0.0, 3.0}) {
    const at::Tensor actual = number(value);
    const at::Tensor expected = number(value);
    EXPECT_EQ(launches_of([&] { cuda_plugin::mean_in_order(values, actual, actual); }), 1);
    cpu::mean_in_order(values, number(value), expected);
    EXPECT_EQ(actual.item<double>(), expected.item<double>());
  }
}

}  // namespace
}  // namespace stepforge::testing
