// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/dropout_add.h"

#include <array>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_operands(const at::Tensor& x, double p, const TokenCoords& coords) {
  check_shape(x, "dropout x", {x.size(0), x.size(1)});
  if (!(p >= 0.0 && p < 1.0)) throw Error(format("dropout: probability {} is not in [0, 1)", p));
  if (coords.channel < 0) throw Error(format("dropout: channel {} is negative", coords.channel));
  if (p == 0.0) return;
  check_tensor(coords.row_ids, "dropout row_ids", {x.size(0)}, at::kLong);
  check_tensor(coords.positions, "dropout positions", {x.size(0)}, at::kInt);
}

/// philox() of base/random.h for many counters: int64 tensors that broadcast, each a word of 32 bits.
using PhiloxWords = std::array<at::Tensor, 4>;

PhiloxWords philox_words(uint64_t key, PhiloxWords state) {
  constexpr int64_t kWord = 0xFFFFFFFF;
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  // The product of two words may exceed the positive numbers of int64, so it is summed from that of half a word.
  const auto high_and_low = [](const at::Tensor& word, int64_t factor) {
    const at::Tensor upper = word.bitwise_right_shift(16) * factor;
    const at::Tensor sum =
        word.bitwise_and(0xFFFF) * factor + upper.bitwise_and(0xFFFF).bitwise_left_shift(16);
    return std::pair(upper.bitwise_right_shift(16) + sum.bitwise_right_shift(32), sum.bitwise_and(kWord));
  };
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = high_and_low(state[0], 0xD2511F53);
    const auto [high1, low1] = high_and_low(state[2], 0xCD9E8D57);
    state = {high1.bitwise_xor(state[1]).bitwise_xor(int64_t{key0}), low1,
             high0.bitwise_xor(state[3]).bitwise_xor(int64_t{key1}), low0};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return state;
}

/// The factors 0 or 1 / (1 - p), fp32 [N, channels].
at::Tensor dropout_factors(int64_t channels, double p, DropoutKey key, const TokenCoords& coords) {
  const at::Tensor rows = coords.row_ids.unsqueeze(1);
  const int64_t first = coords.channel / 4;
  const int64_t skipped = coords.channel % 4;  // of the first four
  const at::Tensor quads =
      at::arange(first, first + (skipped + channels + 3) / 4, rows.options()).unsqueeze(0);
  const PhiloxWords words =
      philox_words(key.key, {quads, coords.positions.to(at::kLong).unsqueeze(1), rows.bitwise_and(0xFFFFFFFF),
                             rows.bitwise_right_shift(32).bitwise_and(0xFFFFFFFF)});
  const at::Tensor word = at::stack(words, 2).flatten(1).slice(1, skipped, skipped + channels);
  return word.ge(static_cast<int64_t>(p * 0x1.0p32)).to(at::kFloat) * (1.0 / (1.0 - p));
}

}  // namespace

DropoutKey dropout_key_of_step(uint64_t seed, uint64_t step) {
  return {mix_bits(stream_key(seed, "dropout") ^ mix_bits(step))};
}

DropoutKey dropout_key_of_site(DropoutKey step_key, uint64_t site) {
  return {mix_bits(step_key.key ^ mix_bits(site))};
}

void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out) {
  check_operands(x, p, coords);
  check_tensor(residual, "dropout_add residual", x.sizes(), x.scalar_type());
  check_tensor(out, "dropout_add out", x.sizes(), x.scalar_type());
  pick(&KernelTable::dropout_add_forward, x)(x, residual, p, key, coords, out);
}

void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x) {
  check_operands(grad_out, p, coords);
  check_tensor(grad_x, "dropout_add grad_x", grad_out.sizes(), grad_out.scalar_type());
  pick(&KernelTable::dropout_add_backward, grad_out)(grad_out, p, key, coords, grad_x);
}

void reference::dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                                    const TokenCoords& coords, const at::Tensor& out) {
  at::Tensor dropped = x.to(compute_type(x));
  if (p > 0.0) dropped = dropped * dropout_factors(x.size(1), p, key, coords);
  out.copy_(residual.to(dropped.scalar_type()) + dropped);
}

void reference::dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key,
                                     const TokenCoords& coords, const at::Tensor& grad_x) {
  at::Tensor grad = grad_out.to(compute_type(grad_out));
  if (p > 0.0) grad = grad * dropout_factors(grad_out.size(1), p, key, coords);
  grad_x.copy_(grad);
}

}  // namespace stepforge
