// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/nn/kv_cache.h"

namespace stepforge {

namespace {

/// One row holding `tokens` at positions from `first_position` on.
Batch continuation(std::span<const int32_t> tokens, int64_t first_position) {
  Batch batch;
  batch.rows = 1;
  batch.seq_len = static_cast<int64_t>(tokens.size());
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), static_cast<int32_t>(first_position));
  batch.labels.assign(tokens.size(), kIgnoredLabel);
  batch.cu_seqlens = {0, static_cast<int32_t>(tokens.size())};
  batch.max_document_length = static_cast<int32_t>(tokens.size());
  batch.row_ids = {0};
  return batch;
}

class GenerationServices : public StepServices {
 public:
  GenerationServices(Batch batch, at::Device device, int64_t vocab_size)
      : batch_(std::move(batch)), device_(device), vocab_size_(vocab_size) {}
  BatchTensors load_batch(int micro_batch, int ahead) override {
    return BatchTensors(std::move(batch_), device_);
  }
  /// Waits for the device: the host chooses the next token.
  void logits_ready(const at::Tensor& tensor) override {
    const at::Tensor on_host = tensor.cpu();
    const float* data = on_host.const_data_ptr<float>();
    logits.assign(data, data + on_host.numel());
  }
  void share_logits(Communicator& stages) override {
    logits.resize(static_cast<size_t>(vocab_size_), 0.0F);  // the sum with those of the last stage
    stages.all_reduce(std::as_writable_bytes(std::span(logits)), DType::f32);
  }
  std::vector<float> logits;

 private:
  Batch batch_;
  at::Device device_;
  int64_t vocab_size_;
};

struct Candidate {
  int32_t id;
  double weight;
};

/// Ids by falling probability, the lower id first among equals; weights are relative to the most likely one.
std::vector<Candidate> ranked(std::span<const float> logits, double temperature) {
  std::vector<Candidate> candidates;
  const float highest = *std::max_element(logits.begin(), logits.end());
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = std::exp((static_cast<double>(logits[id]) - highest) / temperature);
    candidates.push_back({static_cast<int32_t>(id), weight});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& left, const Candidate& right) { return left.weight > right.weight; });
  return candidates;
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  double total = 0.0;
  for (const auto& candidate : candidates) total += candidate.weight;
  double sum = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sum += candidates[i].weight;
    if (sum >= top_p * total) {
      candidates.resize(i + 1);
      return;
    }
  }
}

/// The length of the longest suffix of `text` that is a prefix of a stop string.
size_t possible_stop_start(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const auto& stop : stops) {
    for (size_t length = std::min(stop.size(), text.size()); length > longest; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  return longest;
}

}  // namespace

void check_prompt(int64_t prompt_tokens, int64_t capacity) {
  if (prompt_tokens < capacity) return;
  throw UsageError(
      format("the prompt has {} tokens; the model's context holds {}, one of them for the answer",
             prompt_tokens, capacity));
}

int32_t sample_token(std::span<const float> logits, const SamplingParams& options, int64_t position) {
  if (options.temperature <= 0.0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<Candidate> candidates = ranked(logits, options.temperature);
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < candidates.size()) {
    candidates.resize(static_cast<size_t>(options.top_k));
  }
  if (options.top_p < 1.0) keep_top_p(candidates, options.top_p);
  double total = 0.0;
  for (const auto& candidate : candidates) total += candidate.weight;
  const auto bits = philox(stream_key(options.seed, "sampling"), static_cast<uint64_t>(position));
  double left = uniform_double(bits[0], bits[1]) * total;
  for (const auto& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0.0) return candidate.id;
  }
  return candidates.back().id;
}

Generator::Generator(const ModelSpec& spec, StepProgram program, Model& model, ModelStore& store,
                     DType compute, int64_t capacity)
    : spec_(spec),
      program_(std::move(program)),
      executor_(program_, model, store),
      compute_(compute),
      capacity_(capacity) {}

KvCache Generator::make_cache() const {
  const at::TensorOptions options = at::device(executor_.store().device()).dtype(scalar_type(compute_));
  return {spec_.layers, 1, capacity_, spec_.kv_heads, spec_.head_dim, spec_.value_dim, options};
}

std::vector<float> Generator::run(std::span<const int32_t> tokens, KvCache& cache) {
  GenerationServices services(continuation(tokens, cache.length()), executor_.store().device(),
                              spec_.vocab_size);
  StepInputs inputs;
  inputs.name = "generation";
  inputs.cache = &cache;
  executor_.run(inputs, services);
  executor_.store().groups().rethrow_failure();
  cache.advance(static_cast<int64_t>(tokens.size()));
  return std::move(services.logits);
}

std::vector<float> Generator::logits_after(std::span<const int32_t> tokens) {
  KvCache cache = make_cache();
  return run(tokens, cache);
}

std::vector<int32_t> Generator::generate(std::span<const int32_t> prompt, const SamplingParams& options,
                                         std::span<const int32_t> ends,
                                         const std::function<bool(int32_t)>& emit) {
  if (prompt.empty())
    throw UsageError("the prompt is empty; generation needs at least one token to continue");
  check_prompt(std::ssize(prompt), capacity_);
  KvCache cache = make_cache();
  std::vector<float> logits = run(prompt, cache);
  std::vector<int32_t> generated;
  while (static_cast<int64_t>(generated.size()) < options.max_tokens) {
    const size_t known = options.known_tokens > 0 ? static_cast<size_t>(options.known_tokens) : logits.size();
    const int32_t token =
        sample_token(std::span(logits).first(std::min(known, logits.size())), options, cache.length());
    if (std::ranges::find(ends, token) != ends.end()) break;
    generated.push_back(token);
    if (emit && !emit(token)) break;
    if (cache.length() >= capacity_) break;
    logits = run(std::span(&token, 1), cache);
  }
  return generated;
}

std::string generate_text(Generator& generator, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          std::span<const int32_t> ends, const SamplingParams& options,
                          const std::function<void(std::string_view)>& print) {
  // A vocabulary may be larger than its tokenizer, to be divisible.
  SamplingParams of_tokens = options;
  of_tokens.known_tokens = tokenizer.vocab_size();
  StreamDecoder decoder(tokenizer);
  std::string text;
  size_t printed = 0;
  bool stopped = false;
  const auto show_until = [&](size_t end) {
    if (print && end > printed) print(std::string_view(text).substr(printed, end - printed));
    printed = std::max(printed, end);
  };
  generator.generate(prompt, of_tokens, ends, [&](int32_t id) {
    text += decoder.push(id);
    for (const auto& stop : options.stop) {
      const size_t found = text.find(stop);
      if (stop.empty() || found == std::string::npos) continue;
      text.resize(found);
      stopped = true;
    }
    show_until(stopped ? text.size() : text.size() - possible_stop_start(text, options.stop));
    return !stopped;
  });
  if (!stopped) text += decoder.finish();
  show_until(text.size());
  return text;
}

}  // namespace stepforge
