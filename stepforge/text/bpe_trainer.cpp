// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/splitter.h"
#include "stepforge/text/tokenizer_json.h"

namespace stepforge {

namespace {

constexpr int32_t kMaxVocabSize = 1'000'000;

/// The words as sequences of token ids, merged in place; for each pair, how often it occurs and in which
/// words.
class MergeTable {
 public:
  explicit MergeTable(const WordCounts& counts) {
    for (const auto& [text, count] : counts) {
      if (text.size() < 2) continue;
      Word word{symbols_.size(), text.size(), count};
      for (const char byte : text) symbols_.push_back(static_cast<uint8_t>(byte));
      words_.push_back(word);
    }
    for (uint32_t index = 0; index < words_.size(); ++index) {
      const Word& word = words_[index];
      for (size_t i = 0; i + 1 < word.length; ++i) gain(pair_at(word, i), word.count, index);
    }
    offer_gained();
  }

  struct Best {
    TokenPair pair = 0;
    int64_t count = 0;
  };

  /// The most frequent pair, removed from the queue; count 0 if there is none left.
  Best pop_best() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_.find(top.pair)->count;
      if (count == top.count) return {top.pair, count};
      // Merges of other pairs have reduced the count.
      top.count = count;
      if (count > 0) queue_.push(top);
    }
    return {};
  }

  /// Replaces `pair` by the new token `id` everywhere.
  void merge(TokenPair pair, int32_t id) {
    const std::vector<uint32_t> where = std::move(pairs_[pair].words);
    pairs_[pair] = {};
    for (const uint32_t index : where) merge_in_word(index, pair, id);
    offer_gained();
  }

 private:
  struct Word {
    size_t begin = 0;
    size_t length = 0;
    int64_t count = 0;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;
  };
  struct Candidate {
    int64_t count = 0;
    TokenPair pair = 0;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  TokenPair pair_at(const Word& word, size_t i) const {
    return token_pair(symbols_[word.begin + i], symbols_[word.begin + i + 1]);
  }

  void gain(TokenPair pair, int64_t count, uint32_t word) {
    Pair& record = pairs_[pair];
    if (record.words.empty()) gained_.push_back(pair);
    record.count += count;
    if (record.words.empty() || record.words.back() != word) record.words.push_back(word);
  }

  /// Only pairs that contain the newest token gain, all in one merge: so each pair enters the queue once,
  /// with its full count.
  void offer_gained() {
    for (const TokenPair pair : gained_) queue_.push({pairs_[pair].count, pair});
    gained_.clear();
  }

  void merge_in_word(uint32_t index, TokenPair pair, int32_t id) {
    Word& word = words_[index];
    int32_t* symbols = symbols_.data() + word.begin;
    // The pair being merged disappears, so its own count does not matter.
    const auto lose = [&](int32_t left, int32_t right) {
      if (token_pair(left, right) != pair) pairs_[token_pair(left, right)].count -= word.count;
    };
    size_t kept = 0;
    for (size_t i = 0; i < word.length; ++i) {
      if (i + 1 == word.length || token_pair(symbols[i], symbols[i + 1]) != pair) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        lose(symbols[kept - 1], symbols[i]);
        gain(token_pair(symbols[kept - 1], id), word.count, index);
      }
      if (i + 2 < word.length) {
        lose(symbols[i + 1], symbols[i + 2]);
        gain(token_pair(id, symbols[i + 2]), word.count, index);
      }
      symbols[kept++] = id;
      ++i;
    }
    word.length = kept;
  }

  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  PairMap<Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<TokenPair> gained_;
};

}  // namespace

TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainerOptions& options) {
  if (options.vocab_size < kMinVocabSize || options.vocab_size > kMaxVocabSize) {
    throw UsageError(
        format("vocab_size {} is out of range; a byte-level BPE has {} (bytes and {}) to {} tokens",
               options.vocab_size, kMinVocabSize, kEndOfText, kMaxVocabSize));
  }
  TrainedBpe trained;
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::unordered_set<std::string> known(tokens.begin(), tokens.end());
  MergeTable table(counts);
  while (static_cast<int32_t>(tokens.size()) + 1 < options.vocab_size) {
    options.progress();
    const MergeTable::Best best = table.pop_best();
    if (best.count < std::max<int64_t>(1, options.min_pair_count)) break;
    std::string token = tokens[static_cast<size_t>(left_token(best.pair))] +
                        tokens[static_cast<size_t>(right_token(best.pair))];
    // Another merge makes the same string already. A vocabulary contains each string once, so this pair is
    // not merged.
    if (!known.insert(token).second) continue;
    table.merge(best.pair, static_cast<int32_t>(tokens.size()));
    trained.merges.push_back(best.pair);
    tokens.push_back(std::move(token));
  }
  trained.vocab_size = static_cast<int32_t>(tokens.size()) + 1;
  return trained;
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const TrainedBpe& trained) {
  TokenizerFiles files;
  files["tokenizer.json"] = tokenizer_json(trained.merges, kLlama3Pattern);
  return std::make_unique<PipelineTokenizer>(std::move(files), "trained tokenizer");
}

}  // namespace stepforge
