// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/records.h"

#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/records/chat_records.h"
#include "stepforge/records/dataset_info.h"
#include "stepforge/text/builtin_templates.h"

namespace stepforge {

namespace {

std::shared_ptr<const ChatTemplate> find_template(const RecordOptions& options, const Tokenizer& tokenizer) {
  if (options.chat_template.empty() && !ChatTemplate::exists(options.tokenizer_folder)) return nullptr;
  auto found =
      std::make_shared<ChatTemplate>(ChatTemplate::load(options.tokenizer_folder, options.chat_template));
  require_template_tokens(options.chat_template.string(), *found, tokenizer);
  return found;
}

void require_kind(const std::optional<ChatLayout>& layout, const RecordOptions& options) {
  const bool pairs = options.pairs;
  const bool holds_pairs = layout == ChatLayout::preference;
  const bool holds_judged = layout == ChatLayout::unpaired_preference;
  if (holds_judged && !options.unpaired)
    throw UsageError(
        "format \"unpaired_preference\" holds single answers that are judged, which a run with preference.loss = "
        "\"kto\" or \"apo_zero_unpaired\" learns from; set it, or use another format");
  if (!holds_judged && options.unpaired)
    throw UsageError(format(
        "preference.loss judges single answers, and these are {}; use data of format \"unpaired_preference\", or {}",
        holds_pairs ? "pairs of answers" : "texts without a label",
        holds_pairs ? "a loss of pairs, such as \"dpo\"" : "set preference.loss = \"none\""));
  if (holds_pairs && !pairs)
    throw UsageError(
        "format \"preference\" holds pairs of answers, which a run with preference.loss learns from; set it, for "
        "example to \"dpo\", or use another format");
  if (!holds_pairs && pairs)
    throw UsageError(
        "preference.loss compares pairs of answers, and these are single texts; use data of format "
        "\"preference\", or set preference.loss = \"none\"");
}

/// The options with what an entry of dataset_info.json says.
RecordOptions options_of(const DatasetEntry& entry, RecordOptions options) {
  if (!entry.layout && options.loss_on != "assistant")
    throw UsageError(
        format("loss_on = \"{}\": the data set \"{}\" holds texts, and only conversations have messages",
               options.loss_on, options.dataset));
  options.dataset.clear();
  options.format = entry.layout ? chat_layout_name(*entry.layout) : "records";
  options.field = entry.field;
  options.keys = entry.keys;
  return options;
}

}  // namespace

RecordFiles open_record_files(const std::vector<std::filesystem::path>& paths, const RecordOptions& options) {
  if (!options.dataset.empty()) {
    const DatasetEntry entry = find_dataset(paths.front(), options.dataset);
    RecordFiles files = open_record_files({entry.path}, options_of(entry, options));
    files.max_records = entry.max_records;
    return files;
  }
  TextSourceOptions source{.paths = paths, .mode = parse_document_mode(options.documents)};
  if (find_chat_layout(options.format)) {
    source.format = "records";
    source.field = std::nullopt;
  } else {
    source.format = options.format;
    source.field = options.field;
  }
  return {.source = std::make_unique<TextSource>(std::move(source)), .options = options};
}

std::unique_ptr<const RecordFormat> make_record_format(const Tokenizer& tokenizer,
                                                       const RecordOptions& options) {
  const auto layout = find_chat_layout(options.format);
  require_kind(layout, options);
  const bool judged = options.pairs || options.unpaired;
  if (!layout)
    return limited(std::make_unique<PlainText>(tokenizer, options.ends, options.filter), options.limit);
  if (judged && options.loss_on != "assistant")
    throw UsageError(
        format("loss_on = \"{}\": of preference data the answers count; remove it", options.loss_on));
  if (judged && options.limit.rule == TooLong::proportional)
    throw UsageError("too_long = \"proportional\": answers are judged as a whole; use \"drop\" or \"error\"");
  const ChatRecordOptions chat{.layout = *layout,
                               .loss_on = parse_loss_on(options.loss_on),
                               .keys = options.keys,
                               .filter = options.filter};
  DocumentLimit limit = options.limit;
  // Answers are judged as a whole.
  if (judged && limit.rule == TooLong::cut && limit.tokens > 0) limit.rule = TooLong::drop;
  return limited(std::make_unique<ChatRecords>(tokenizer, find_template(options, tokenizer), chat), limit);
}

Records open_records(const std::vector<std::filesystem::path>& paths, const Tokenizer& tokenizer,
                     const RecordOptions& options) {
  RecordFiles files = open_record_files(paths, options);
  return {.source = std::move(files.source),
          .format = make_record_format(tokenizer, files.options),
          .max_records = files.max_records};
}

}  // namespace stepforge
