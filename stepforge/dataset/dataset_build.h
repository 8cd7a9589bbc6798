// SPDX-License-Identifier: Apache-2.0
// Builds datasets from text, for `stepforge data build` and for the cache of a run. A build that was killed is continued
// by the next one; an output appears when it is complete.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "stepforge/dataset/dataset_description.h"
#include "stepforge/dataset/tokenize.h"
#include "stepforge/records/record_format.h"
#include "stepforge/records/text_source.h"

namespace stepforge {

/// The names of the pairs in the folder of a build; the second only if documents are held out.
inline constexpr const char* kTrainPart = "train";
inline constexpr const char* kValidationPart = "validation";
/// In that folder: says that the build is complete.
inline constexpr const char* kFinishedFile = "finished.json";

/// What is to be built.
class DatasetBuild {
 public:
  /// Reads every byte of the source, to hash it. All must outlive this.
  DatasetBuild(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options);

  /// The name of the result: equal builds make equal files.
  const std::string& fingerprint() const { return description_.build; }
  bool holds_out() const { return options_.split.fraction > 0.0; }
  const TextSource& source() const { return source_; }
  bool has_loss_mask() const { return records_.has_loss_mask(); }

  /// Builds the pairs and their descriptions in `folder`, from where an earlier call with an equal build stopped in it.
  /// A folder that was finished is left as it is. If the input is at fault (FormatError, UsageError), the folder is deleted:
  /// the same text would fail again. Throws what tokenize() throws.
  void run(const std::filesystem::path& folder, const TokenizeProgressFunction& progress) const;

  /// Throws FormatError if the finished pair left out more malformed records than allowed here: its build may have allowed
  /// more, which does not change the name of the result.
  void require_few_bad_records(const std::filesystem::path& prefix) const;

  /// Whether run() has finished in this folder.
  bool is_finished(const std::filesystem::path& folder) const;

 private:
  const TextSource& source_;
  const RecordFormat& records_;
  const TokenizeOptions& options_;
  DatasetDescription description_;
};

/// The pairs that `data build` writes.
struct DatasetOutput {
  std::filesystem::path train;       ///< prefix
  std::filesystem::path validation;  ///< prefix; used if documents are held out
};

/// Writes the pairs, each with its description, and returns true; false if they exist already as this build makes them.
/// An interrupted build leaves "<train>.partial", which the next call continues if it is the same build. The .idx of the
/// training pair appears last. `progress` also tells of waiting for another process that writes the same pairs.
/// Throws UsageError if other files have these names, unless `overwrite`; and what DatasetBuild::run throws.
bool build_dataset(const DatasetBuild& build, const DatasetOutput& output, bool overwrite,
                   const TokenizeProgressFunction& progress);

}  // namespace stepforge
