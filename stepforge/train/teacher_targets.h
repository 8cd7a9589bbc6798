// SPDX-License-Identifier: Apache-2.0
// The file of what a teacher predicts for the training data (the section [distillation]):
//
//   "offsets"  I64 [rows + 1]        row r, of all sources one after the other, has labels [offsets[r], offsets[r + 1])
//   "targets"  F32 [labels, 2, k]    of each label the ids of the k most probable tokens, and their log-probabilities at
//                                    distillation.temperature
//
// The probabilities of a label sum to 1. Ids are below 2^24, so that fp32 holds them exactly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/staged.h"
#include "stepforge/data/row_stream.h"
#include "stepforge/kernels/soft_targets.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// What the targets belong to.
struct TargetsIdentity {
  std::string data;     ///< of the rows and the tokenizer
  std::string teacher;  ///< of its weights; "" if they are not known now
  int64_t top_k = 0;
  double temperature = 1.0;  ///< of the log-probabilities
};

/// "offsets" of the rows of all sources, of which it reads every one; `report` is called after each.
std::vector<int64_t> labels_before_rows(const RowStream& every_row, const std::function<void()>& report);

/// Writes the file; it appears when it is complete.
class TargetsWriter {
 public:
  /// `offsets`: labels_before_rows(). Throws Error if the file cannot be written.
  TargetsWriter(const std::filesystem::path& file, const TargetsIdentity& identity,
                const std::vector<int64_t>& offsets);

  /// The next bytes of "targets".
  void add(std::string_view bytes);
  void publish();

 private:
  Staging staging_;
  SafetensorsWriter writer_;
};

/// Reads targets, from several threads.
class TeacherTargets {
 public:
  /// `every_row`: of the training data. Throws UsageError if the file is of other data, another teacher, top_k or temperature; FormatError
  /// if it is no such file.
  TeacherTargets(const std::filesystem::path& file, const TargetsIdentity& identity,
                 std::shared_ptr<const RowStream> every_row);

  /// ids and log_probs of the tokens of a batch, [tokens, k], on the host; zeros where there is no label, or a loader has masked
  /// it. Throws Error if the labels of a row are not those of the file.
  SoftTargets of(const Batch& batch) const;
  int64_t labels() const { return offsets_.back(); }

 private:
  void read_row(const Batch& batch, int64_t row, const SoftTargets& targets) const;

  std::shared_ptr<const RowStream> rows_;
  SafetensorsFile file_;
  int64_t top_k_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> first_rows_;  ///< of each source
};

}  // namespace stepforge
