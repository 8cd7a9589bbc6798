// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/chat_records.h"

#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/data/chat_mask.h"

namespace stepforge {

namespace {

class ChatEncoder : public RecordEncoder {
 public:
  ChatEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const ChatRecordOptions& options,
              const TextFilter& filter)
      : tokenizer_(tokenizer),
        template_(chat_template),
        options_(options),
        filter_(filter),
        encoder_(tokenizer.encoder()),
        special_(tokenizer.special_tokens()) {}

  void append(std::string_view record, EncodedDocuments& documents) override {
    const Json json = parse_json(record, "the record");
    const Conversation conversation = read_conversation(json, options_.layout, options_.loss_on);
    const auto bytes =
        conversation.prompt ? append_pair(conversation, documents) : append_messages(conversation, documents);
    if (!bytes) return;
    if (options_.loss_on == LossOn::all) documents.counted.clear();
    documents.ends.push_back(std::ssize(documents.tokens));
    documents.text_bytes.push_back(*bytes);
  }

 private:
  /// Both return the bytes of the text, or nothing if the filter drops it.
  std::optional<int64_t> append_messages(const Conversation& conversation, EncodedDocuments& documents) {
    if (template_ == nullptr)
      throw FormatError(
          "there is no chat template: name a folder that has one in tokenizer.path, or set "
          "data.chat_template");
    const RenderedConversation rendered = render(conversation);
    if (is_dropped(rendered.text, filter_, scratch_, documents)) return std::nullopt;
    encode_with_mask(rendered, tokenizer_, *encoder_, documents.tokens, documents.counted);
    return std::ssize(rendered.text);
  }

  RenderedConversation render(const Conversation& conversation) const {
    try {
      return render_for_loss(*template_, conversation);
    } catch (const Error& fault) {  // the template refuses the record
      throw FormatError(fault.what());
    }
  }

  std::optional<int64_t> append_pair(const Conversation& pair, EncodedDocuments& documents) {
    if (is_dropped(*pair.prompt + pair.completion, filter_, scratch_, documents)) return std::nullopt;
    auto& tokens = documents.tokens;
    tokens.insert(tokens.end(), special_.before.begin(), special_.before.end());
    encoder_->append(*pair.prompt, tokens);
    documents.counted.resize(tokens.size(), 0);
    encoder_->append(pair.completion, tokens);
    if (const auto eos = tokenizer_.eos_id()) tokens.push_back(*eos);
    documents.counted.resize(tokens.size(), 1);
    return std::ssize(*pair.prompt) + std::ssize(pair.completion);
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
  const ChatRecordOptions& options_;
  const TextFilter& filter_;
  TextFilter::Scratch scratch_;
  std::unique_ptr<Encoder> encoder_;
  SpecialTokens special_;
};

}  // namespace

ChatRecords::ChatRecords(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
                         const ChatRecordOptions& options)
    : tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      options_(options),
      filter_(options.filter) {}

std::unique_ptr<RecordEncoder> ChatRecords::encoder() const {
  return std::make_unique<ChatEncoder>(tokenizer_, template_.get(), options_, filter_);
}

std::string ChatRecords::fingerprint() const {
  return content_hash(format("chat {} {}\n{}\n{}", static_cast<int>(options_.layout),
                             static_cast<int>(options_.loss_on), tokenizer_.fingerprint(),
                             description().dump()));
}

Json ChatRecords::description() const {
  return {{"chat_template", template_ ? template_->fingerprint() : "none"},
          {"filter", filter_.description()}};
}

}  // namespace stepforge
