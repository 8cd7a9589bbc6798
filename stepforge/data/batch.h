// SPDX-License-Identifier: Apache-2.0
// The input of a training step: packed rows of tokens with document boundaries, positions and labels.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "stepforge/dataset/row.h"

namespace stepforge {

/// The label of a token whose prediction does not count in the loss.
inline constexpr int32_t kIgnoredLabel = -100;

/// In place of a later token that a document does not have (Batch::ahead); its embedding is 0.
inline constexpr int32_t kNoToken = -1;

/// The source of a row that only pads an epoch.
inline constexpr int32_t kNoSource = -1;

/// The part of each row that a rank of context parallelism holds (data/context_part.h).
struct ContextPart {
  int64_t index = 0;  ///< among the parts
  int64_t degree = 1;
  bool head_tail = true;  ///< a chunk from each half of the row, so that all ranks have the same work
  int64_t heads = 1;      ///< neighbouring parts that attend together, each with some of the heads

  /// The number of equal chunks into which a row is divided.
  int64_t granularity() const { return degree == 1 ? 1 : (head_tail ? 2 : 1) * degree; }
  /// The tokens of the neighbours together, which attend as one part: it has the chunks of a smaller degree.
  ContextPart joined() const { return {index / heads, degree / heads, head_tail}; }
  /// The part that is `steps` before this one in the ring of all parts; steps <= degree.
  int64_t before(int64_t steps) const { return (index - steps + degree) % degree; }
  bool operator==(const ContextPart&) const = default;
};

/// An answer with its question, a document.
struct Answer {
  int32_t begin = 0;   ///< among the flattened tokens of the whole rows
  int32_t end = 0;     ///< the same
  int32_t labels = 0;  ///< tokens of the answer

  friend bool operator==(const Answer&, const Answer&) = default;
};

/// Two answers to one question, or one that is judged alone: the other one is then empty.
struct AnswerPair {
  int64_t number = 0;          ///< in its source
  int32_t source = kNoSource;  ///< as in Batch::sources
  std::array<Answer, 2>
      answers;  ///< the better one first; a desirable one is the first, an undesirable one the second

  friend bool operator==(const AnswerPair&, const AnswerPair&) = default;
};

/// `rows` rows of `seq_len` tokens, row-major, or a rank's part of longer rows. Attention must not cross a
/// boundary of `cu_seqlens`; positions restart at 0 there. A row that begins inside a document starts at
/// position 0 too.
struct Batch {
  int64_t rows = 0;
  int64_t seq_len = 0;  ///< tokens of a row, or of this part of it
  ContextPart part = {};
  std::vector<int32_t> tokens;     ///< [rows * seq_len]
  std::vector<int32_t> positions;  ///< [rows * seq_len], index of the token in its part of the document
  /// [rows * seq_len], the next token; kIgnoredLabel where that belongs to another document or does not count.
  std::vector<int32_t> labels;
  /// Ascending boundaries of the document parts over the flattened tokens of the whole rows: first 0, last
  /// rows * row_length(); the end of a row is always a boundary.
  std::vector<int32_t> cu_seqlens;
  int32_t max_document_length = 0;  ///< the longest distance between two adjacent boundaries
  /// [rows], global row numbers: a row keeps its dropout however the batch is split.
  std::vector<uint64_t> row_ids;
  /// [rows], the source of each row, an index into RowStream::source_names(), or kNoSource; empty if the rows come
  /// from no stream.
  std::vector<int32_t> sources = {};
  std::vector<int64_t> source_rows = {};  ///< likewise, the number of each row in its source; -1 in kNoSource
  int64_t valid_labels = 0;               ///< labels that are not kIgnoredLabel
  /// [rows], the tokens of each whole row before its padding; empty if the rows come from no stream.
  std::vector<int32_t> row_tokens = {};
  int64_t real_tokens = 0;  ///< of `tokens`, those that are no padding
  /// [rows * seq_len], what each label weighs in the loss, 0 if it is ignored (data/loss_weights.h); empty if all
  /// others weigh 1.
  std::vector<float> weights;
  double label_weight = 0.0;           ///< the sum of `weights`
  std::vector<AnswerPair> pairs = {};  ///< of the whole rows, in their order; empty unless rows hold pairs
  /// For multi-token prediction: at depth 1, 2, ... the same batch with the tokens and labels that so much later tokens
  /// have (data/tokens_ahead.h).
  std::vector<Batch> ahead = {};
  /// One batch with the same rows, in which each answer is that of another record (RowSource::read_mismatched); empty unless the
  /// loss needs it.
  std::vector<Batch> mismatched = {};

  /// What the labels weigh together; of pairs each weighs 1, and of parts of the same rows the first one has all.
  double loss_weight() const {
    if (!pairs.empty()) return part.index == 0 ? static_cast<double>(pairs.size()) : 0.0;
    return weights.empty() ? static_cast<double>(valid_labels) : label_weight;
  }
  int64_t row_length() const { return seq_len * part.degree; }
};

/// What attention over a row of `seq_len` tokens costs: the sum of the squared lengths of its documents, which
/// begin at 0 and at `document_starts`.
int64_t attention_cost(std::span<const int32_t> document_starts, int64_t seq_len);

/// An empty batch of rows of `seq_len` tokens, with capacity for `rows`. Throws UsageError if that many
/// tokens do not fit 32-bit boundaries.
Batch empty_batch(int64_t seq_len, int64_t rows);

/// Appends `row` (batch.seq_len + 1 tokens) as global row `row_id`.
void append_row(const Row& row, uint64_t row_id, Batch& batch);

/// The longest document of padding.
inline constexpr int64_t kPaddingDocument = 256;

/// Fills `row` up to seq_len + 1 tokens with documents of at most kPaddingDocument tokens of id 0, so that they cost
/// little attention; none of them counts.
void append_padding(int64_t seq_len, Row& row);

/// A batch of padding only.
Batch padding_batch(int64_t seq_len, int64_t rows);

}  // namespace stepforge
