// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level BPE: learns its merges from word counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/text/tokenizer.h"
#include "stepforge/text/tokenizer_json.h"
#include "stepforge/text/word_counts.h"

namespace stepforge {

/// The 256 bytes and "<|endoftext|>".
inline constexpr int32_t kMinVocabSize = 257;

struct BpeTrainerOptions {
  /// Requested number of tokens: 256 bytes, merges, special tokens. At least 256 and the special tokens, at most
  /// 1,000,000.
  int32_t vocab_size = 4096;
  /// A pair that occurs less often is not merged: a model would only memorise a token that occurs once.
  int64_t min_pair_count = 2;
  /// They have the first ids, in this order. With none, "<|endoftext|>" is the only one and has the last id.
  std::vector<std::string> special_tokens = {};
  /// Called at every merge.
  std::function<void()> progress = [] {};
};

struct TrainedBpe {
  /// Without special_tokens in the options, ids 0 to 255 are the bytes and the tokens of the merges follow. Otherwise,
  /// as Hugging Face's BpeTrainer numbers them: special tokens, bytes in the order of the byte alphabet, merges.
  ByteLevelVocabulary vocabulary;
  /// Tokens in all. Fewer than requested if too few pairs occur min_pair_count times; this is not an error,
  /// and the caller reports it.
  int32_t vocab_size = 0;
};

/// Repeatedly merges the most frequent pair of adjacent tokens; of equally frequent pairs, the one with the smallest
/// left token, then the smallest right token. Bytes are ordered by their characters in the byte alphabet and come
/// before the merges, in their order. The result depends on the counts alone and equals that of Hugging Face's
/// BpeTrainer (tools/oracle/trainer_oracle.py), so that two pairs may make the same token. Throws UsageError for a
/// vocab_size out of range and for special tokens that are empty or named twice.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainerOptions& options);

/// The special tokens that end and begin a text.
struct TokenRoles {
  std::string eos = std::string(kEndOfText);
  std::string bos = {};  ///< "": none; otherwise every text begins with it
};

/// The tokenizer of trained merges.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const TrainedBpe& trained, const WordSplit& split = {},
                                              const TokenRoles& roles = {});

/// A user's settings for a tokenizer to be trained.
struct BpeRecipe {
  int32_t vocab_size = 4096;
  int64_t min_frequency = 2;
  std::vector<std::string> special_tokens = {};
  std::string eos_token = {};  ///< "": "<|endoftext|>"
  std::string bos_token = {};  ///< "": none
  std::string pattern = "llama3";
  std::string digits = "pattern";
};

/// The options that follow from a recipe.
class BpeTraining {
 public:
  /// Throws UsageError for a setting that is out of range or contradicts another. The recipe must outlive it.
  explicit BpeTraining(const BpeRecipe& recipe);

  WordCounterOptions counting() const;
  TrainedBpe train(const WordCounts& counts, const std::function<void()>& progress = {}) const;
  std::unique_ptr<Tokenizer> tokenizer(const TrainedBpe& trained) const;

 private:
  const BpeRecipe& recipe_;
  WordSplit split_;
  TokenRoles roles_;
  BpeTrainerOptions options_;
};

}  // namespace stepforge
