// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/build_report.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Counts from a file are below this, so that sums and products of them do not overflow.
constexpr int64_t kMaxCount = int64_t{1} << 50;
constexpr size_t kMaxReasons = 1000;

int64_t count_of(const JsonReader& json) {
  return json.integer(0, kMaxCount);
}

Json sizes_json(int64_t documents, int64_t tokens, int64_t text_bytes) {
  return {{"documents", documents}, {"tokens", tokens}, {"text_bytes", text_bytes}};
}

Json to_json(const DatasetStatistics& sizes) {
  return sizes_json(sizes.documents, sizes.tokens, sizes.text_bytes);
}

DatasetStatistics statistics_from(const JsonReader& json) {
  return {count_of(json["documents"]), count_of(json["tokens"]), count_of(json["text_bytes"])};
}

Json to_json(const LossesByReason& losses) {
  Json json = Json::object();
  for (const auto& [reason, lost] : losses)
    json[reason] = sizes_json(lost.documents, lost.tokens, lost.text_bytes);
  return json;
}

LossesByReason losses_from(const JsonReader& json) {
  LossesByReason losses;
  if (json.object().json().size() > kMaxReasons) json.fail("too many reasons");
  for (const auto& [reason, unused] : json.json().items()) {
    const JsonReader sizes = json[reason];
    losses[reason] = {count_of(sizes["documents"]), count_of(sizes["tokens"]), count_of(sizes["text_bytes"])};
  }
  return losses;
}

/// "3 documents (1,200 tokens)"
std::string amount(const LostText& lost) {
  std::string text = format("{} document{}", with_thousands(lost.documents), lost.documents == 1 ? "" : "s");
  if (lost.tokens > 0) text += format(" ({} tokens)", with_thousands(lost.tokens));
  return text;
}

void append_losses(std::string& text, const char* title, const LossesByReason& losses) {
  if (losses.empty()) return;
  text += format("{:<22}{:>14}{:>16}{:>18}\n", title, "documents", "tokens", "bytes of text");
  for (const auto& [reason, lost] : losses) {
    text += format("  {:<20}{:>14}{:>16}{:>18}\n", reason, with_thousands(lost.documents),
                   lost.tokens > 0 ? with_thousands(lost.tokens) : "-",
                   lost.text_bytes > 0 ? with_thousands(lost.text_bytes) : "-");
  }
}

void append_lengths(std::string& text, const LengthHistogram& lengths) {
  text += format("{:<22}{:>14}\n", "length in tokens", "documents");
  for (size_t k = 0; k < lengths.size(); ++k) {
    if (lengths[k] == 0) continue;
    const int64_t end = int64_t{1} << k;
    text += format("  {:<20}{:>14}\n", k == 0 ? "0" : format("{} to {}", end / 2, end - 1),
                   with_thousands(lengths[k]));
  }
}

}  // namespace

Json to_json(const TokenizeResult& result) {
  const auto last =
      std::find_if(result.lengths.rbegin(), result.lengths.rend(), [](int64_t n) { return n > 0; });
  return {{"train", to_json(result.train)},
          {"validation", to_json(result.validation)},
          {"lengths", std::vector<int64_t>(result.lengths.begin(), last.base())},
          {"dropped", to_json(result.dropped)},
          {"cut", to_json(result.cut)},
          {"bad_records", result.bad_records}};
}

TokenizeResult tokenize_result_from(const JsonReader& json) {
  TokenizeResult result;
  result.train = statistics_from(json["train"]);
  result.validation = statistics_from(json["validation"]);
  const JsonReader lengths = json["lengths"];
  if (lengths.size() > result.lengths.size()) lengths.fail("too many lengths");
  for (size_t k = 0; k < lengths.size(); ++k) result.lengths[k] = count_of(lengths.at(k));
  result.dropped = losses_from(json["dropped"]);
  result.cut = losses_from(json["cut"]);
  const JsonReader records = json["bad_records"];
  if (records.size() > kNamedRecords) records.fail("too many records");
  for (size_t i = 0; i < records.size(); ++i) result.bad_records.push_back(records.at(i).text());
  return result;
}

void require_few_bad_records(const TokenizeResult& result, int64_t most) {
  const auto lost = result.dropped.find(kMalformed);
  if (lost == result.dropped.end() || lost->second.documents <= most) return;
  const std::string first = result.bad_records.empty() ? "unknown" : result.bad_records.front();
  throw FormatError(format("more than {} malformed records (max_bad_records); the first: {}", most, first));
}

std::vector<std::string> loss_notes(const TokenizeResult& result) {
  std::vector<std::string> notes;
  for (const auto& [reason, lost] : result.dropped)
    notes.push_back(format("dropped, {}: {}", reason, amount(lost)));
  for (const auto& [reason, lost] : result.cut) notes.push_back(format("cut, {}: {}", reason, amount(lost)));
  for (const std::string& record : result.bad_records) notes.push_back("skipped " + record);
  return notes;
}

std::string report_text(const TokenizeResult& result) {
  std::string text;
  append_losses(text, "dropped", result.dropped);
  append_losses(text, "cut", result.cut);
  append_lengths(text, result.lengths);
  for (const std::string& record : result.bad_records) text += "skipped " + record + "\n";
  return text;
}

}  // namespace stepforge
