// SPDX-License-Identifier: Apache-2.0
// How `chat` and `generate` sample: as asked, else as the model's generation_config.json says.
#pragma once

#include <cstdint>
#include <optional>

#include "stepforge/base/json.h"
#include "stepforge/plan/sampling_params.h"

namespace stepforge {

/// What was given on the command line; the rest is that of the model.
struct SamplingChoice {
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
};

/// `usual` with the settings of `generation`, if that is an object with "do_sample": true (its defaults are those of
/// transformers: temperature 1, top_k 50, top_p 1), and then with what was asked.
SamplingParams choose_sampling(SamplingParams usual, const Json& generation, const SamplingChoice& asked);

}  // namespace stepforge
