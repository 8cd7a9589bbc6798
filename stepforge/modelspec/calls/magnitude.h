// SPDX-License-Identifier: Apache-2.0
// magnitude(y[, experts]; m0, m1, ..., W, A, B0, B1, ...) -> y with the columns of each part i multiplied by
// m_i / |W + scale_i B_i A|, the norms of its rows: DoRA (arXiv:2402.09353) behind the product and the adapter of W. The norms count
// as constants (section 4.3 of the paper, and PEFT), so only y and the magnitudes have gradients. In fp32. With the experts of each
// token, the rows of y are sorted by expert, and each weight has those of all experts, one below the other; they may share A.
#pragma once

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/low_rank.h"

namespace stepforge {

/// The least norm of a row: of one of zeros, so that its factor is 1 and not 0 / 0.
inline constexpr double kSmallestNorm = 1e-20;

struct MagnitudeAttributes {
  std::vector<LowRankPart> parts;  ///< one for each magnitude
  bool divided = false;            ///< whether each tensor-parallel rank has some columns of W and A
  int64_t experts = 1;             ///< of this rank, each with its own rows of the weights
};

namespace magnitude_row {

/// The operand that says which expert each row belongs to.
inline constexpr std::size_t kExperts = 1;

/// fp32 elements in which rows of W + B A, and then products of tokens, are computed piece by piece.
inline int64_t scratch(int64_t width, int64_t columns) {
  return std::max({int64_t{1} << 18, columns, 2 * width});
}

inline std::size_t parts(const Call& call) {
  return attributes_of<MagnitudeAttributes>(call).parts.size();
}

/// Elements of all magnitudes.
inline int64_t magnitudes(const Call& call) {
  int64_t elements = 0;
  for (std::size_t i = 0; i < parts(call); ++i) elements += call.weights[i].elements();
  return elements;
}

/// Rows of A of one expert, or of the only one: of all parts.
inline int64_t ranks(const Call& call) {
  const std::size_t count = parts(call);
  int64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += call.weights.at(count + 2 + i).shape.at(1);
  return sum;
}

inline CallWorkspace workspace(const CallView& view) {
  const std::size_t count = parts(view.call);
  const int64_t experts = view.attributes<MagnitudeAttributes>().experts;
  const int64_t width = view.operands[0].width;
  const int64_t columns = view.call.weights.at(count).shape.at(1);
  Workspace norms;
  for (std::size_t i = 0; i < count; ++i) {
    // Of bf16, A and B of a part are copied, of one expert at a time.
    const CallWeight& b = view.call.weights.at(count + 2 + i);
    norms.narrow = std::max(norms.narrow, 2 * (b.elements() / experts + b.shape.at(1) * columns));
  }
  norms.fixed_fp32 = scratch(width, columns) + 2 * experts * width;  // norms and factors
  Workspace backward = norms;
  backward.fixed_fp32 += (experts + 1) * width;  // sums over tokens
  CallWorkspace made = vector_gradient(magnitudes(view.call), backward);
  made.forward = norms;
  return made;
}

inline CallExchanges exchanges(const CallView& view) {
  CallExchanges made = weight_sums(view);
  if (!view.attributes<MagnitudeAttributes>().divided) return made;
  const Exchange norms{.kind = ExchangeKind::sum,
                       .weight_bytes = magnitudes(view.call) * static_cast<int64_t>(sizeof(float)),
                       .constant = true};
  made.forward.push_back(norms);
  made.backward.push_back(norms);
  return made;
}

}  // namespace magnitude_row

inline constexpr CallKind kMagnitude = {
    .name = "magnitude",
    .results =
        [](const CallView& view) {
          const std::size_t parts = magnitude_row::parts(view.call);
          if (view.call.weights.size() != 2 * parts + 2)
            throw Error(
                format("{}: {} weights for {} parts", view.call.name, view.call.weights.size(), parts));
          const int64_t experts = view.attributes<MagnitudeAttributes>().experts;
          if (experts > 1 && view.operands.size() <= magnitude_row::kExperts)
            throw Error(format("{}: {} experts, but not which rows are theirs", view.call.name, experts));
          require_width(view, 0, view.call.weights[parts].shape.at(0) / experts);
          return std::vector<LayerValue>{view.operands[0]};
        },
    .derivative_reads =
        [](const CallView& view) {
          const uint32_t experts = view.operands.size() > magnitude_row::kExperts ? 0b10U : 0U;
          return CallValues{.operands = experts | (view.call.trains() ? 1U : 0U)};
        },
    .gradient_overwrites = 0,
    // The norms depend on no token, and FLOPs are counted per token: they are left out.
    .flops =
        [](const CallView& view) {
          return static_cast<double>(view.operands[0].width * view.operands[0].times);
        },
    .workspace = magnitude_row::workspace,
    .exchanges = magnitude_row::exchanges,
    .text =
        [](const CallView& view) {
          const std::size_t parts = magnitude_row::parts(view.call);
          return parts == 1 ? std::string() : format("{} parts", parts);
        },
};

}  // namespace stepforge
