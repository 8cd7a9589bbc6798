// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/chat_records.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/records/chat_fields.h"
#include "stepforge/records/chat_mask.h"
#include "stepforge/records/content_parts.h"
#include "stepforge/records/preference.h"

namespace stepforge {

namespace {

class ChatEncoder : public RecordEncoder {
 public:
  ChatEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const ChatRecordOptions& options,
              const TextFilter& filter)
      : tokenizer_(tokenizer),
        template_(chat_template),
        options_(options),
        joins_parts_(chat_template != nullptr && writes_text_content(*chat_template)),
        filter_(filter),
        encoder_(tokenizer.encoder()),
        special_(tokenizer.special_tokens()) {}

  void append(std::string_view record, EncodedDocuments& documents) override {
    if (options_.layout == ChatLayout::preference) return append_answers(record, documents);
    if (options_.layout == ChatLayout::unpaired_preference) return append_judged(record, documents);
    const Conversation conversation = read_for_loss(record);
    const auto bytes = encode(conversation, documents);
    if (!bytes) return;
    if (options_.loss_on == LossOn::all) documents.counted.clear();
    documents.ends.push_back(std::ssize(documents.tokens));
    documents.text_bytes.push_back(*bytes);
  }

  std::vector<DocumentTurn> turns(std::string_view record) override {
    auto turns = turns_of(answers_in(record));
    if (options_.loss_on == LossOn::last) std::reverse(turns.begin(), turns.end());
    return turns;
  }

 private:
  /// Both answers with their prompt, one after the other: one document.
  void append_answers(std::string_view record, EncodedDocuments& documents) {
    const PreferencePair pair = read_preference(parse_json(record, "the record"), options_.keys);
    const size_t begin = documents.tokens.size();
    int64_t bytes = 0;
    for (const auto& [name, answer] :
         {std::pair("chosen", &pair.chosen), std::pair("rejected", &pair.rejected)}) {
      const size_t answer_begin = documents.tokens.size();
      Conversation conversation = answered(pair, *answer);
      if (joins_parts_) join_parts(conversation.messages);
      const auto added = encode(conversation, documents);
      if (!added) {  // a pair is dropped as a whole
        documents.tokens.resize(begin);
        documents.counted.resize(begin);
        return;
      }
      bytes += *added;
      end_answer(name, answer_begin, documents);
    }
    documents.ends.push_back(std::ssize(documents.tokens));
    documents.text_bytes.push_back(bytes);
  }

  /// An answer with its prompt. The first token, which nothing predicts, says whether the answer is desirable: it counts if
  /// that is not so (PackedRows).
  void append_judged(std::string_view record, EncodedDocuments& documents) {
    JudgedAnswer answer = read_judged_answer(parse_json(record, "the record"), options_.keys);
    const size_t begin = documents.tokens.size();
    if (joins_parts_) join_parts(answer.conversation.messages);
    const auto bytes = encode(answer.conversation, documents);
    if (!bytes) return;
    end_answer("completion", begin, documents);
    documents.counted[begin] = answer.desirable ? 0 : 1;
    documents.ends.push_back(std::ssize(documents.tokens));
    documents.text_bytes.push_back(*bytes);
  }

  static Conversation answered(const PreferencePair& pair, const Json& answer) {
    Conversation conversation;
    if (pair.prompt.is_string()) {
      conversation.prompt = pair.prompt.get<std::string>();
      conversation.completion = answer.get<std::string>();
      return conversation;
    }
    conversation.messages = pair.prompt;
    conversation.counted.resize(pair.prompt.size(), false);
    for (const Json& message : answer) {
      conversation.messages.push_back(message);
      conversation.counted.push_back(message["role"] == kAssistantRole);
    }
    conversation.tools = pair.tools;
    return conversation;
  }

  /// Everything from the first token of the answer to its last one counts, and nothing follows it: so the token after the
  /// first run of tokens that count begins the second answer (PackedRows).
  static void end_answer(std::string_view name, size_t begin, EncodedDocuments& documents) {
    auto& counted = documents.counted;
    const auto from = counted.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto first = std::find(from, counted.end(), 1);
    if (first == counted.end()) throw FormatError(format("\"{}\" has no token", name));
    if (first == from) throw FormatError(format("no token of a prompt is before \"{}\"", name));
    while (counted.back() == 0) counted.pop_back();
    std::fill(first, counted.end(), 1);
    documents.tokens.resize(counted.size());
  }

  Conversation read(std::string_view record, LossOn loss_on) const {
    Conversation conversation =
        read_conversation(parse_json(record, "the record"), options_.layout, loss_on, options_.keys);
    if (joins_parts_) join_parts(conversation.messages);
    return conversation;
  }

  /// With loss_on = "all" no message is marked: every token counts, so no span needs to be found.
  Conversation read_for_loss(std::string_view record) const {
    Conversation conversation = read(record, options_.loss_on);
    if (options_.loss_on != LossOn::all) return conversation;
    if (!conversation.excluded.empty())
      throw FormatError(
          format("{} is excluded by its mask, but loss_on = \"all\" learns every token; set loss_on = "
                 "\"assistant\", or remove the mask",
                 conversation.excluded));
    std::fill(conversation.counted.begin(), conversation.counted.end(), false);
    return conversation;
  }

  /// These return the bytes of the text, or nothing if the filter drops it.
  std::optional<int64_t> encode(const Conversation& conversation, EncodedDocuments& documents) {
    return conversation.prompt ? append_pair(conversation, documents)
                               : append_messages(conversation, documents);
  }

  /// 1 for each token that the assistant says, whether it counts or not.
  std::vector<uint8_t> answers_in(std::string_view record) {
    Conversation conversation = read(record, LossOn::all);
    for (size_t i = 0; i < conversation.messages.size(); ++i)
      conversation.counted[i] = conversation.messages[i]["role"] == kAssistantRole;
    EncodedDocuments documents;
    try {
      encode(conversation, documents);
    } catch (const FormatError&) {  // the template hides where earlier answers are
      documents = {};
      encode(read_for_loss(record), documents);
    }
    return std::move(documents.counted);
  }

  /// The last answer takes what the template puts after it.
  static std::vector<DocumentTurn> turns_of(const std::vector<uint8_t>& answers) {
    std::vector<DocumentTurn> turns;
    for (auto place = answers.begin(); place != answers.end();) {
      const auto answer = std::find(place, answers.end(), 1);
      const auto end = std::find(answer, answers.end(), 0);
      if (answer == answers.end() && !turns.empty()) break;
      turns.push_back({place - answers.begin(), answer - answers.begin(), end - answers.begin()});
      place = end;
    }
    if (!turns.empty()) turns.back().end = std::ssize(answers);
    return turns;
  }

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
  bool joins_parts_;
  const TextFilter& filter_;
  TextFilter::Scratch scratch_;
  std::unique_ptr<Encoder> encoder_;
  SpecialTokens special_;
};

/// All names, so that different ones have different texts.
std::string keys_text(const ChatKeys& keys) {
  Json json = {keys.prompt, keys.query,  keys.response, keys.history, keys.messages, keys.system,
               keys.tools,  keys.chosen, keys.rejected, keys.role,    keys.content};
  for (const RoleName& role : keys.roles) json.push_back({role.name, role.role});
  if (keys.label != ChatKeys{}.label) json.push_back(keys.label);
  return json.dump();
}

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
  Json json = {{"chat_template", template_ ? template_->fingerprint() : "none"},
               {"filter", filter_.description()}};
  // An entry of dataset_info.json with the usual keys is the same as its file.
  if (options_.keys != ChatKeys{}) json["keys"] = keys_text(options_.keys);
  return json;
}

}  // namespace stepforge
