// SPDX-License-Identifier: Apache-2.0
// Text from a model: one token at a time through a forward-only program with a KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/plan/sampling_params.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/train/executor.h"

namespace stepforge {

/// Throws UsageError if the prompt leaves no room for another token in a context of `capacity` tokens.
void check_prompt(int64_t prompt_tokens, int64_t capacity);

/// Samples a token id from fp32 logits [vocab]. A pure function of its arguments.
int32_t sample_token(std::span<const float> logits, const SamplingParams& options, int64_t position);

class Generator {
 public:
  /// Holds up to `capacity` tokens, including the prompt; `program` must be planned for that number, and the
  /// model's rope tables must cover it. Model and specification must outlive the generator. With several
  /// ranks, all make the same calls and get the same tokens.
  Generator(const ModelSpec& spec, StepProgram program, Model& model, ModelStore& store, DType compute,
            int64_t capacity);

  /// Continues `prompt` (at least one token). `emit` is called with each new token's id and returns false to
  /// stop. Returns all new ids. Stops at one of `ends` (not returned), options.max_tokens or when the
  /// cache is full.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const SamplingParams& options,
                                std::span<const int32_t> ends, const std::function<bool(int32_t)>& emit = {});

  /// The logits [vocab] after `tokens`, computed in one pass with an empty cache. Tests compare generate()
  /// with them.
  std::vector<float> logits_after(std::span<const int32_t> tokens);

 private:
  std::vector<float> run(std::span<const int32_t> tokens, KvCache& cache);
  KvCache make_cache() const;

  const ModelSpec& spec_;
  StepProgram program_;
  Executor executor_;
  DType compute_;
  int64_t capacity_;
};

/// Continues `prompt`, the ids of prompt_tokens(), up to one of `ends`, those of end_tokens() (text_ends.h); decodes token by
/// token and ends before a stop string. `print` gets each piece of text as soon as it cannot be the beginning of a stop
/// string. Returns the generated text.
std::string generate_text(Generator& generator, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          std::span<const int32_t> ends, const SamplingParams& options,
                          const std::function<void(std::string_view)>& print = {});

}  // namespace stepforge
