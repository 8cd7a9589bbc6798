// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/answer_ends.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/data/conversation.h"
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

bool trains_on_conversations(const Config& config) {
  return std::ranges::any_of(leaf_sources("data.sources", config.data.sources), [](const auto& entry) {
    return find_chat_layout(choice_name(entry.source->format)).has_value();
  });
}

std::string names_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> names;
  for (const int32_t id : ids) names.push_back(format("{} ({})", tokenizer.token_text(id), id));
  return join(names, ", ");
}

}  // namespace

void record_answer_ends(Trainer& trainer) {
  const std::filesystem::path folder = run_tokenizer_folder(trainer.config);
  if (!trainer.is_main() || trainer.tokenizer == nullptr || !ChatTemplate::exists(folder)) return;
  const Tokenizer& tokenizer = *trainer.tokenizer;
  const std::filesystem::path run = trainer.config.run_dir;
  const Json generation = read_generation_config(run);
  const std::vector<int32_t> known = end_tokens(tokenizer, generation);
  const std::vector<int32_t> ends = answer_ends(ChatTemplate::load(folder), tokenizer);
  const auto is_known = [&](int32_t id) { return std::ranges::find(known, id) != known.end(); };
  if (std::ranges::all_of(ends, is_known) && !trains_on_conversations(trainer.config)) return;
  const std::unordered_set<int32_t> labels = first_labels(trainer);
  const auto is_learned = [&](int32_t id) { return labels.contains(id); };
  std::vector<int32_t> learned;
  for (const int32_t id : ends)
    if (is_learned(id) && !is_known(id)) learned.push_back(id);
  if (!learned.empty()) {
    std::vector<int32_t> all = known;
    all.insert(all.end(), learned.begin(), learned.end());
    write_file_atomic(run / kGenerationFileName, with_end_tokens(generation, all).dump(2) + "\n");
    trainer.log.info(
        "answers end with {}, which joins the tokens that end a text ({}): chat and exports stop there",
        names_of(tokenizer, learned), names_of(tokenizer, known));
  } else if (trains_on_conversations(trainer.config) && std::ranges::none_of(ends, is_learned) &&
             std::ranges::none_of(known, is_learned)) {
    trainer.log.warning(
        "no token that ends an answer ({}) is learned in the first rows of the data: the model will not "
        "learn to "
        "stop; check that the conversations fit training.seq_len and that the {{% generation %}} blocks of "
        "the chat "
        "template hold the end of the answer",
        names_of(tokenizer, ends.empty() ? known : ends));
  }
}

}  // namespace stepforge
