// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/record_format.h"

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

class PlainTextEncoder : public RecordEncoder {
 public:
  PlainTextEncoder(const Tokenizer& tokenizer, const SpecialTokens& ends)
      : encoder_(tokenizer.encoder()), ends_(ends) {}

  void append(std::string_view record, EncodedDocuments& documents) override {
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
};

std::string ids_text(const std::vector<int32_t>& ids) {
  std::vector<std::string> words;
  words.reserve(ids.size());
  for (const int32_t id : ids) words.push_back(std::to_string(id));
  return join(words, " ");
}

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

std::vector<DocumentTurn> RecordEncoder::turns(std::string_view /*record*/) {
  return {};
}

PlainText::PlainText(const Tokenizer& tokenizer, const TextEnds& ends) : tokenizer_(tokenizer) {
  const SpecialTokens special = tokenizer.special_tokens();
  if (ends.bos) ends_.before = special.before;
  if (!ends.eos) return;
  ends_.after = special.after;
  if (const auto eos = tokenizer.eos_id(); eos && special.after.empty()) ends_.after = {*eos};
}

std::unique_ptr<RecordEncoder> PlainText::encoder() const {
  return std::make_unique<PlainTextEncoder>(tokenizer_, ends_);
}

std::string PlainText::fingerprint() const {
  return content_hash(
      format("text {}\n{}\n{}", tokenizer_.fingerprint(), ids_text(ends_.before), ids_text(ends_.after)));
}

}  // namespace stepforge
