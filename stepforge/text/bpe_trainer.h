// SPDX-License-Identifier: Apache-2.0
// Learns the merges of a byte-level BPE from word counts.
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
  /// Tokens wanted: 256 bytes, merges, "<|endoftext|>". At least kMinVocabSize and at most 1,000,000.
  int32_t vocab_size = 4096;
  /// A pair seen less often is not merged: a model memorises a token that occurs once.
  int64_t min_pair_count = 2;
  /// Called at every merge.
  std::function<void()> progress = [] {};
};

struct TrainedBpe {
  /// In order of rank; ids 0 to 255 are the bytes, the tokens of the merges follow (see tokenizer_json).
  std::vector<TokenPair> merges;
  /// What was reached. Smaller than asked if the text ran out of pairs that occur min_pair_count times; this
  /// is not an error; the caller reports it.
  int32_t vocab_size = 0;
};

/// Merges the most frequent pair of neighbouring tokens, again and again; of equally frequent pairs the one
/// with the smallest left id, then the smallest right id. The result depends on the counts alone. Throws
/// UsageError for a vocab_size out of range.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainerOptions& options);

/// The tokenizer of these merges with the Llama 3 pattern.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const TrainedBpe& trained);

}  // namespace stepforge
