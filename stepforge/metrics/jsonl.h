// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one record a line, flat: {"kind": "train", "step": 10, "wall_time": 1.7e9, "grad_norm": 0.5,
// ...}. JSON has no NaN and no infinity; they are the strings "NaN", "Infinity" and "-Infinity".
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

/// Without the end of line. Doubles are written with as many digits as reading them back exactly needs.
/// Throws Error if a value is named like one of the line's own fields (kind, step, wall_time).
std::string to_json_line(const MetricsRecord& record);

/// Throws FormatError naming `source` and the fault.
MetricsRecord parse_json_line(std::string_view line, const std::string& source);

/// All records of the file in order. A last line that has no line end and does not parse was cut short by a
/// crash and is left out. Throws Error if the file cannot be read, FormatError with path and line number if any
/// other line is malformed.
std::vector<MetricsRecord> read_jsonl(const std::filesystem::path& path);

struct JsonlRewind {
  int64_t kept = 0;
  int64_t removed = 0;  ///< lines of steps that the resumed run does again
  int64_t damaged = 0;  ///< lines that are not records (cut short by a crash); removed too
};

/// Keeps exactly the lines of steps up to `step`, byte for byte, so that after a resume from `step` the file
/// holds each step once. `validate_again`: the resumed run begins with the validation of `step`, so that an
/// earlier one is removed. The file is replaced atomically, and only if anything changes; a missing file stays
/// missing. Throws Error.
JsonlRewind rewind_jsonl(const std::filesystem::path& path, int64_t step, bool validate_again = false);

/// Appends a line per record and passes each to the system at once, so that a killed process loses none. A
/// failed write (a full disk) loses the record, with one warning, and the number of lost records is logged at
/// the end; the next record is tried again, and no partial line stays in the file.
class JsonlSink : public MetricsSink {
 public:
  /// Appends to `path`; a partial last line is removed first. Throws Error if it cannot be opened. `logger` must
  /// outlive the sink.
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
  int64_t size_ = 0;   ///< length of the file up to the last whole line
  bool torn_ = false;  ///< a failed write may have left a partial line behind size_
  bool warned_ = false;
  int64_t lost_ = 0;
};

}  // namespace stepforge
