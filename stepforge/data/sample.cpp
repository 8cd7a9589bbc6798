// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/sample.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/dataset/indexed_dataset.h"
#include "stepforge/dataset/token_shards.h"

namespace stepforge {

namespace {

/// Reads record `number`; throws UsageError if there are fewer.
std::string find_record(const TextSource& source, int64_t number) {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;
  int64_t passed = 0;
  std::string found;
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, kBlockBytes);
    while (const auto chunk = chunks->next()) {
      source.read(*chunk, [&](std::string_view record) {
        if (passed++ == number) found = record;
      });
      if (passed > number) return found;
    }
  }
  throw UsageError(
      format("--sample {}: {} has {} samples, numbered from 0", number, source.description(), passed));
}

std::string indented(const std::string& record) {
  try {
    return parse_json(record, "the record").dump(2, ' ', false, Json::error_handler_t::replace);
  } catch (const FormatError&) {
    return record;
  }
}

/// Reads a sample of text or conversations.
class SampleReader {
 public:
  SampleReader(const DataPlan& plan, const RecordFiles& files, const Tokenizer& tokenizer)
      : plan_(plan), files_(files), tokenizer_(tokenizer) {}

  void read(Sample& sample) const {
    const std::string record = find_record(*files_.source, sample.number);
    const bool is_chat = find_chat_layout(files_.options.format).has_value();
    sample.record = is_chat ? indented(record) : record;
    if (files_.max_records > 0 && sample.number >= files_.max_records)
      sample.notes.push_back(
          format("not used: the entry of dataset_info.json takes {} samples", files_.max_records));
    try {
      encode(record, sample);
    } catch (const FormatError& fault) {
      sample.notes.push_back(format("refused: {}", fault.what()));
    }
  }

 private:
  EncodedDocuments encoded(const std::string& record, const DocumentLimit& limit) const {
    RecordOptions options = files_.options;
    options.limit = limit;
    options.unpaired = find_chat_layout(options.format) == ChatLayout::unpaired_preference;
    const auto format = make_record_format(tokenizer_, options);
    EncodedDocuments documents;
    format->encoder()->append(record, documents);
    if (documents.counted.empty()) documents.counted.assign(documents.tokens.size(), 1);
    return documents;
  }

  void encode(const std::string& record, Sample& sample) const {
    if (find_chat_layout(files_.options.format) == ChatLayout::preference) {
      sample.pair = read_preference(parse_json(record, "the record"), files_.options.keys);
      return;
    }
    EncodedDocuments whole = encoded(record, {});
    for (const auto& [reason, lost] : whole.dropped) sample.notes.push_back(format("left out: {}", reason));
    if (!whole.dropped.empty()) return;
    sample.tokens = std::move(whole.tokens);
    sample.counted = std::move(whole.counted);
    const bool is_judged = find_chat_layout(files_.options.format) == ChatLayout::unpaired_preference;
    if (is_judged)
      sample.notes.push_back(
          format("the answer is {}", sample.counted.front() == 0 ? "desirable" : "undesirable"));
    const int64_t length = std::ssize(sample.tokens);
    const DocumentLimit& limit = files_.options.limit;
    if (limit.rule == TooLong::cut && !is_judged) return note_packing(length, sample);
    const EncodedDocuments used = encoded(record, limit);
    for (const auto& [reason, lost] : used.dropped)
      sample.notes.push_back(
          format("left out: {}; it has {} tokens, and a row {}", reason, length, limit.tokens));
    for (const auto& [reason, lost] : used.cut) {
      sample.notes.push_back(format("cut: {}; {} of its {} tokens do not fit into a row of {}", reason,
                                    lost.tokens, length, limit.tokens));
      sample.tokens = used.tokens;
      sample.counted = used.counted;
    }
  }

  /// What packing cuts off whole documents.
  void note_packing(int64_t length, Sample& sample) const {
    const bool is_whole = plan_.packing != Packing::concat && plan_.packing != Packing::hard &&
                          plan_.packing != Packing::preset;
    if (is_whole && length > plan_.seq_len)
      sample.notes.push_back(
          format("cut: it has {} tokens, of which a row takes the first {}", length, plan_.seq_len));
  }

  const DataPlan& plan_;
  const RecordFiles& files_;
  const Tokenizer& tokenizer_;
};

void read_indexed(const SourceSpec& spec, const Tokenizer& tokenizer, Sample& sample) {
  const auto opened = open_finished_dataset(spec.path, spec.format, tokenizer.eos_id());
  const IndexedDataset& dataset = *opened;
  const DatasetIndex& index = dataset.index();
  if (sample.number >= index.documents())
    throw UsageError(format("--sample {}: {} has {} samples, numbered from 0", sample.number, spec.path,
                            index.documents()));
  const int64_t begin = index.document_begin(sample.number);
  Row row;
  dataset.append(begin, index.document_begin(sample.number + 1) - begin, tokenizer.vocab_size(), row);
  sample.tokens = std::move(row.tokens);
  sample.counted = std::move(row.counted);
  sample.counted.resize(sample.tokens.size(), 1);
}

}  // namespace

const SourceSpec& find_source(const std::vector<SourceSpec>& sources, const std::string& name) {
  std::vector<std::string> known;
  std::vector<const SourceSpec*> found;
  for (size_t i = 0; i < sources.size(); ++i) {
    const SourceSpec& spec = sources[i];
    const std::string& called = spec.name.empty() ? spec.dataset : spec.name;
    const std::string title = called.empty() ? spec.path : format("{} ({})", called, spec.path);
    known.push_back(format("{}: {}", i, title.empty() ? spec.format : title));
    if (name == std::to_string(i)) return spec;
    const bool is_named = name == spec.path || name == std::filesystem::path(spec.path).filename() ||
                          (!name.empty() && (name == spec.dataset || name == spec.name));
    if (is_named) found.push_back(&spec);
  }
  if (found.size() == 1) return *found.front();
  throw UsageError(format("--source {}: {}; the sources are {}", name,
                          found.empty() ? "there is none of this name" : "more than one has this name",
                          join(known, ", ")));
}

Sample read_sample(const DataPlan& plan, const SourceSpec& spec, int64_t number, const Tokenizer& tokenizer) {
  if (number < 0) throw UsageError(format("--sample {}: samples are numbered from 0", number));
  if (spec.open)
    throw UsageError(
        "--sample: the rows of a plug-in's data source have no samples; leave it out to see rows");
  if (spec.format == "synthetic")
    throw UsageError("--sample: synthetic rows have no samples; leave it out to see rows");
  Sample sample{.source = spec.path,
                .number = number,
                .record = "",
                .pair = std::nullopt,
                .tokens = {},
                .counted = {},
                .notes = {}};
  if (is_indexed(spec)) {
    read_indexed(spec, tokenizer, sample);
  } else {
    SampleReader(plan, open_record_files({spec.path}, record_options(plan, spec)), tokenizer).read(sample);
  }
  return sample;
}

}  // namespace stepforge
