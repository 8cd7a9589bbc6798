// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for records of chat data in every layout, with usual and unusual names: any bytes are refused with an error, or
// become a conversation whose flags fit its messages, and documents that end where their tokens do.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/records/chat_records.h"
#include "stepforge/records/document_limit.h"
#include "stepforge/records/preference.h"

namespace {

using stepforge::ChatLayout;

constexpr int64_t kRowTokens = 40;

void require(bool rule) {
  if (!rule) std::abort();
}

void check_preference(std::string_view record) {
  const auto pair = stepforge::read_preference(stepforge::parse_json(record, "fuzz"));
  require(pair.chosen.is_string() == pair.prompt.is_string());
  require(pair.rejected.is_string() == pair.prompt.is_string());
  require(pair.chosen.is_string() || !pair.chosen.empty());
}

void check_judged(std::string_view record) {
  const auto answer = stepforge::read_judged_answer(stepforge::parse_json(record, "fuzz"));
  const auto& conversation = answer.conversation;
  require(conversation.counted.size() == conversation.messages.size());
  require(conversation.prompt.has_value() ||
          std::ranges::find(conversation.counted, true) != conversation.counted.end());
}

void check_layout(std::string_view record, ChatLayout layout, stepforge::LossOn loss_on) {
  static const auto kTokenizer = stepforge::make_byte_tokenizer();
  static const auto kTemplate =
      std::make_shared<stepforge::ChatTemplate>(stepforge::ChatTemplate::from_source(
          "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}", "fuzz"));
  stepforge::ChatKeys keys;
  if (!record.empty() && record.back() == ' ') keys.messages = {"talk"};
  const auto conversation =
      stepforge::read_conversation(stepforge::parse_json(record, "fuzz"), layout, loss_on, keys);
  require(conversation.counted.size() == conversation.messages.size());
  const auto format = stepforge::limited(
      std::make_unique<stepforge::ChatRecords>(
          *kTokenizer, kTemplate,
          stepforge::ChatRecordOptions{.layout = layout, .loss_on = loss_on, .keys = keys}),
      {.rule = stepforge::TooLong::proportional, .tokens = kRowTokens});
  stepforge::EncodedDocuments documents;
  format->encoder()->append(record, documents);
  const auto size = static_cast<int64_t>(documents.tokens.size());
  require(size <= kRowTokens && documents.ends.size() <= 1);
  require(documents.ends.empty() ? size == 0 : documents.ends.back() == size);
  require(documents.counted.empty() || documents.counted.size() == documents.tokens.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view record(reinterpret_cast<const char*>(data), size);
  const auto attempt = [](const auto& check) {
    try {
      check();
    } catch (const stepforge::Error&) {
      return;
    }
  };
  attempt([&] { check_preference(record); });
  attempt([&] { check_judged(record); });
  for (const ChatLayout layout :
       {ChatLayout::messages, ChatLayout::sharegpt, ChatLayout::alpaca, ChatLayout::prompt_completion})
    for (const auto loss_on : {stepforge::LossOn::assistant, stepforge::LossOn::last, stepforge::LossOn::all})
      attempt([&] { check_layout(record, layout, loss_on); });
  return 0;
}
