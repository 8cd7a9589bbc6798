// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level BPE: learns its merges from word counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/text/pair_map.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/text/word_counts.h"

namespace stepforge {

/// The 256 bytes and "<|endoftext|>".
inline constexpr int32_t kMinVocabSize = 257;

struct BpeTrainerOptions {
  /// Requested number of tokens: 256 bytes, merges, "<|endoftext|>". At least kMinVocabSize and at most
  /// 1,000,000.
  int32_t vocab_size = 4096;
  /// A pair that occurs less often is not merged: a model would only memorise a token that occurs once.
  int64_t min_pair_count = 2;
  /// Called at every merge.
  std::function<void()> progress = [] {};
};

struct TrainedBpe {
  /// By rank. Ids 0 to 255 are the bytes; the tokens of the merges follow (see tokenizer_json).
  std::vector<TokenPair> merges;
  /// Tokens in all. Fewer than requested if too few pairs occur min_pair_count times; this is not an error,
  /// and the caller reports it.
  int32_t vocab_size = 0;
};

/// Repeatedly merges the most frequent pair of adjacent tokens; of equally frequent pairs, the one with the
/// smallest left id, then the smallest right id. The result depends on the counts alone. Throws UsageError
/// for a vocab_size out of range.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainerOptions& options);

/// The tokenizer with these merges and the Llama 3 pattern.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const TrainedBpe& trained);

}  // namespace stepforge
