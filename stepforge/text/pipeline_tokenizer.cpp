// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/pipeline_tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/tokenizer_files.h"
#include "stepforge/text/word_cache.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::vector<const AddedToken*> tokens_with(const TokenizerDefinition& definition, bool normalized) {
  std::vector<const AddedToken*> tokens;
  // Among tokens with the same spelling after normalization, a special one counts.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : definition.added_tokens) {
      if (token.normalized == normalized && token.special == special) tokens.push_back(&token);
    }
  }
  return tokens;
}

}  // namespace

/// Encodes a text in steps: added tokens, normalization, added tokens again, words, model.
class PipelineTokenizer::WordEncoder final : public Encoder {
 public:
  explicit WordEncoder(const PipelineTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void append(std::string_view text, std::vector<int32_t>& target) override {
    require_utf8(text, "text to tokenize");
    IdBuffer ids(target);
    const TokenizerDefinition& definition = tokenizer_.definition_;
    cut_at_tokens(text, tokenizer_.first_finder_, ids, [&](std::string_view section) {
      size_t head = section.data() == text.data() ? utf8_sequence_length(text) : 0;
      const std::string_view normalized = definition.normalizer.apply(section, normalized_, head, scratch_);
      cut_at_tokens(normalized, tokenizer_.second_finder_, ids, [&](std::string_view part) {
        const auto begin = static_cast<size_t>(part.data() - normalized.data());
        definition.pre_tokenizer.split(
            part, head > begin ? head - begin : 0, scratch_,
            [&](std::string_view rest, std::span<const size_t> ends) { words(rest, ends, ids); });
      });
    });
    ids.flush();
  }

  template <typename Section>
  static void cut_at_tokens(std::string_view text, const AddedTokenFinder& finder, IdBuffer& ids,
                            const Section& section) {
    size_t begin = 0;
    AddedTokenFinder::Search search(finder, text);
    while (const auto found = search.next()) {
      if (found->begin > begin) section(text.substr(begin, found->begin - begin));
      ids.append(std::array{found->token->id}, 1);
      begin = found->end;
    }
    if (begin < text.size()) section(text.substr(begin));
  }

  /// The words follow each other from the start of `text`.
  void words(std::string_view text, std::span<const size_t> ends, IdBuffer& ids) {
    constexpr size_t kAtOnce = 16;
    std::array<std::string_view, kAtOnce> words;
    std::array<WordCache::Place, kAtOnce> places = {};
    size_t begin = 0;
    while (!ends.empty()) {
      const size_t count = std::min(kAtOnce, ends.size());
      for (size_t i = 0; i < count; begin = ends[i++]) {
        words[i] = text.substr(begin, ends[i] - begin);
        places[i] = cache_.place_of(words[i], text.data() + text.size());
      }
      for (size_t i = 0; i < count; ++i) {
        if (!cache_.append(words[i], places[i], ids)) append_new(words[i], ids);
      }
      ends = ends.subspan(count);
    }
  }

  void append_new(std::string_view word, IdBuffer& ids) {
    std::vector<int32_t>& target = ids.flush();
    const size_t begin = target.size();
    tokenizer_.definition_.model.model->append_word(word, target);
    cache_.insert(word, std::span<const int32_t>(target).subspan(begin));
  }

  const PipelineTokenizer& tokenizer_;
  SplitPattern::Scratch scratch_;
  std::string normalized_;
  WordCache cache_;
};

PipelineTokenizer::PipelineTokenizer(TokenizerFiles files, const std::string& source)
    : files_(std::move(files)),
      tokens_(read_model_tokens(files_, source)),
      definition_(parse_definition(files_.at("tokenizer.json"),
                                   source.ends_with(".json") ? source : source + "/tokenizer.json", tokens_)),
      first_finder_(tokens_with(definition_, false)),
      second_finder_(tokens_with(definition_, true)) {
  place_tokens();
  read_special_roles();
  fingerprint_ = content_hash(
      format("{} eos {} bos {}", definition_.content_hash, eos_.value_or(-1), bos_.value_or(-1)));
}

void PipelineTokenizer::place_tokens() {
  const Vocabulary& vocabulary = *definition_.model.vocabulary;
  int32_t end = vocabulary.id_end();
  std::unordered_set<std::string_view> special;
  for (const AddedToken& token : definition_.added_tokens) {
    end = std::max(end, token.id + 1);
    if (token.special) special.insert(token.content);
  }
  text_by_id_.resize(static_cast<size_t>(end));
  special_.resize(text_by_id_.size());
  skipped_.resize(text_by_id_.size());
  const auto place = [&](int32_t id, const std::string& spelling) {
    const auto at = static_cast<size_t>(id);
    skipped_[at] = special.contains(spelling);
    // Spellings that are not in the byte alphabet are decoded as they are.
    text_by_id_[at] =
        definition_.decoder.is_byte_level() ? from_byte_alphabet(spelling).value_or(spelling) : spelling;
  };
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) place(id, vocabulary.piece(id));
  for (const AddedToken& token : definition_.added_tokens) {
    place(token.id, token.pattern);
    special_[static_cast<size_t>(token.id)] = token.special;
  }
}

std::optional<int32_t> PipelineTokenizer::find_token(std::string_view content) const {
  for (const AddedToken& token : definition_.added_tokens) {
    if (token.content == content) return token.id;
  }
  return definition_.model.vocabulary->find(content);
}

void PipelineTokenizer::read_special_roles() {
  const auto role = [&](const char* key) {
    const auto found = tokens_.roles.find(key);
    return found == tokens_.roles.end() ? std::nullopt : find_token(found->second);
  };
  eos_ = role("eos_token");
  bos_ = role("bos_token");
  if (!eos_ && !files_.contains("tokenizer_config.json")) eos_ = find_token(kEndOfText);
}

std::unique_ptr<Encoder> PipelineTokenizer::encoder() const {
  return std::make_unique<WordEncoder>(*this);
}

std::string_view PipelineTokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size() || text_by_id_[static_cast<size_t>(id)].empty()) {
    throw Error(
        format("token id {} is not in the vocabulary of {} tokens; are these ids of another tokenizer?", id,
               vocab_size()));
  }
  return text_by_id_[static_cast<size_t>(id)];
}

/// Runs tokens through the steps of the decoder.
class PipelineTokenizer::ChainDecoder final : public TokenDecoder {
 public:
  ChainDecoder(const PipelineTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {
    if (!tokenizer.definition_.decoder.is_byte_level()) first_ = tokenizer.definition_.decoder.start(output_);
  }

  void push(int32_t id, std::string& bytes) override {
    const std::string_view token = tokenizer_.token_bytes(id);
    if (skip_special_ && tokenizer_.skipped_[static_cast<size_t>(id)]) return;
    if (first_ == nullptr) {
      bytes += token;
      return;
    }
    first_->text(token);
    first_->end_token();
    bytes += std::exchange(output_, {});
  }

  void finish(std::string& bytes) override {
    if (first_ != nullptr) first_->finish();
    bytes += std::exchange(output_, {});
  }

 private:
  const PipelineTokenizer& tokenizer_;
  bool skip_special_;
  std::string output_;
  std::unique_ptr<DecoderStage> first_;  ///< null: the tokens are bytes
};

std::unique_ptr<TokenDecoder> PipelineTokenizer::decoder(bool skip_special) const {
  return std::make_unique<ChainDecoder>(*this, skip_special);
}

bool PipelineTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

bool PipelineTokenizer::is_added(int32_t id) const {
  return std::ranges::find(definition_.added_tokens, id, &AddedToken::id) != definition_.added_tokens.end();
}

/// The token as tokenizer.json spells it.
const std::string& PipelineTokenizer::spelling(int32_t id) const {
  for (const AddedToken& token : definition_.added_tokens) {
    if (token.id == id) return token.content;
  }
  return definition_.model.vocabulary->piece(id);
}

std::string PipelineTokenizer::default_config() const {
  Json config = Json::object();
  Json added = Json::object();
  for (const AddedToken& token : definition_.added_tokens) {
    append_member(added, std::to_string(token.id),
                  {{"content", token.content},
                   {"lstrip", token.lstrip},
                   {"normalized", token.normalized},
                   {"rstrip", token.rstrip},
                   {"single_word", token.single_word},
                   {"special", token.special}});
  }
  config["added_tokens_decoder"] = added;
  if (bos_) config["bos_token"] = spelling(*bos_);
  config["clean_up_tokenization_spaces"] = false;
  if (eos_) config["eos_token"] = spelling(*eos_);
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

std::string PipelineTokenizer::default_special_tokens() const {
  Json roles = Json::object();
  if (bos_) roles["bos_token"] = spelling(*bos_);
  if (eos_) roles["eos_token"] = spelling(*eos_);
  return roles.dump(2) + "\n";
}

void PipelineTokenizer::save_pretrained(const fs::path& folder) const {
  TokenizerFiles files = files_;
  if (!files.contains("tokenizer_config.json")) files["tokenizer_config.json"] = default_config();
  if (!files.contains("special_tokens_map.json")) files["special_tokens_map.json"] = default_special_tokens();
  write_tokenizer_files(files, folder);
}

}  // namespace stepforge
