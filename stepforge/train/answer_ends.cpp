// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/answer_ends.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/comm/gather.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/text/text_ends.h"

namespace stepforge {

namespace {

/// All labels of the first rows, about a million tokens.
std::unordered_set<int32_t> first_labels(const Trainer& trainer) {
  constexpr int64_t kTokens = int64_t{1} << 20;
  const RowStream& stream = *trainer.data.train;
  const int64_t rows = std::clamp<int64_t>(kTokens / stream.seq_len(), 4, 1024);
  std::unordered_set<int32_t> labels;
  for (int64_t row = 0; row < rows; ++row)
    for (const int32_t label : stream.rows(row, 1).labels) labels.insert(label);
  return labels;
}

std::string names_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> names;
  for (const int32_t id : ids) {
    // A model may name ends beyond its tokenizer.
    const bool is_token = id >= 0 && id < tokenizer.vocab_size();
    names.push_back(is_token ? format("{} ({})", tokenizer.token_text(id), id) : format("{}", id));
  }
  return join(names, ", ");
}

/// The tokens that may end the texts that the run learns: the tokenizer's end of text, and those of the chat template.
std::vector<int32_t> possible_ends(const Trainer& trainer) {
  const Tokenizer& tokenizer = *trainer.tokenizer;
  const std::filesystem::path folder = run_tokenizer_folder(trainer.config);
  std::vector<int32_t> ends = end_tokens(tokenizer, nullptr);
  if (!ChatTemplate::exists(folder)) return ends;
  for (const int32_t id : answer_ends(ChatTemplate::load(folder), tokenizer))
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  return ends;
}

/// The end tokens that the run's file names, or else the tokenizer's.
std::vector<int32_t> named_ends(const Tokenizer& tokenizer, const Json& generation) {
  const Json listed = generation.is_object() ? generation.value("eos_token_id", Json()) : Json();
  if (listed.is_array()) return listed.get<std::vector<int32_t>>();
  return listed.is_null() ? end_tokens(tokenizer, nullptr) : std::vector{listed.get<int32_t>()};
}

/// The first rank's part.
void record(const Trainer& trainer) {
  const Tokenizer& tokenizer = *trainer.tokenizer;
  const std::filesystem::path run = trainer.config.run_dir;
  const Json generation = read_generation_config(run);
  const std::vector<int32_t> known = named_ends(tokenizer, generation);
  const std::vector<int32_t> possible = possible_ends(trainer);
  const auto is_known = [&](int32_t id) { return std::ranges::find(known, id) != known.end(); };
  const bool conversations = trains_on_conversations(trainer.config.data);
  if (std::ranges::all_of(possible, is_known) && !conversations) return;
  const std::unordered_set<int32_t> labels = first_labels(trainer);
  std::vector<int32_t> learned;
  for (const int32_t id : possible)
    if (labels.contains(id) && !is_known(id)) learned.push_back(id);
  if (!learned.empty()) {
    std::vector<int32_t> all = known;
    all.insert(all.end(), learned.begin(), learned.end());
    write_file_atomic(run / kGenerationFileName, with_end_tokens(generation, all).dump(2) + "\n");
    trainer.log.info(
        "learned answers end with {}, which is added to the tokens that end a text ({}): "
        "chat, generate and exports stop there",
        names_of(tokenizer, learned), names_of(tokenizer, known));
    return;
  }
  const auto is_label = [&](int32_t id) { return labels.contains(id); };
  if (!conversations || std::ranges::any_of(possible, is_label) || std::ranges::any_of(known, is_label))
    return;
  trainer.log.warning(
      "no token that ends an answer ({}) is learned in the first rows of the data: "
      "the model will not learn to stop; check that the conversations fit training.seq_len and that the {{% "
      "generation %}} blocks of the chat template hold the end of the answer",
      names_of(tokenizer, possible));
}

}  // namespace

void record_answer_ends(Trainer& trainer) {
  if (trainer.tokenizer == nullptr) return;
  if (trainer.is_main()) {
    record(trainer);
    trainer.end_tokens = end_tokens(*trainer.tokenizer, read_generation_config(trainer.config.run_dir));
  }
  if (trainer.all_ranks == nullptr || !trainer.config.sampling.enabled()) return;
  // Other ranks may not see the run's folder, and all must end a sample at the same token.
  const std::string text = gather_texts(*trainer.all_ranks, Json(trainer.end_tokens).dump()).front();
  trainer.end_tokens = Json::parse(text).get<std::vector<int32_t>>();
}

}  // namespace stepforge
