// SPDX-License-Identifier: Apache-2.0
// How text is sampled from a model: shared by the command line, the samples of a training run and the
// generator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepforge {

struct SamplingParams {
  int64_t max_tokens = 128;
  double temperature = 0.8;  ///< 0 = greedy: the most likely token, the lowest id among equals
  int64_t top_k = 0;         ///< 0 = no limit
  double top_p = 1.0;        ///< the smallest set of most likely tokens with at least this probability
  uint64_t seed = 42;
  std::vector<std::string> stop{};  ///< the text ends before the first of these
};

}  // namespace stepforge
