// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/document_limit.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Tokens [begin, end) of a document.
struct Kept {
  int64_t begin = 0;
  int64_t end = 0;
};

std::string_view too_long_name(TooLong rule) {
  constexpr std::array<std::string_view, 4> kNames = {"cut", "drop", "error", "proportional"};
  return kNames.at(static_cast<size_t>(rule));
}

/// What remains of the turns, by place.
std::vector<Kept> kept_of(const std::vector<DocumentTurn>& turns, int64_t limit) {
  std::vector<Kept> kept;
  for (const DocumentTurn& turn : turns) {
    if (limit == 0) break;
    const TurnShare share = share_limit({turn.answer - turn.begin, turn.end - turn.answer}, limit);
    kept.push_back({turn.begin, turn.begin + share.question});
    kept.push_back({turn.answer, turn.answer + share.answer});
    limit -= share.question + share.answer;
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.begin < b.begin; });
  return kept;
}

class LimitedEncoder : public RecordEncoder {
 public:
  LimitedEncoder(std::unique_ptr<RecordEncoder> encoder, const DocumentLimit& limit)
      : encoder_(std::move(encoder)), limit_(limit) {}

  void append(std::string_view record, EncodedDocuments& documents) override {
    whole_ = {};
    encoder_->append(record, whole_);
    add_losses(documents.dropped, whole_.dropped);
    add_losses(documents.cut, whole_.cut);
    for (size_t i = 0; i < whole_.ends.size(); ++i) append_document(record, i, documents);
  }

  std::vector<DocumentTurn> turns(std::string_view record) override { return encoder_->turns(record); }

 private:
  void append_document(std::string_view record, size_t number, EncodedDocuments& documents) {
    const int64_t begin = number == 0 ? 0 : whole_.ends[number - 1];
    const int64_t length = whole_.ends[number] - begin;
    if (length <= limit_.tokens) return add(number, begin, {{0, length}}, documents);
    if (limit_.rule == TooLong::error) refuse(length);
    const LostText whole{.documents = 1, .tokens = length, .text_bytes = whole_.text_bytes[number]};
    if (limit_.rule == TooLong::drop) {
      documents.dropped[kTooLong] += whole;
      return;
    }
    const std::vector<DocumentTurn> turns =
        whole_.ends.size() == 1 ? encoder_->turns(record) : std::vector<DocumentTurn>{};
    const std::vector<Kept> kept =
        turns.empty() ? std::vector<Kept>{{0, limit_.tokens}} : kept_of(turns, limit_.tokens);
    if (!has_label(begin, kept)) {
      documents.dropped[kNoLabels] += whole;
      return;
    }
    const int64_t before = std::ssize(documents.tokens);
    add(number, begin, kept, documents);
    const int64_t left = std::ssize(documents.tokens) - before;
    const int64_t lost_bytes = whole.text_bytes * (length - left) / length;
    documents.text_bytes.back() -= lost_bytes;
    documents.cut[kTooLong] += {.documents = 1, .tokens = length - left, .text_bytes = lost_bytes};
  }

  [[noreturn]] void refuse(int64_t length) const {
    throw FormatError(
        format("the document has {} tokens, and a row {}: increase seq_len, or set too_long to "
               "\"cut\", \"drop\" or \"proportional\"",
               length, limit_.tokens));
  }

  /// Whether a token that counts has one before it, which predicts it.
  bool has_label(int64_t begin, const std::vector<Kept>& kept) const {
    bool is_first = true;
    for (const Kept& part : kept) {
      for (int64_t i = begin + part.begin; i < begin + part.end; ++i) {
        if (!is_first && (whole_.counted.empty() || whole_.counted[static_cast<size_t>(i)] != 0)) return true;
        is_first = false;
      }
    }
    return false;
  }

  void add(size_t number, int64_t begin, const std::vector<Kept>& kept, EncodedDocuments& documents) const {
    const auto copy = [&](const auto& from, auto& to, const Kept& part) {
      if (from.empty()) return;
      to.insert(to.end(), from.begin() + begin + part.begin, from.begin() + begin + part.end);
    };
    for (const Kept& part : kept) {
      copy(whole_.tokens, documents.tokens, part);
      copy(whole_.counted, documents.counted, part);
    }
    documents.ends.push_back(std::ssize(documents.tokens));
    documents.text_bytes.push_back(whole_.text_bytes[number]);
  }

  std::unique_ptr<RecordEncoder> encoder_;
  const DocumentLimit& limit_;
  EncodedDocuments whole_;  ///< of one record
};

}  // namespace

TooLong parse_too_long(std::string_view word) {
  for (const TooLong rule : {TooLong::cut, TooLong::drop, TooLong::error, TooLong::proportional})
    if (word == too_long_name(rule)) return rule;
  throw UsageError(
      format("too_long \"{}\": expected \"cut\", \"drop\", \"error\" or \"proportional\"", word));
}

TurnShare share_limit(const TurnShare& whole, int64_t limit) {
  int64_t room = 0;  // for the answer
  if (2 * whole.answer < limit) {
    room = limit;
  } else if (2 * whole.question < limit) {
    room = limit - whole.question;
  } else {
    room = std::max<int64_t>(1, limit * whole.answer / (whole.question + whole.answer));
  }
  const int64_t answer = std::min(room, whole.answer);
  return {std::min(whole.question, limit - answer), answer};
}

LimitedRecords::LimitedRecords(std::unique_ptr<const RecordFormat> format, const DocumentLimit& limit)
    : format_(std::move(format)), limit_(limit) {}

std::unique_ptr<RecordEncoder> LimitedRecords::encoder() const {
  return std::make_unique<LimitedEncoder>(format_->encoder(), limit_);
}

std::string LimitedRecords::fingerprint() const {
  return content_hash(
      format("limit {} {}\n{}", static_cast<int>(limit_.rule), limit_.tokens, format_->fingerprint()));
}

Json LimitedRecords::description() const {
  Json json = format_->description();
  json["too_long"] = {{"rule", too_long_name(limit_.rule)}, {"tokens", limit_.tokens}};
  return json;
}

std::unique_ptr<const RecordFormat> limited(std::unique_ptr<const RecordFormat> format,
                                            const DocumentLimit& limit) {
  if (limit.rule == TooLong::cut) return format;
  return std::make_unique<LimitedRecords>(std::move(format), limit);
}

}  // namespace stepforge
