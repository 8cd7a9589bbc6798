// SPDX-License-Identifier: Apache-2.0
// How text is sampled from a model. Used by the command line, the samples of a training run and the
// generator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepforge {

struct SamplingParams {
  int64_t max_tokens = 128;
  double temperature = 0.8;  ///< 0 = greedy: the most likely token, the lowest id among equals
  int64_t top_k = 0;         ///< sample from the k most likely tokens; 0 = all
  double top_p = 1.0;  ///< sample from the most likely tokens that together reach this probability; 1 = all
  uint64_t seed = 42;
  int64_t known_tokens = 0;         ///< ids from here on have no token and are not sampled; 0 = all have one
  std::vector<std::string> stop{};  ///< the text ends before the first of these
};

}  // namespace stepforge
