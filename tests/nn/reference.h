// SPDX-License-Identifier: Apache-2.0
// Reference layers: plain fp64 tensor operations that libtorch's autograd differentiates.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/modelspec/layer_traits.h"
#include "stepforge/nn/context.h"

namespace stepforge::testing {

/// A copy in fp64 that requires grad.
inline at::Tensor leaf64(const at::Tensor& tensor) {
  at::Tensor leaf = tensor.detach().to(at::kDouble).clone();
  leaf.set_requires_grad(true);
  return leaf;
}

inline at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt() * weight;
}

/// x [tokens, heads, head_dim], rotated by each token's position.
inline at::Tensor reference_rope(const at::Tensor& x, const at::Tensor& positions, const RopeTable& table) {
  const at::Tensor index = positions.to(at::kLong);
  const at::Tensor cos = table.cos.index_select(0, index).to(at::kDouble).unsqueeze(1);
  const at::Tensor sin = table.sin.index_select(0, index).to(at::kDouble).unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

/// q, k, v of packed qkv, each [tokens, heads, size of a head].
inline std::vector<at::Tensor> unpack(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t tokens = qkv.size(0);
  const auto parts = split_qkv(qkv, shape);
  return {parts.q.reshape({tokens, -1, shape.head_dim}), parts.k.reshape({tokens, -1, shape.head_dim}),
          parts.v.reshape({tokens, -1, shape.value_size()})};
}

inline at::Tensor pack(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = q.size(0);
  return at::cat({q.reshape({tokens, -1}), k.reshape({tokens, -1}), v.reshape({tokens, -1})}, 1);
}

/// Norm (if the weights are defined) of each head or of all heads, and rope on packed qkv.
inline at::Tensor reference_rotate(const at::Tensor& qkv, const AttentionShape& shape,
                                   const at::Tensor& positions, const RopeTable& table,
                                   const at::Tensor& q_weight, const at::Tensor& k_weight, double eps) {
  auto parts = unpack(qkv, shape);
  const auto normed = [&](const at::Tensor& heads, const at::Tensor& weight) {
    return reference_norm(heads.reshape({qkv.size(0), -1, weight.numel()}), weight, eps).view(heads.sizes());
  };
  if (q_weight.defined()) {
    parts[0] = normed(parts[0], q_weight);
    parts[1] = normed(parts[1], k_weight);
  }
  return pack(reference_rope(parts[0], positions, table), reference_rope(parts[1], positions, table),
              parts[2]);
}

/// x [tokens, heads, size], whose neighbours are rotated as pairs.
inline at::Tensor reference_pair_rope(const at::Tensor& x, const at::Tensor& positions,
                                      const RopeTable& table) {
  const at::Tensor index = positions.to(at::kLong);
  const at::Tensor cos = table.cos.index_select(0, index).to(at::kDouble).unsqueeze(1);
  const at::Tensor sin = table.sin.index_select(0, index).to(at::kDouble).unsqueeze(1);
  const at::Tensor even = x.slice(2, 0, x.size(2), 2);
  const at::Tensor odd = x.slice(2, 1, x.size(2), 2);
  return at::stack({even * cos - odd * sin, odd * cos + even * sin}, -1).reshape(x.sizes());
}

/// Causal attention inside each document, with the whole matrix of scores: a window and a cap as `shape` says. `sinks`:
/// [heads], or undefined.
inline at::Tensor reference_attention(const at::Tensor& qkv, const AttentionShape& shape,
                                      const std::vector<int32_t>& cu_seqlens, const at::Tensor& sinks = {}) {
  const auto parts = unpack(qkv, shape);
  std::vector<at::Tensor> documents;
  for (size_t d = 1; d < cu_seqlens.size(); ++d) {
    const int64_t begin = cu_seqlens[d - 1];
    const int64_t length = cu_seqlens[d] - begin;
    const auto heads_first = [&](const at::Tensor& x) { return x.narrow(0, begin, length).transpose(0, 1); };
    const at::Tensor k = heads_first(parts[1]).repeat_interleave(shape.group(), 0);
    const at::Tensor v = heads_first(parts[2]).repeat_interleave(shape.group(), 0);
    at::Tensor hidden = at::ones({length, length}, at::kBool).triu(1);
    if (shape.window > 0)
      hidden = hidden.logical_or(at::ones({length, length}, at::kBool).tril(-shape.window));
    at::Tensor scores = at::matmul(heads_first(parts[0]), k.transpose(1, 2)) * shape.scale;
    if (shape.cap > 0) scores = (scores / shape.cap).tanh() * shape.cap;
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (sinks.defined()) scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, length, 1})}, -1);
    const at::Tensor probability = scores.softmax(-1).narrow(-1, 0, length);
    documents.push_back(at::matmul(probability, v).transpose(0, 1).reshape({length, shape.out_width()}));
  }
  return at::cat(documents, 0);
}

inline at::Tensor reference_swiglu(const at::Tensor& gate_up, Activation activation = Activation::silu) {
  const auto halves = gate_up.chunk(2, 1);
  const bool silu = activation == Activation::silu;
  return (silu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh")) * halves[1];
}

/// The clamped activation of gpt-oss; columns of gate and up alternate.
inline at::Tensor reference_clamped_swiglu(const at::Tensor& gate_up) {
  const at::Tensor pairs = gate_up.view({gate_up.size(0), -1, 2});
  const at::Tensor gate = pairs.select(2, 0).clamp_max(7.0);
  const at::Tensor up = pairs.select(2, 1).clamp(-7.0, 7.0);
  return (up + 1) * gate * (gate * 1.702).sigmoid();
}

/// Sum of the cross-entropy over valid labels.
inline at::Tensor reference_loss(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor index = labels.to(at::kLong).masked_fill(ignored, 0).unsqueeze(1);
  return -at::log_softmax(logits, 1).gather(1, index).squeeze(1).masked_fill(ignored, 0).sum();
}

/// max |actual - expected| is at most `tolerance` times max |expected|.
inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                        const char* name) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << name;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  const double error = (actual.detach().to(at::kDouble) - wanted).abs().max().item<double>();
  const double largest = wanted.abs().max().item<double>();
  EXPECT_GT(largest, 0.0) << name << ": nothing to compare";
  EXPECT_LE(error, tolerance * largest) << name;
}

}  // namespace stepforge::testing
