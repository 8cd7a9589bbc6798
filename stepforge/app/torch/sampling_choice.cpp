// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/sampling_choice.h"

namespace stepforge {

namespace {

/// A null counts as absent, as in transformers.
double number_or(const Json& generation, const char* key, double usual) {
  const auto found = generation.find(key);
  return found != generation.end() && found->is_number() ? found->get<double>() : usual;
}

}  // namespace

SamplingParams choose_sampling(SamplingParams usual, const Json& generation, const SamplingChoice& asked) {
  const bool samples =
      generation.is_object() && generation.contains("do_sample") && generation["do_sample"] == true;
  if (samples) {
    usual.temperature = number_or(generation, "temperature", 1.0);
    usual.top_k = static_cast<int64_t>(number_or(generation, "top_k", 50));
    usual.top_p = number_or(generation, "top_p", 1.0);
  }
  usual.temperature = asked.temperature.value_or(usual.temperature);
  usual.top_k = asked.top_k.value_or(usual.top_k);
  usual.top_p = asked.top_p.value_or(usual.top_p);
  return usual;
}

}  // namespace stepforge
