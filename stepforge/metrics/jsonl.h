// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one JSON object per line: {"kind": "train", "step": 10, "wall_time": 1.7e9, "grad_norm": 0.5, ...},
// of numbers and lists of numbers. JSON has no NaN and no infinity; they are the strings "NaN", "Infinity" and
// "-Infinity".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/log.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/sink.h"

namespace stepforge {

/// One line, without the line feed. Doubles are written with enough digits to be read back exactly. Throws
/// Error if a value has the name of a fixed field (kind, step, wall_time).
std::string to_json_line(const MetricsRecord& record);

/// Throws FormatError naming `source`, the field and the error.
MetricsRecord parse_json_line(std::string_view line, const std::string& source);

/// All records of the file in order. A last line without a line feed that does not parse was truncated by a
/// crash and is skipped. Throws Error if the file cannot be read, FormatError with path and line number if
/// any other line is malformed.
std::vector<MetricsRecord> read_jsonl(const std::filesystem::path& path);

struct JsonlRewind {
  int64_t kept = 0;
  int64_t removed = 0;  ///< lines of steps that the resumed run repeats
  int64_t damaged = 0;  ///< lines that are not records (truncated by a crash); removed too
};

/// Keeps exactly the lines of steps up to `step`, byte for byte, so that after a resume from `step` the file
/// holds each step once. `validate_again`: the resumed run begins with the validation of `step`, so an
/// earlier one is removed. The file is replaced atomically, and only if anything changes; a missing file
/// stays missing. Throws Error.
JsonlRewind rewind_jsonl(const std::filesystem::path& path, int64_t step, bool validate_again = false);

/// Appends one line per record, each with its own write, so that a killed process loses none. A failed write
/// (a full disk) loses the record: there is one warning, and the number of lost records is logged at the end.
/// No partial line stays in the file, and the next record is tried again.
class JsonlSink : public MetricsSink {
 public:
  /// Appends to `path`; a partial last line is removed first. Throws Error if it cannot be opened. `logger`
  /// must outlive the sink.
  JsonlSink(const std::filesystem::path& path, Logger& logger);
  ~JsonlSink() override;

  std::string name() const override { return path_.filename().string(); }
  void write(const MetricsRecord& record) override;
  void flush() override;
  int64_t lost() const { return lost_; }

 private:
  bool append(std::string_view bytes) const;
  void report_failure(std::string_view action);

  std::filesystem::path path_;
  Logger& logger_;
  int descriptor_ = -1;
  int64_t size_ = 0;      ///< length of the file up to the last complete line
  bool partial_ = false;  ///< there may be a partial line after size_
  bool warned_ = false;
  int64_t lost_ = 0;
};

}  // namespace stepforge
