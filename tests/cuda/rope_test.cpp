// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/rope.h"

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kPositions = 50;

enum class Norms { none, of_heads, of_all_heads };

struct RopeCase {
  AttentionShape shape;
  at::Tensor qkv = {};
  at::Tensor grad_out = {};
  at::Tensor positions = {};
  RopeTable table = {};
  QkNorm norm = {};

  int64_t tokens() const { return qkv.size(0); }
  at::ScalarType type() const { return qkv.scalar_type(); }
};

RopeCase rope_case(int64_t tokens, int64_t head_dim, at::ScalarType type, Norms norms,
                   at::ScalarType weights) {
  RopeCase c{.shape = {.heads = 4, .kv_heads = 2, .head_dim = head_dim}};
  c.qkv = random_tensor({tokens, c.shape.qkv_width()}, 1).to(type);
  c.grad_out = random_tensor({tokens, c.shape.qkv_width()}, 2).to(type);
  c.positions = at::arange(tokens, at::kInt).mul_(7).remainder_(kPositions);
  c.table = make_rope_table(kPositions, head_dim, 10000, {});
  if (norms == Norms::none) return c;
  const bool all = norms == Norms::of_all_heads;
  c.norm = {.q_weight = random_tensor({all ? 4 * head_dim : head_dim}, 20).to(weights),
            .k_weight = random_tensor({all ? 2 * head_dim : head_dim}, 21).to(weights),
            .eps = 1e-5,
            .offset = all ? 1.0 : 0.0};
  return c;
}

/// out and the gradient of qkv; with a norm also rstd and the gradients of the weights. `in_place`: out is qkv.
std::vector<at::Tensor> rope_on_device(const RopeCase& c, int64_t shift, bool in_place = false) {
  const bool normed = c.norm.present();
  const at::Tensor none = at::empty({0}, at::kFloat);
  const Guarded qkv(c.qkv, shift);
  const Guarded copy(c.qkv, shift);
  const Guarded new_out(c.qkv.sizes(), c.type(), shift);
  const Guarded& out = in_place ? copy : new_out;
  const Guarded grad(c.grad_out, shift);
  const Guarded positions(c.positions);
  const Guarded cos(c.table.cos);
  const Guarded sin(c.table.sin);
  const Guarded q_weight(normed ? c.norm.q_weight : none, shift);
  const Guarded k_weight(normed ? c.norm.k_weight : none, shift);
  const Guarded grad_q({q_weight.tensor().numel()}, at::kFloat);
  const Guarded grad_k({k_weight.tensor().numel()}, at::kFloat);
  cuda::QkRotation rotation{.type = dtype_of(c.qkv),
                            .tokens = c.tokens(),
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = c.shape.head_dim,
                            .positions = positions.data<int32_t>(),
                            .cos = cos.data<float>(),
                            .sin = sin.data<float>()};
  if (normed) {
    rotation.q_weight = q_weight.data();
    rotation.k_weight = k_weight.data();
    rotation.weight_type = dtype_of(c.norm.q_weight);
    rotation.q_span = c.norm.q_span(c.shape);
    rotation.k_span = c.norm.k_span(c.shape);
    rotation.eps = c.norm.eps;
    rotation.offset = c.norm.offset;
  }
  const Guarded rstd({c.tokens(), normed ? c.norm.count(c.shape) : 0}, at::kFloat);
  const Guarded workspace({normed ? cuda::rope_workspace_of(rotation) : 0}, at::kFloat);
  cuda::qk_norm_rope_forward(rotation, in_place ? copy.data() : qkv.data(), out.data(), rstd.data<float>(),
                             nullptr);
  cuda::qk_norm_rope_backward(rotation, grad.data(), qkv.data(), rstd.data<float>(), grad_q.data<float>(),
                              grad_k.data<float>(), workspace.data<float>(), nullptr);
  if (!normed) return {out.copy(), grad.copy()};
  return {out.copy(), grad.copy(), rstd.copy(), grad_q.copy(), grad_k.copy()};
}

std::vector<at::Tensor> rope_reference(const RopeCase& c) {
  const bool normed = c.norm.present();
  QkNorm norm = c.norm;
  norm.q_weight = wide(norm.q_weight);
  norm.k_weight = wide(norm.k_weight);
  const at::Tensor qkv = wide(c.qkv);
  std::vector<at::Tensor> r = {at::empty_like(qkv), wide(c.grad_out)};
  if (normed) {
    r.push_back(at::empty({c.tokens(), norm.count(c.shape)}, at::kDouble));
    r.push_back(at::empty_like(norm.q_weight));
    r.push_back(at::empty_like(norm.k_weight));
  }
  r.resize(5);
  reference::qk_norm_rope_forward(qkv, c.shape, c.positions, c.table, norm, r[0], r[2]);
  reference::qk_norm_rope_backward(r[1], qkv, c.shape, c.positions, c.table, norm, r[2], r[3], r[4]);
  r.resize(normed ? 5 : 2);
  return r;
}

/// As in the test of the norm; a rotation adds two products, whose roundings are relative to the larger of a pair.
void expect_rope(const RopeCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return rope_on_device(c, shift); });
  const auto expected = rope_reference(c);
  const double tolerance = tolerance_of(c.type(), 32);
  expect_close(actual[0], expected[0], tolerance, "out");
  expect_close(actual[1], expected[1], tolerance, "grad_qkv");
  if (!c.norm.present()) return;
  expect_close(actual[2], expected[2], 16 * kEps32, "rstd");
  expect_close(actual[3], expected[3], 64 * kEps32, "grad_q_weight");
  expect_close(actual[4], expected[4], 64 * kEps32, "grad_k_weight");
}

TEST(CudaQkNormRope, AgreesWithTheFp64Reference) {
  for (const int64_t head_dim : {2, 6, 20, 64, 128, 256}) {
    for (const int64_t tokens : {1, 5, 33}) {
      for (const Norms norms : {Norms::none, Norms::of_heads, Norms::of_all_heads}) {
        expect_rope(rope_case(tokens, head_dim, at::kFloat, norms, at::kFloat));
        expect_rope(rope_case(tokens, head_dim, at::kBFloat16, norms, at::kBFloat16));
      }
    }
  }
}

TEST(CudaQkNormRope, WeightsMayBeFp32) {
  expect_rope(rope_case(5, 128, at::kBFloat16, Norms::of_heads, at::kFloat));
}

TEST(CudaQkNormRope, SumsThatDoNotFitSharedMemoryAgreeToo) {
  expect_rope(rope_case(19, 200, at::kFloat, Norms::of_all_heads, at::kFloat));
}

TEST(CudaQkNormRope, MemoryNeedNotBeAligned) {
  expect_rope(rope_case(5, 128, at::kFloat, Norms::of_heads, at::kFloat), /*shift=*/1);
  expect_rope(rope_case(5, 128, at::kBFloat16, Norms::of_heads, at::kBFloat16), /*shift=*/1);
}

TEST(CudaQkNormRope, MoreTokensThanBlocksAreAllComputed) {
  for (const Norms norms : {Norms::none, Norms::of_heads})
    expect_rope(rope_case(cuda::kMaxBlocks + 3, 8, at::kFloat, norms, at::kFloat));
}

TEST(CudaQkNormRope, NoTokensGiveWeightsNoGradient) {
  const RopeCase c = rope_case(0, 20, at::kFloat, Norms::of_heads, at::kFloat);
  const auto r = rope_on_device(c, 0);
  EXPECT_TRUE(r[3].eq(0).all().item<bool>());
  EXPECT_TRUE(r[4].eq(0).all().item<bool>());
}

TEST(CudaQkNormRope, ForwardMayWriteOverItsInput) {
  const RopeCase c = rope_case(9, 20, at::kBFloat16, Norms::of_all_heads, at::kFloat);
  EXPECT_TRUE(same_bits(rope_on_device(c, 0, /*in_place=*/true)[0], rope_on_device(c, 0)[0]));
}

TEST(CudaQkNormRope, ValuesAreCopied) {
  const RopeCase c = rope_case(9, 20, at::kFloat, Norms::none, at::kFloat);
  const auto r = rope_on_device(c, 0);
  EXPECT_TRUE(r[0].slice(1, 6 * 20).equal(c.qkv.slice(1, 6 * 20)));
  EXPECT_TRUE(r[1].slice(1, 6 * 20).equal(c.grad_out.slice(1, 6 * 20)));
}

}  // namespace
}  // namespace stepforge::testing
