// SPDX-License-Identifier: Apache-2.0
// What becomes of documents that are longer than a row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/records/record_format.h"

namespace stepforge {

/// "cut", "drop", "error" or "proportional"; throws UsageError for anything else.
TooLong parse_too_long(std::string_view word);

struct DocumentLimit {
  TooLong rule = TooLong::cut;
  int64_t tokens = 0;  ///< of a document: as many as a row has
};

/// Tokens of a question and of its answer.
struct TurnShare {
  int64_t question = 0;
  int64_t answer = 0;

  friend bool operator==(const TurnShare&, const TurnShare&) = default;
};

/// What remains of the sizes `whole` if both together may be `limit` tokens, as in LLaMA-Factory and HyperParallel: an
/// answer of less than half of the limit stays whole, else a question of less than half of it does, else both shrink
/// in proportion. Unlike there, an answer keeps at least one token.
TurnShare share_limit(const TurnShare& whole, int64_t limit);

/// Reasons of EncodedDocuments::dropped and cut.
inline constexpr const char* kTooLong = "too long";
inline constexpr const char* kNoLabels = "no label left";

/// The records of another format, with documents of at most limit.tokens tokens. Shares go from turn to turn, the most
/// important first (RecordEncoder::turns), over the tokens that are left. A document of which no label is left is left
/// out.
class LimitedRecords : public RecordFormat {
 public:
  /// `limit.rule` is not `cut`, which is the packing's own.
  LimitedRecords(std::unique_ptr<const RecordFormat> format, const DocumentLimit& limit);

  std::unique_ptr<RecordEncoder> encoder() const override;
  const Tokenizer& tokenizer() const override { return format_->tokenizer(); }
  bool has_loss_mask() const override { return format_->has_loss_mask(); }
  std::string fingerprint() const override;
  Json description() const override;

 private:
  std::unique_ptr<const RecordFormat> format_;
  DocumentLimit limit_;
};

/// The same format if the rule is `cut`.
std::unique_ptr<const RecordFormat> limited(std::unique_ptr<const RecordFormat> format,
                                            const DocumentLimit& limit);

}  // namespace stepforge
