// SPDX-License-Identifier: Apache-2.0
// How the records of a source become documents of tokens, and which of these count in the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/records/text_filter.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// Documents that are not, or not wholly, among the encoded ones, for one reason.
struct LostText {
  int64_t documents = 0;
  int64_t tokens = 0;      ///< 0 for documents that were dropped before they were encoded
  int64_t text_bytes = 0;  ///< of whole documents

  LostText& operator+=(const LostText& more);
  friend bool operator==(const LostText&, const LostText&) = default;
};
using LossesByReason = std::map<std::string, LostText, std::less<>>;

void add_losses(LossesByReason& losses, const LossesByReason& more);

/// Tokens of a document: a question [begin, answer) and its answer [answer, end).
struct DocumentTurn {
  int64_t begin = 0;
  int64_t answer = 0;
  int64_t end = 0;

  friend bool operator==(const DocumentTurn&, const DocumentTurn&) = default;
};

/// Documents end to end.
struct EncodedDocuments {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;     ///< [tokens] 1 if the token counts in the loss; empty if all do
  std::vector<int64_t> ends;        ///< of the documents, in tokens
  std::vector<int64_t> text_bytes;  ///< of the documents, without special tokens
  LossesByReason dropped{};         ///< by the format; none of their tokens are here
  LossesByReason cut{};             ///< what was cut off documents that are here

  /// Takes back the documents, and what belongs to unfinished ones, after the first `documents`.
  void resize(size_t documents);
};

/// One thread's working memory for encoding records. Must not outlive its format.
class RecordEncoder {
 public:
  virtual ~RecordEncoder() = default;
  /// Appends the documents of one record: usually one, none if the filter drops it. Throws FormatError, without a
  /// location, if the record is malformed; what it appended is then to be taken back.
  virtual void append(std::string_view record, EncodedDocuments& documents) = 0;
  /// The turns of the one document that append() makes of the record, the most important first; together they are
  /// the whole document. None if the text is all of one piece.
  virtual std::vector<DocumentTurn> turns(std::string_view record);
};

/// Immutable; may be shared between threads.
class RecordFormat {
 public:
  RecordFormat() = default;
  virtual ~RecordFormat() = default;
  RecordFormat(const RecordFormat&) = delete;
  RecordFormat& operator=(const RecordFormat&) = delete;

  virtual std::unique_ptr<RecordEncoder> encoder() const = 0;
  /// The tokenizer of all documents.
  virtual const Tokenizer& tokenizer() const = 0;
  /// Whether some tokens do not count in the loss.
  virtual bool has_loss_mask() const = 0;
  /// Hash of all that decides the documents of a record: equal formats make equal documents.
  virtual std::string fingerprint() const = 0;
  /// The same for people, without the tokenizer: part of the description of a data set. An object.
  virtual Json description() const = 0;
};

/// Which of the tokenizer's own tokens stand at the ends of a document.
struct TextEnds {
  bool bos = true;  ///< what its post-processor puts before a text, such as <s>
  bool eos = true;  ///< its end-of-text token, or what its post-processor puts after a text
};

/// Each record is the text of one document; every token counts. Texts that the filter refuses are dropped before they
/// are encoded.
class PlainText : public RecordFormat {
 public:
  /// Must not outlive `tokenizer`.
  explicit PlainText(const Tokenizer& tokenizer, const TextEnds& ends = {},
                     const TextFilterRules& filter = {});

  std::unique_ptr<RecordEncoder> encoder() const override;
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  bool has_loss_mask() const override { return false; }
  std::string fingerprint() const override;
  Json description() const override;

 private:
  const Tokenizer& tokenizer_;
  SpecialTokens ends_;
  TextFilter filter_;
};

/// Whether the filter drops a text; if so, it is counted in `documents`.
bool is_dropped(std::string_view text, const TextFilter& filter, TextFilter::Scratch& scratch,
                EncodedDocuments& documents);

}  // namespace stepforge
