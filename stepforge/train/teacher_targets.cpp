// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/teacher_targets.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/context_part.h"

namespace stepforge {

namespace {

constexpr const char* kOffsets = "offsets";
constexpr const char* kTargets = "targets";
constexpr const char* kOfData = "data";
constexpr const char* kOfTeacher = "teacher";
constexpr const char* kTemperature = "temperature";
constexpr const char* kStartAnew =
    "a new run has a folder of its own; in this one, remove the file to compute it again";

std::vector<TensorSpec> specs_of(const std::vector<int64_t>& offsets, int64_t top_k) {
  return {{kOffsets, DType::i64, {std::ssize(offsets)}}, {kTargets, DType::f32, {offsets.back(), 2, top_k}}};
}

const TensorEntry& entry_of_file(const SafetensorsFile& file, const char* name) {
  const TensorEntry* const entry = file.find(name);
  if (entry == nullptr)
    throw FormatError(format("{}: there is no tensor \"{}\"", file.path().string(), name));
  return *entry;
}

std::vector<int64_t> offsets_of(const SafetensorsFile& file, int64_t rows) {
  const TensorEntry& entry = entry_of_file(file, kOffsets);
  if (entry.dtype != DType::i64 || entry.shape != std::vector<int64_t>{rows + 1})
    throw FormatError(
        format("{}: \"{}\" is not I64 of {} numbers", file.path().string(), kOffsets, rows + 1));
  std::vector<int64_t> offsets(static_cast<size_t>(rows) + 1);
  file.read(entry, 0, std::as_writable_bytes(std::span(offsets)));
  if (offsets.front() != 0 || !std::ranges::is_sorted(offsets))
    throw FormatError(format("{}: \"{}\" does not ascend from 0", file.path().string(), kOffsets));
  return offsets;
}

std::string stored_text(const SafetensorsFile& file, const char* key) {
  const SafetensorsMetadata metadata = file.metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

void require_identity(const SafetensorsFile& file, const TargetsIdentity& identity) {
  const auto refuse = [&](std::string_view what) {
    throw UsageError(
        format("{} has the predictions of a teacher {}; {}", file.path().string(), what, kStartAnew));
  };
  if (stored_text(file, kOfData) != identity.data) refuse("for other data, rows or another tokenizer");
  if (!identity.teacher.empty() && stored_text(file, kOfTeacher) != identity.teacher)
    refuse(
        "that is not the one of distillation.teacher as it is now; if that is a run, name the checkpoint that it "
        "then had");
  const std::vector<int64_t>& shape = entry_of_file(file, kTargets).shape;
  if (shape.size() == 3 && shape[2] != identity.top_k)
    refuse(format("with {} tokens for each label, and distillation.top_k = {}", shape[2], identity.top_k));
  const std::string stored = stored_text(file, kTemperature);
  const std::string temperature = stored.empty() ? "1" : stored;  // of files from before there was one
  if (temperature != format("{}", identity.temperature))
    refuse(format("at temperature {}, and distillation.temperature = {}", temperature, identity.temperature));
}

/// Of each token of a row the number of its label among those of the row; -1 without a label.
std::vector<int64_t> numbers_of_labels(const std::vector<int32_t>& labels) {
  std::vector<int64_t> numbers;
  int64_t next = 0;
  for (const int32_t label : labels) numbers.push_back(label == kIgnoredLabel ? -1 : next++);
  return numbers;
}

/// Rows are made again as a whole: a batch may have a part of each.
Batch whole_row(const RowSource& source, int64_t number) {
  Row row;
  source.read(number, row);
  Batch whole = empty_batch(source.seq_len(), 1);
  append_row(row, 0, whole);
  return whole;
}

}  // namespace

std::vector<int64_t> labels_before_rows(const RowStream& every_row, const std::function<void()>& report) {
  std::vector<int64_t> offsets = {0};
  for (const SourceTree::Leaf& leaf : every_row.sources()) {
    for (int64_t number = 0; number < leaf.source->rows(); ++number) {
      offsets.push_back(offsets.back() + whole_row(*leaf.source, number).valid_labels);
      report();
    }
  }
  return offsets;
}

TargetsWriter::TargetsWriter(const std::filesystem::path& file, const TargetsIdentity& identity,
                             const std::vector<int64_t>& offsets)
    : staging_(file, Staging::Kind::file),
      writer_(staging_.path(), specs_of(offsets, identity.top_k),
              {{kOfData, identity.data},
               {kOfTeacher, identity.teacher},
               {kTemperature, format("{}", identity.temperature)}}) {
  writer_.write(kOffsets, std::as_bytes(std::span(offsets)));
}

void TargetsWriter::add(std::string_view bytes) {
  if (!bytes.empty()) writer_.write(kTargets, std::as_bytes(std::span(bytes)));
}

void TargetsWriter::publish() {
  writer_.finish();
  staging_.publish();
}

TeacherTargets::TeacherTargets(const std::filesystem::path& file, const TargetsIdentity& identity,
                               std::shared_ptr<const RowStream> every_row)
    : rows_(std::move(every_row)), file_(file), top_k_(identity.top_k) {
  require_identity(file_, identity);
  int64_t rows = 0;
  for (const SourceTree::Leaf& leaf : rows_->sources()) {
    first_rows_.push_back(rows);
    rows += leaf.source->rows();
  }
  offsets_ = offsets_of(file_, rows);
  const TensorEntry& targets = entry_of_file(file_, kTargets);
  if (targets.dtype != DType::f32 || targets.shape != std::vector<int64_t>{labels(), 2, top_k_})
    throw FormatError(format("{}: \"{}\" is not F32 [{}, 2, {}]", file.string(), kTargets, labels(), top_k_));
}

SoftTargets TeacherTargets::of(const Batch& batch) const {
  const std::vector<int64_t> shape = {batch.rows * batch.seq_len, top_k_};
  SoftTargets targets;
  targets.ids = at::zeros(shape, at::device(at::kCPU).dtype(at::kInt));
  targets.log_probs = at::zeros(shape, at::device(at::kCPU).dtype(at::kFloat));
  for (int64_t row = 0; row < batch.rows; ++row)
    if (batch.sources.at(static_cast<size_t>(row)) != kNoSource) read_row(batch, row, targets);
  return targets;
}

void TeacherTargets::read_row(const Batch& batch, int64_t row, const SoftTargets& targets) const {
  const auto source = static_cast<size_t>(batch.sources.at(static_cast<size_t>(row)));
  const int64_t number = batch.source_rows.at(static_cast<size_t>(row));
  const Batch whole = whole_row(*rows_->sources().at(source).source, number);
  const auto place = static_cast<size_t>(first_rows_.at(source) + number);
  const int64_t first = offsets_.at(place);
  const auto refuse = [&] {
    throw Error(format("row {} of source {} has other labels than its teacher in {}", number, source,
                       file_.path().string()));
  };
  if (offsets_.at(place + 1) - first != whole.valid_labels) refuse();
  const auto width = static_cast<size_t>(2 * top_k_);
  std::vector<float> stored(static_cast<size_t>(whole.valid_labels) * width);
  file_.read(entry_of_file(file_, kTargets), first * static_cast<int64_t>(width * sizeof(float)),
             std::as_writable_bytes(std::span(stored)));
  const std::vector<int64_t> numbers = numbers_of_labels(whole.labels);
  int64_t token = row * batch.seq_len;
  for (const TokenRange& range : token_ranges(batch.part, batch.row_length())) {
    for (int64_t i = range.begin; i < range.begin + range.size; ++i, ++token) {
      const auto at = static_cast<size_t>(i);
      const int32_t label = batch.labels.at(static_cast<size_t>(token));
      if (label == kIgnoredLabel) continue;  // or masked by the loader
      if (label != whole.labels.at(at)) refuse();
      const float* const from = stored.data() + static_cast<size_t>(numbers[at]) * width;
      auto* const ids = targets.ids.mutable_data_ptr<int32_t>() + token * top_k_;
      for (int64_t k = 0; k < top_k_; ++k) ids[k] = static_cast<int32_t>(from[k]);
      std::copy_n(from + top_k_, top_k_, targets.log_probs.mutable_data_ptr<float>() + token * top_k_);
    }
  }
}

}  // namespace stepforge
