// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/records.h"

#include <optional>

#include "stepforge/data/chat_records.h"

namespace stepforge {

namespace {

std::shared_ptr<const ChatTemplate> find_template(const RecordOptions& options) {
  if (options.chat_template.empty() && !ChatTemplate::exists(options.tokenizer_folder)) return nullptr;
  return std::make_shared<ChatTemplate>(ChatTemplate::load(options.tokenizer_folder, options.chat_template));
}

}  // namespace

Records open_records(const std::vector<std::filesystem::path>& paths, const Tokenizer& tokenizer,
                     const RecordOptions& options) {
  Records records;
  TextSourceOptions source{.paths = paths, .mode = parse_document_mode(options.documents)};
  if (const auto layout = find_chat_layout(options.format)) {
    source.format = TextFormat::records;
    source.field = std::nullopt;
    records.format = std::make_unique<ChatRecords>(
        tokenizer, find_template(options),
        ChatRecordOptions{
            .layout = *layout, .loss_on = parse_loss_on(options.loss_on), .filter = options.filter});
  } else {
    source.format = parse_text_format(options.format);
    source.field = options.field;
    records.format = std::make_unique<PlainText>(tokenizer, options.ends, options.filter);
  }
  records.source = std::make_unique<TextSource>(std::move(source));
  return records;
}

}  // namespace stepforge
