// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/latent_heads.h"

#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kLatentTokens = 37;

struct LatentCase {
  AttentionShape shape;
  int64_t rotated;

  int64_t kv_width() const { return shape.heads * (shape.head_dim - rotated + shape.value_size()); }
};

/// Values wider and narrower than keys.
const LatentCase kLatentCases[] = {
    {{.heads = 1, .kv_heads = 1, .head_dim = 3, .value_dim = 5}, 2},
    {{.heads = 3, .kv_heads = 3, .head_dim = 10, .value_dim = 7}, 4},
    {{.heads = 4, .kv_heads = 4, .head_dim = 48, .value_dim = 32}, 16},
};

at::Tensor latent_positions() {
  std::vector<int32_t> values;
  for (int32_t n = 0; n < kLatentTokens; ++n) values.push_back(n % 11);
  return int_tensor(values);
}

struct LatentTensors {
  at::Tensor q, kv, k_rotated, grad_out;
};

LatentTensors latent_tensors(const LatentCase& c, at::ScalarType type) {
  // Rows that are further apart than their columns.
  const auto rows = [&](int64_t width, uint64_t seed) {
    return random_tensor({kLatentTokens, width + 3}, seed).to(type).narrow(1, 2, width);
  };
  return {rows(c.shape.q_width(), 1), rows(c.kv_width(), 2), rows(c.rotated, 3),
          random_tensor({kLatentTokens, c.shape.qkv_width()}, 4).to(type)};
}

at::Tensor latent_forward(const LatentCase& c, const LatentTensors& t) {
  const at::Tensor out = at::empty({kLatentTokens, c.shape.qkv_width()}, t.q.options());
  latent_heads_forward(t.q, t.kv, t.k_rotated, c.shape, latent_positions(),
                       make_rope_table(11, c.rotated, 100.0, {}), out);
  return out;
}

/// Of q, kv and k_rotated.
std::vector<at::Tensor> latent_backward(const LatentCase& c, const LatentTensors& t) {
  const at::Tensor grad_q = at::empty({kLatentTokens, c.shape.q_width()}, t.kv.options());
  const at::Tensor grad_kv = at::empty({kLatentTokens, c.kv_width()}, t.kv.options());
  const at::Tensor grad_k = at::empty({kLatentTokens, c.rotated}, t.kv.options());
  latent_heads_backward(t.grad_out, c.shape, latent_positions(), make_rope_table(11, c.rotated, 100.0, {}),
                        grad_q, grad_kv, grad_k);
  return {grad_q, grad_kv, grad_k};
}

TEST(LatentHeads, AgreeWithTheFp64Reference) {
  for (const LatentCase& c : kLatentCases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const double tolerance = type == at::kFloat ? 8 * kEps32 : kEps16;
      const LatentTensors t = latent_tensors(c, type);
      const LatentTensors wide{t.q.to(at::kDouble), t.kv.to(at::kDouble), t.k_rotated.to(at::kDouble),
                               t.grad_out.to(at::kDouble)};
      expect_close(latent_forward(c, t), latent_forward(c, wide), tolerance, "out");
      const std::vector<at::Tensor> expected = latent_backward(c, wide);
      const std::vector<at::Tensor> actual = latent_backward(c, t);
      for (size_t i = 0; i < actual.size(); ++i) expect_close(actual[i], expected[i], tolerance, "gradient");
    }
  }
}

TEST(LatentHeads, GradientsOfTheReferenceAreDerivatives) {
  for (const LatentCase& c : kLatentCases) {
    const LatentTensors t = latent_tensors(c, at::kDouble);
    const std::vector<at::Tensor> gradients = latent_backward(c, t);
    const auto loss = [&](const LatentTensors& inputs) {
      return (latent_forward(c, inputs) * t.grad_out).sum().item<double>();
    };
    expect_derivative([&](const at::Tensor& x) { return loss({x, t.kv, t.k_rotated, {}}); }, t.q,
                      gradients[0], "q");
    expect_derivative([&](const at::Tensor& x) { return loss({t.q, x, t.k_rotated, {}}); }, t.kv,
                      gradients[1], "kv");
    expect_derivative([&](const at::Tensor& x) { return loss({t.q, t.kv, x, {}}); }, t.k_rotated,
                      gradients[2], "k_rotated");
  }
}

/// Scores depend on the distance of positions alone.
TEST(LatentHeads, NeighboursFormPairsThatAreRotated) {
  const LatentCase c{{.heads = 1, .kv_heads = 1, .head_dim = 3, .value_dim = 1}, 2};
  const LatentTensors t = latent_tensors(c, at::kFloat);
  const at::Tensor out = latent_forward(c, t);
  const RopeTable table = make_rope_table(11, 2, 100.0, {});
  const float cos = table.cos[1][0].item<float>();
  const float sin = table.sin[1][0].item<float>();
  const float even = t.q[1][1].item<float>();
  const float odd = t.q[1][2].item<float>();
  EXPECT_FLOAT_EQ(out[1][0].item<float>(), t.q[1][0].item<float>());
  EXPECT_FLOAT_EQ(out[1][1].item<float>(), even * cos - odd * sin);
  EXPECT_FLOAT_EQ(out[1][2].item<float>(), odd * cos + even * sin);
}

TEST(LatentHeads, DoNotDependOnThreads) {
  for (const LatentCase& c : kLatentCases) {
    const LatentTensors t = latent_tensors(c, at::kFloat);
    expect_same_for_all_threads([&] {
      std::vector<at::Tensor> results = latent_backward(c, t);
      results.push_back(latent_forward(c, t));
      return results;
    });
  }
}

TEST(LatentHeads, RefuseShapesAndPositionsThatDoNotFit) {
  LatentCase c = kLatentCases[1];
  const LatentTensors t = latent_tensors(c, at::kFloat);
  c.shape.kv_heads = 1;
  EXPECT_CONTAINS(message_of<Error>([&] { latent_forward(c, t); }), "kv_heads = 1");
  c = kLatentCases[1];
  const at::Tensor out = at::empty({kLatentTokens, c.shape.qkv_width()}, t.q.options());
  const RopeTable table = make_rope_table(10, c.rotated, 100.0, {});
  EXPECT_CONTAINS(message_of<Error>([&] {
                    latent_heads_forward(t.q, t.kv, t.k_rotated, c.shape, latent_positions(), table, out);
                  }),
                  "position 10");
}

}  // namespace
}  // namespace stepforge::testing
