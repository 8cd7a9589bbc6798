// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rope.h"

#include <bit>

#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "tests/kernels/compare.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

constexpr AttentionShape kShape = {.heads = 4, .kv_heads = 2, .head_dim = 20, .scale = 1.0};
constexpr int64_t kTokens = 70;

at::Tensor some_positions() {
  std::vector<int32_t> positions;
  for (int32_t n = 0; n < kTokens; ++n) positions.push_back(n * 7 % 50);
  return int_tensor(positions);
}

QkNorm some_norm(at::ScalarType type) {
  return {.q_weight = random_tensor({kShape.head_dim}, 20).to(type),
          .k_weight = random_tensor({kShape.head_dim}, 21).to(type),
          .eps = 1e-5};
}

/// Of all heads together, with weights that start at 0.
QkNorm norm_of_all_heads(at::ScalarType type) {
  return {.q_weight = random_tensor({kShape.heads * kShape.head_dim}, 20).to(type),
          .k_weight = random_tensor({kShape.kv_heads * kShape.head_dim}, 21).to(type),
          .eps = 1e-5,
          .offset = 1.0};
}

struct RopeResults {
  at::Tensor out;
  at::Tensor rstd;
  at::Tensor grad_qkv;
  at::Tensor grad_q_weight;
  at::Tensor grad_k_weight;
};

RopeResults run(const at::Tensor& qkv, const at::Tensor& grad_out, const QkNorm& norm) {
  const RopeTable table = make_rope_table(50, kShape.head_dim, 10000, {});
  const auto options = qkv.options().dtype(qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  RopeResults r;
  r.out = at::empty_like(qkv);
  r.rstd = at::empty({qkv.size(0), norm.present() ? norm.count(kShape) : 0}, options);
  r.grad_qkv = grad_out.clone();
  if (norm.present()) {
    r.grad_q_weight = at::empty(norm.q_weight.sizes(), options).zero_();
    r.grad_k_weight = at::empty(norm.k_weight.sizes(), options).zero_();
  }
  qk_norm_rope_forward(qkv, kShape, some_positions(), table, norm, r.out, r.rstd);
  qk_norm_rope_backward(r.grad_qkv, qkv, kShape, some_positions(), table, norm, r.rstd, r.grad_q_weight,
                        r.grad_k_weight);
  return r;
}

QkNorm widened(const QkNorm& norm) {
  if (!norm.present()) return norm;
  return {.q_weight = norm.q_weight.to(at::kDouble),
          .k_weight = norm.k_weight.to(at::kDouble),
          .eps = norm.eps,
          .offset = norm.offset};
}

TEST(QkNormRope, AgreesWithTheFp64Reference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const QkNorm& norm : {QkNorm{}, some_norm(type), norm_of_all_heads(type)}) {
      const at::Tensor qkv = random_tensor({kTokens, kShape.qkv_width()}, 1).to(type);
      const at::Tensor grad_out = random_tensor({kTokens, kShape.qkv_width()}, 2).to(type);
      const RopeResults actual = run(qkv, grad_out, norm);
      const RopeResults expected = run(qkv.to(at::kDouble), grad_out.to(at::kDouble), widened(norm));
      const double tolerance = type == at::kFloat ? 32 * kEps32 : kEps16;
      expect_close(actual.out, expected.out, tolerance, "out");
      expect_close(actual.grad_qkv, expected.grad_qkv, tolerance, "grad_qkv");
      if (!norm.present()) continue;
      expect_close(actual.rstd, expected.rstd, 16 * kEps32, "rstd");
      expect_close(actual.grad_q_weight, expected.grad_q_weight, 64 * kEps32, "grad_q_weight");
      expect_close(actual.grad_k_weight, expected.grad_k_weight, 64 * kEps32, "grad_k_weight");
    }
  }
}

TEST(QkNormRope, ReferenceGradientIsTheDerivative) {
  const at::Tensor qkv = random_tensor({kTokens, kShape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({kTokens, kShape.qkv_width()}, 4).to(at::kDouble);
  const auto loss = [&](const at::Tensor& x, const QkNorm& weights) {
    return (run(x, grad_out, weights).out * grad_out).sum().item<double>();
  };
  for (const QkNorm& norm : {some_norm(at::kDouble), norm_of_all_heads(at::kDouble)}) {
    const RopeResults exact = run(qkv, grad_out, norm);
    expect_derivative([&](const at::Tensor& x) { return loss(x, norm); }, qkv, exact.grad_qkv, "qkv");
    QkNorm other = norm;
    const auto with_weight = [&](at::Tensor QkNorm::* weight) {
      return [&other, &norm, &loss, &qkv, weight](const at::Tensor& w) {
        other = norm;
        other.*weight = w;
        return loss(qkv, other);
      };
    };
    expect_derivative(with_weight(&QkNorm::q_weight), norm.q_weight, exact.grad_q_weight, "q_weight");
    expect_derivative(with_weight(&QkNorm::k_weight), norm.k_weight, exact.grad_k_weight, "k_weight");
  }
}

TEST(QkNormRope, AWeightOfNeitherAHeadNorAllHeadsIsRefused) {
  const at::Tensor qkv = random_tensor({kTokens, kShape.qkv_width()}, 1);
  QkNorm norm = some_norm(at::kFloat);
  norm.q_weight = random_tensor({2 * kShape.head_dim}, 1);
  EXPECT_THROW(run(qkv, qkv, norm), Error);
}

TEST(QkNormRope, MayWorkInPlaceWithoutANormAndLeavesValuesAlone) {
  const at::Tensor qkv = random_tensor({kTokens, kShape.qkv_width()}, 5);
  const RopeResults expected = run(qkv, qkv, {});
  const int64_t values = (kShape.heads + kShape.kv_heads) * kShape.head_dim;
  EXPECT_TRUE(at::equal(expected.out.slice(1, values), qkv.slice(1, values)));
  const at::Tensor in_place = qkv.clone();
  qk_norm_rope_forward(in_place, kShape, some_positions(), make_rope_table(50, kShape.head_dim, 10000, {}),
                       {}, in_place, {});
  EXPECT_TRUE(at::equal(in_place, expected.out));
}

TEST(QkNormRope, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor qkv = random_tensor({kTokens, kShape.qkv_width()}, 6);
  const at::Tensor grad_out = random_tensor({kTokens, kShape.qkv_width()}, 7);
  expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
    const RopeResults r = run(qkv, grad_out, some_norm(at::kFloat));
    const RopeResults all = run(qkv, grad_out, norm_of_all_heads(at::kFloat));
    return {r.out,   r.grad_qkv,   r.grad_q_weight,   r.grad_k_weight,
            all.out, all.grad_qkv, all.grad_q_weight, all.grad_k_weight};
  });
}

TEST(QkNormRope, RefusesPositionsOutsideTheTable) {
  const at::Tensor qkv = random_tensor({2, kShape.qkv_width()}, 8);
  const RopeTable table = make_rope_table(50, kShape.head_dim, 10000, {});
  for (const int32_t position : {-1, 50}) {
    EXPECT_THROW(
        qk_norm_rope_forward(qkv, kShape, int_tensor({0, position}), table, {}, at::empty_like(qkv), {}),
        Error);
  }
}

TEST(RopeTable, HoldsTheAnglesOfPairsOfAHead) {
  const RopeTable table = make_rope_table(100, 8, 10000, {});
  for (int64_t i = 0; i < 4; ++i) {
    const double angle = 99.0 * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8.0);
    EXPECT_NEAR(table.cos[99][i].item<float>(), std::cos(angle), 99 * 4 * kEps32);
    EXPECT_NEAR(table.sin[99][i].item<float>(), std::sin(angle), 99 * 4 * kEps32);
  }
}

// Llama 3.1 8B: wavelengths below 8192 / 4 stay, above 8192 / 1 are divided by 8, between they are blended.
TEST(RopeTable, Llama3ScalingKeepsShortWavesStretchesLongOnesAndBlendsBetween) {
  const RopeScaling scaling = {.type = RopeScalingType::llama3,
                               .factor = 8.0,
                               .low_freq_factor = 1.0,
                               .high_freq_factor = 4.0,
                               .original_max_position = 8192};
  const at::Tensor plain = rope_frequencies(128, 500000, {});
  const at::Tensor scaled = rope_frequencies(128, 500000, scaling);
  for (int64_t i = 0; i < 64; ++i) {
    const double frequency = plain[i].item<float>();
    const double wavelength = 2 * M_PI / frequency;
    double expected = frequency;
    if (wavelength > 8192) {
      expected = frequency / 8;
    } else if (wavelength >= 2048) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * frequency / 8 + smooth * frequency;
    }
    EXPECT_NEAR(scaled[i].item<float>(), expected, 1e-6 * expected) << "pair " << i;
  }
  EXPECT_EQ(scaled[0].item<float>(), plain[0].item<float>());
  EXPECT_EQ(scaled[63].item<float>(), plain[63].item<float>() / 8);
}

TEST(RopeTable, LongropeHasTheFrequenciesOfTransformersBitByBit) {
  const std::filesystem::path file = source_dir() / "tests/golden/hf_config/longrope.json";
  const Json tables = Json::parse(read_file(file, 1 << 20));
  ASSERT_EQ(tables.size(), 6U);
  for (const Json& table : tables) {
    const Json& rope = table["rope"];
    const int64_t original = rope["original_max_position_embeddings"];
    const bool is_long = table["length"].get<int64_t>() > original;
    const double ratio = table["max_position"].get<double>() / static_cast<double>(original);
    const RopeScaling scaling = {
        .type = RopeScalingType::longrope,
        .factor = rope.value("factor", ratio),
        .original_max_position = original,
        .attention_factor = rope.value("attention_factor", 0.0),
        .divisors = rope[is_long ? "long_factor" : "short_factor"].get<std::vector<double>>()};
    const at::Tensor frequencies = rope_frequencies(16, rope["rope_theta"], scaling);
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(std::bit_cast<int32_t>(frequencies[i].item<float>()),
                table["bits"].at(static_cast<size_t>(i)).get<int32_t>());
    EXPECT_EQ(make_rope_table(1, 16, rope["rope_theta"], scaling).cos[0][0].item<float>(),
              static_cast<float>(table["factor"].get<double>()));
  }
}

}  // namespace
}  // namespace stepforge::testing
