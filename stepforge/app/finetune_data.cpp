// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/finetune_data.h"

#include <algorithm>
#include <cmath>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/records/preference.h"
#include "stepforge/records/text_source.h"

namespace stepforge {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 18;
constexpr size_t kMaxQuestions = 2000;

/// Whether the value is a list of tables whose first has both keys.
bool has_turns(const Json& record, const char* list, const char* role, const char* content) {
  const auto found = record.find(list);
  return found != record.end() && found->is_array() && !found->empty() && found->front().is_object() &&
         found->front().contains(role) && found->front().contains(content);
}

std::vector<std::string> keys_of(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) keys.push_back(key);
  return keys;
}

/// The first document of the files, and whether it is a record.
struct FirstDocument {
  std::string text = {};
  std::string file;
  bool is_record = false;
};

FirstDocument first_document(const std::filesystem::path& path) {
  const TextSource source({.paths = {path}, .field = std::nullopt});
  for (size_t file = 0; file < source.files().size(); ++file) {
    const TextFile& opened = source.files()[file];
    FirstDocument first{.file = opened.path.string(), .is_record = opened.format->read != nullptr};
    if (!first.is_record) return first;
    const auto chunks = source.chunks(file, kChunkBytes);
    while (const auto chunk = chunks->next()) {
      bool found = false;
      source.read(*chunk, [&](std::string_view document) {
        if (!found) first.text = document;
        found = true;
      });
      if (found) return first;
    }
  }
  throw UsageError(format("{} has no document", path.string()));
}

std::string first_question(const Json& messages) {
  for (const Json& message : messages) {
    const auto content = message.find("content");
    if (message["role"] == "user" && content != message.end() && content->is_string())
      return content->get<std::string>();
  }
  return "";
}

/// What the user says first, if it is a text; "" otherwise.
std::string question_of(std::string_view record, ChatLayout layout, const ChatKeys& keys) {
  const Json parsed = parse_json(record, "the record");
  if (layout == ChatLayout::preference) {
    const Json prompt = read_preference(parsed, keys).prompt;
    return prompt.is_string() ? prompt.get<std::string>() : first_question(prompt);
  }
  const Conversation conversation = layout == ChatLayout::unpaired_preference
                                        ? read_judged_answer(parsed, keys).conversation
                                        : read_conversation(parsed, layout, LossOn::assistant, keys);
  return conversation.prompt ? *conversation.prompt : first_question(conversation.messages);
}

/// Reads documents until there are enough.
class Study {
 public:
  Study(const RecordFormat& records, const RecordOptions& options, int64_t limit)
      : encoder_(records.encoder()),
        options_(options),
        layout_(find_chat_layout(options.format)),
        limit_(limit) {}

  bool is_full() const { return std::ssize(result.lengths) >= limit_; }

  void add(std::string_view document) {
    if (is_full()) return;
    EncodedDocuments encoded;
    encoder_->append(document, encoded);
    int64_t begin = 0;
    for (const int64_t end : encoded.ends) result.lengths.push_back(end - std::exchange(begin, end));
    if (!layout_ || result.questions.size() >= kMaxQuestions || encoded.ends.empty()) return;
    std::string question = question_of(document, *layout_, options_.keys);
    if (!question.empty()) result.questions.push_back({hash128(document), std::move(question)});
  }

  DataStudy result;

 private:
  std::unique_ptr<RecordEncoder> encoder_;
  const RecordOptions& options_;
  std::optional<ChatLayout> layout_;
  int64_t limit_;
};

}  // namespace

FoundFormat format_of_record(const Json& record, const std::string& place) {
  const auto has = [&](const char* key) { return record.contains(key); };
  if (has("chosen") && has("rejected"))
    return {.layout = ChatLayout::preference,
            .takes_no_template = read_preference(record).prompt.is_string(),
            .because = "its records have chosen and rejected answers"};
  for (const char* label : {"label", "kto_tag"}) {
    if (!has(label)) continue;
    const Json& value = record[label];
    // A label that is a number may be a class.
    const bool is_judged = label == std::string_view("kto_tag")
                               ? value.is_boolean() || value == 0 || value == 1
                               : value.is_boolean() && !has("text");
    if (is_judged)
      return {.layout = ChatLayout::unpaired_preference,
              .takes_no_template = read_judged_answer(record).conversation.prompt.has_value(),
              .because = format("its records have answers, and {} says whether they are desirable", label)};
  }
  for (const char* list : {"messages", "conversations", "dialogs"}) {
    if (has_turns(record, list, "role", "content"))
      return {.layout = ChatLayout::messages,
              .because = format("its records have {} with role and content", list)};
    if (has_turns(record, list, "from", "value"))
      return {.layout = ChatLayout::sharegpt,
              .because = format("its records have {} with from and value", list)};
  }
  if (has("instruction") && has("output"))
    return {.layout = ChatLayout::alpaca, .because = "its records have instruction and output"};
  if (has("prompt") && has("completion"))
    return {.layout = ChatLayout::prompt_completion, .because = "its records have prompt and completion"};
  if (has("text")) return {.because = "its records have a text"};
  throw UsageError(format(
      "{}: no format has the keys {}; expected messages, conversations, instruction and output, prompt and "
      "completion, or text; name the field of a text with data.sources.0.field=NAME",
      place, join(keys_of(record), ", ")));
}

FoundFormat find_format(const std::filesystem::path& path) {
  const FirstDocument first = first_document(path);
  if (!first.is_record) return {.is_plain = true, .because = "it is plain text"};
  const Json record = parse_json(first.text, first.file);
  if (!record.is_object()) throw UsageError(format("{}: its first record is not a JSON object", first.file));
  return format_of_record(record, first.file);
}

int64_t DataStudy::length_of(double share) const {
  const auto count = static_cast<double>(lengths.size());
  const auto index = static_cast<size_t>(std::ceil(share * count)) - 1;
  return lengths.at(std::min(index, lengths.size() - 1));
}

DataStudy study_data(const std::filesystem::path& path, const RecordOptions& options,
                     const Tokenizer& tokenizer, int64_t limit) {
  const Records records = open_records({path}, tokenizer, options);
  Study study(*records.format, options, limit);
  int64_t bytes = 0;
  for (size_t file = 0; file < records.source->files().size() && !study.is_full(); ++file) {
    const auto chunks = records.source->chunks(file, kChunkBytes);
    int64_t of_file = 0;
    while (!study.is_full()) {
      const auto chunk = chunks->next();
      if (!chunk) break;
      records.source->read(*chunk, [&](std::string_view document) { study.add(document); });
      of_file = chunk->file_bytes;
    }
    bytes += of_file;
  }
  DataStudy result = std::move(study.result);
  if (result.lengths.empty()) throw UsageError(format("{} has no document", path.string()));
  result.is_whole = std::ssize(result.lengths) < limit;
  result.documents = std::ssize(result.lengths);
  if (!result.is_whole && bytes > 0) {
    const double share = static_cast<double>(records.source->total_bytes()) / static_cast<double>(bytes);
    result.documents = std::llround(static_cast<double>(result.documents) * std::max(1.0, share));
  }
  std::ranges::sort(result.lengths);
  return result;
}

}  // namespace stepforge
