// SPDX-License-Identifier: Apache-2.0
// A model whose training is exact in fp32: then every way to run a step must give the same bits, however its
// sums are ordered.
//
// Weights are multiples of 1/4 in [-1, 1], activations integers in [-4, 4], gradients of activations such
// integers times 1/kExactLabels, a power of two and the number of valid labels in each step. The forward and
// the backward of each layer bring their results back to these sets, token by token, so every sum has few
// enough bits for the 24 of fp32: products with at most 257 terms of 16 quarters, and weight gradients over
// 168 tokens of 16 each. After each update the masters are snapped to the set of weights.
#pragma once

#include <cstdint>

#include "tests/train/fixture.h"

namespace stepforge::testing {

inline constexpr int64_t kExactRows = 24;  ///< of a step: divisible by 1, 2, 3, 4 and 8 ranks
inline constexpr int64_t kExactSeqLen = 7;
inline constexpr int64_t kExactLabels = 128;  ///< valid in each step; three rows in a row have none

/// Two models of odd sizes (widths 37 and 53, vocabulary 257).
enum class ExactModel {
  plain,   ///< every block has a unit of its own
  shared,  ///< tied embeddings, a frozen unit beside a trained one in each layer, a parameter that nothing
           ///< uses
};

/// Makes the trainer of `run` train an exact model: its specification, forward code and labels, and the snap
/// after each update. Before the run is built.
void use_exact_model(TestRun& run, ExactModel model);

/// Ten steps of an exact model.
Words exact_job(const std::filesystem::path& run_dir);

}  // namespace stepforge::testing
