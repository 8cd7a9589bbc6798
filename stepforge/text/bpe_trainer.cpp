// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/merge_table.h"
#include "stepforge/text/pipeline_tokenizer.h"

namespace stepforge {

namespace {

constexpr int32_t kMaxVocabSize = 1'000'000;
constexpr int32_t kBytes = 256;

/// The tokens known so far, with one id for each spelling.
class GrowingVocabulary {
 public:
  explicit GrowingVocabulary(const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) id_of(token);
    std::vector<std::pair<char32_t, uint8_t>> alphabet;
    for (int byte = 0; byte < kBytes; ++byte)
      alphabet.emplace_back(byte_alphabet_code_point(static_cast<uint8_t>(byte)), static_cast<uint8_t>(byte));
    std::sort(alphabet.begin(), alphabet.end());
    for (const auto& [code_point, byte] : alphabet)
      byte_ids_[byte] = id_of(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  }

  /// The id of this spelling, a new one if there is none.
  int32_t id_of(std::string piece) {
    const auto [found, is_new] = ids_.try_emplace(std::move(piece), static_cast<int32_t>(pieces_.size()));
    if (is_new) pieces_.push_back(found->first);
    return found->second;
  }
  int32_t merged(TokenPair pair) {
    return id_of(pieces_[static_cast<size_t>(left_token(pair))] +
                 pieces_[static_cast<size_t>(right_token(pair))]);
  }

  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }
  const std::array<int32_t, kBytes>& byte_ids() const { return byte_ids_; }
  std::vector<std::string> take_pieces() { return std::move(pieces_); }

 private:
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, int32_t> ids_;
  std::array<int32_t, kBytes> byte_ids_{};
};

void check_options(const BpeTrainerOptions& options) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) throw UsageError("a special token must not be empty");
    if (!seen.insert(token).second)
      throw UsageError(format("the special token \"{}\" is named twice", token));
  }
  const auto special = std::max<int32_t>(1, static_cast<int32_t>(options.special_tokens.size()));
  if (options.vocab_size < kBytes + special || options.vocab_size > kMaxVocabSize) {
    const auto named = special > 1                      ? format("{} special tokens", special)
                       : options.special_tokens.empty() ? std::string(kEndOfText)
                                                        : options.special_tokens.front();
    throw UsageError(
        format("vocab_size {} is out of range; a byte-level BPE has {} (bytes and {}) to {} tokens",
               options.vocab_size, kBytes + special, named, kMaxVocabSize));
  }
}

/// Without special tokens there is "<|endoftext|>".
void check_role(std::string_view role, const std::string& token, const std::vector<std::string>& special) {
  if (special.empty() ? token == kEndOfText
                      : std::find(special.begin(), special.end(), token) != special.end())
    return;
  throw UsageError(
      format("{} is \"{}\", which is not one of the special tokens ({}); name one of them, or add it", role,
             token, special.empty() ? std::string(kEndOfText) : join(special, ", ")));
}

/// A pair that was merged twice counts where it was merged last.
std::vector<TokenPair> last_of_each(const std::vector<TokenPair>& merges) {
  std::unordered_set<TokenPair> seen;
  std::vector<TokenPair> kept;
  for (auto pair = merges.rbegin(); pair != merges.rend(); ++pair) {
    if (seen.insert(*pair).second) kept.push_back(*pair);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

/// Gives the bytes their own values as ids. Their places are the first 256 in any case.
void number_bytes_by_value(ByteLevelVocabulary& vocabulary, const std::array<int32_t, kBytes>& byte_ids) {
  std::vector<int32_t> value_of(kBytes);
  for (int32_t byte = 0; byte < kBytes; ++byte)
    value_of[static_cast<size_t>(byte_ids[static_cast<size_t>(byte)])] = byte;
  const auto renumbered = [&](int32_t id) { return id < kBytes ? value_of[static_cast<size_t>(id)] : id; };
  for (TokenPair& pair : vocabulary.merges)
    pair = token_pair(renumbered(left_token(pair)), renumbered(right_token(pair)));
  for (int byte = 0; byte < kBytes; ++byte)
    vocabulary.pieces[static_cast<size_t>(byte)] = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
}

std::string roles_config(const TokenRoles& roles) {
  Json config = Json::object();
  if (!roles.bos.empty()) config["bos_token"] = roles.bos;
  config["clean_up_tokenization_spaces"] = false;
  config["eos_token"] = roles.eos;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

}  // namespace

BpeTraining::BpeTraining(const BpeRecipe& recipe)
    : recipe_(recipe),
      split_{.pattern = named_pattern(recipe.pattern), .digits = parse_digit_split(recipe.digits)},
      roles_{.eos = recipe.eos_token.empty() ? std::string(kEndOfText) : recipe.eos_token,
             .bos = recipe.bos_token},
      options_{.vocab_size = recipe.vocab_size,
               .min_pair_count = recipe.min_frequency,
               .special_tokens = recipe.special_tokens} {
  check_options(options_);
  check_role("eos_token", roles_.eos, recipe.special_tokens);
  if (!roles_.bos.empty()) check_role("bos_token", roles_.bos, recipe.special_tokens);
}

WordCounterOptions BpeTraining::counting() const {
  return {.split = split_, .special_tokens = recipe_.special_tokens};
}

TrainedBpe BpeTraining::train(const WordCounts& counts, const std::function<void()>& progress) const {
  BpeTrainerOptions options = options_;
  if (progress) options.progress = progress;
  return train_bpe(counts, options);
}

std::unique_ptr<Tokenizer> BpeTraining::tokenizer(const TrainedBpe& trained) const {
  return make_bpe_tokenizer(trained, split_, roles_);
}

TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainerOptions& options) {
  check_options(options);
  GrowingVocabulary vocabulary(options.special_tokens);
  const int32_t added_last = options.special_tokens.empty() ? 1 : 0;
  MergeTable table(counts, vocabulary.byte_ids());
  std::vector<TokenPair> merges;
  while (vocabulary.size() + added_last < options.vocab_size) {
    options.progress();
    const MergeTable::Best best = table.pop_best();
    if (best.count < std::max<int64_t>(1, options.min_pair_count)) break;
    table.merge(best.pair, vocabulary.merged(best.pair));
    merges.push_back(best.pair);
  }
  TrainedBpe trained{.vocabulary = {.pieces = vocabulary.take_pieces(),
                                    .merges = last_of_each(merges),
                                    .special_tokens = options.special_tokens}};
  if (options.special_tokens.empty()) {
    number_bytes_by_value(trained.vocabulary, vocabulary.byte_ids());
    trained.vocabulary.special_tokens = {std::string(kEndOfText)};
  }
  trained.vocab_size = static_cast<int32_t>(trained.vocabulary.pieces.size()) + added_last;
  return trained;
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const TrainedBpe& trained, const WordSplit& split,
                                              const TokenRoles& roles) {
  TokenizerFiles files;
  files["tokenizer.json"] = bpe_tokenizer_json(trained.vocabulary, split, roles.bos);
  // Without a config, "<|endoftext|>" ends a text and none begins it.
  if (roles.eos != kEndOfText || !roles.bos.empty()) files["tokenizer_config.json"] = roles_config(roles);
  return std::make_unique<PipelineTokenizer>(std::move(files), "trained tokenizer");
}

}  // namespace stepforge
