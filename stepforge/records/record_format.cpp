// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/record_format.h"

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

class PlainTextEncoder : public RecordEncoder {
 public:
  PlainTextEncoder(const Tokenizer& tokenizer, const SpecialTokens& ends, const TextFilter& filter)
      : encoder_(tokenizer.encoder()), ends_(ends), filter_(filter) {}

  void append(std::string_view record, EncodedDocuments& documents) override {
    if (is_dropped(record, filter_, scratch_, documents)) return;
    auto& tokens = documents.tokens;
    tokens.insert(tokens.end(), ends_.before.begin(), ends_.before.end());
    encoder_->append(record, tokens);
    tokens.insert(tokens.end(), ends_.after.begin(), ends_.after.end());
    documents.ends.push_back(static_cast<int64_t>(tokens.size()));
    documents.text_bytes.push_back(static_cast<int64_t>(record.size()));
  }

 private:
  std::unique_ptr<Encoder> encoder_;
  const SpecialTokens& ends_;
  const TextFilter& filter_;
  TextFilter::Scratch scratch_;
};

}  // namespace

LostText& LostText::operator+=(const LostText& more) {
  documents += more.documents;
  tokens += more.tokens;
  text_bytes += more.text_bytes;
  return *this;
}

void add_losses(LossesByReason& losses, const LossesByReason& more) {
  for (const auto& [reason, lost] : more) losses[reason] += lost;
}

void EncodedDocuments::resize(size_t documents) {
  ends.resize(documents);
  text_bytes.resize(documents);
  tokens.resize(documents == 0 ? 0 : static_cast<size_t>(ends.back()));
  if (counted.size() > tokens.size()) counted.resize(tokens.size());
}

bool is_dropped(std::string_view text, const TextFilter& filter, TextFilter::Scratch& scratch,
                EncodedDocuments& documents) {
  const std::string_view rule = filter.broken_rule(text, scratch);
  if (rule.empty()) return false;
  documents.dropped[std::string(rule)] += {.documents = 1, .text_bytes = std::ssize(text)};
  return true;
}

std::vector<DocumentTurn> RecordEncoder::turns(std::string_view /*record*/) {
  return {};
}

PlainText::PlainText(const Tokenizer& tokenizer, const TextEnds& ends, const TextFilterRules& filter)
    : tokenizer_(tokenizer), filter_(filter) {
  const SpecialTokens special = tokenizer.special_tokens();
  if (ends.bos) ends_.before = special.before;
  if (!ends.eos) return;
  ends_.after = special.after;
  if (const auto eos = tokenizer.eos_id(); eos && special.after.empty()) ends_.after = {*eos};
}

std::unique_ptr<RecordEncoder> PlainText::encoder() const {
  return std::make_unique<PlainTextEncoder>(tokenizer_, ends_, filter_);
}

std::string PlainText::fingerprint() const {
  return content_hash(format("text {}\n{}", tokenizer_.fingerprint(), description().dump()));
}

Json PlainText::description() const {
  return {{"before", ends_.before}, {"after", ends_.after}, {"filter", filter_.description()}};
}

}  // namespace stepforge
