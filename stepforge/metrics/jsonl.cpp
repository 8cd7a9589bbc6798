// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/jsonl.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 32;
constexpr JsonLimits kLineLimits = {.max_bytes = int64_t{1} << 20, .max_depth = 2};

bool is_fixed_field(std::string_view name) {
  return name == "kind" || name == "step" || name == "wall_time";
}

Json number_to_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json list_to_json(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(number_to_json(value));
  return list;
}

double number_from_json(const Json& value, const std::string& source, const std::string& field) {
  if (value.is_number()) return value.get<double>();
  if (value.is_null() || value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return JsonReader(value, source, field).number();  // throws
}

std::vector<double> list_from_json(const Json& list, const std::string& source, const std::string& field) {
  std::vector<double> values;
  for (const Json& value : list) values.push_back(number_from_json(value, source, field));
  return values;
}

/// One line of a file, and whether it ends with a line feed.
struct Line {
  std::string_view text;
  bool complete = false;
};

template <typename Action>
void for_each_line(std::string_view text, const Action& action) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const bool complete = end != std::string_view::npos;
    action(Line{text.substr(0, end), complete});
    text.remove_prefix(complete ? end + 1 : text.size());
  }
}

/// Where a partial last line of `text` begins, or its size if the last line is complete.
size_t complete_lines_size(std::string_view text) {
  const size_t last = text.rfind('\n');
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

std::string to_json_line(const MetricsRecord& record) {
  Json line = {{"kind", record.kind}, {"step", record.step}, {"wall_time", number_to_json(record.wall_time)}};
  const auto put = [&](const std::string& name, Json value) {
    if (is_fixed_field(name)) {
      throw Error(
          format("a metrics value must not be named \"{}\": each line has a field of that name", name));
    }
    line[name] = std::move(value);
  };
  for (const auto& [name, value] : record.values) put(name, number_to_json(value));
  for (const auto& [name, list] : record.lists) put(name, list_to_json(list));
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

MetricsRecord parse_json_line(std::string_view line, const std::string& source) {
  const Json json = parse_json(line, source, kLineLimits);
  const JsonReader reader(json, source);
  MetricsRecord record{reader["kind"].text(),
                       reader["step"].integer(),
                       number_from_json(reader["wall_time"].json(), source, "wall_time"),
                       {}};
  for (const auto& [name, value] : json.items()) {
    if (is_fixed_field(name)) continue;
    if (value.is_array()) {
      record.lists.emplace_back(name, list_from_json(value, source, name));
    } else {
      record.add(name, number_from_json(value, source, name));
    }
  }
  return record;
}

std::vector<MetricsRecord> read_jsonl(const fs::path& path) {
  const std::string file = read_file(path, kMaxFileBytes);
  std::vector<MetricsRecord> records;
  int64_t number = 0;
  for_each_line(file, [&](const Line& line) {
    ++number;
    try {
      records.push_back(parse_json_line(line.text, format("{}:{}", path.string(), number)));
    } catch (const FormatError&) {
      if (line.complete) throw;
    }
  });
  return records;
}

JsonlRewind rewind_jsonl(const fs::path& path, int64_t step, bool validate_again) {
  JsonlRewind result;
  if (!fs::exists(path)) return result;
  const std::string file = read_file(path, kMaxFileBytes);
  std::string kept;
  for_each_line(file, [&](const Line& line) {
    try {
      const MetricsRecord record = parse_json_line(line.text, path.string());
      if (record.step > step || (validate_again && record.step == step && record.kind == "validation")) {
        ++result.removed;
        return;
      }
      kept += line.text;
      kept += '\n';
      ++result.kept;
    } catch (const FormatError&) {
      ++result.damaged;
    }
  });
  if (kept != file) write_file_atomic(path, kept);
  return result;
}

JsonlSink::JsonlSink(const fs::path& path, Logger& logger) : path_(path), logger_(logger) {
  if (fs::is_regular_file(path)) {
    const std::string file = read_file(path, kMaxFileBytes);
    size_ = static_cast<int64_t>(complete_lines_size(file));
    partial_ = size_ != static_cast<int64_t>(file.size());
  }
  descriptor_ = open_to_write(path, O_WRONLY | O_APPEND);
  if (descriptor_ < 0) {
    throw Error(format("cannot write the metrics file {}: {}", path.string(), std::strerror(errno)));
  }
}

JsonlSink::~JsonlSink() {
  close(descriptor_);
  if (lost_ > 0) {
    logger_.warning("{} lacks {} records, which could not be written", path_.string(), lost_);
  }
}

bool JsonlSink::append(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

void JsonlSink::report_failure(std::string_view action) {
  if (!warned_) {
    logger_.warning("cannot {} {}: {}. Training continues; metrics are lost until there is space again",
                    action, path_.string(), std::strerror(errno));
  }
  warned_ = true;
}

void JsonlSink::write(const MetricsRecord& record) {
  const std::string line = to_json_line(record) + '\n';
  if (partial_) partial_ = ftruncate(descriptor_, size_) != 0;
  if (!partial_ && append(line)) {
    size_ += static_cast<int64_t>(line.size());
    return;
  }
  report_failure("write");
  ++lost_;
  // Truncating works even on a full disk; until the next write, readers see only complete lines.
  partial_ = ftruncate(descriptor_, size_) != 0;
}

void JsonlSink::flush() {
  if (fdatasync(descriptor_) != 0) report_failure("flush");
}

}  // namespace stepforge
