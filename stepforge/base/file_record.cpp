// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/file_record.h"

#include <set>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

bool is_hash(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

FileRecord file_record(const fs::path& path) {
  return {path.filename().string(), file_bytes(path), file_hash(path)};
}

Json file_records_to_json(const std::vector<FileRecord>& files) {
  Json json = Json::array();
  for (const FileRecord& file : files) {
    json.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  return json;
}

std::vector<FileRecord> file_records_from_json(const JsonReader& entries) {
  std::vector<FileRecord> files;
  std::set<std::string> names;
  int64_t total = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const JsonReader entry = entries.at(i);
    const FileRecord file = {entry["name"].text(), entry["bytes"].count(), entry["hash"].text()};
    if (!is_plain_file_name(file.name)) entry["name"].refuse("expected a plain file name");
    if (!is_hash(file.hash)) entry["hash"].refuse("expected 32 hex digits");
    if (!names.insert(file.name).second) entry["name"].refuse("this file is listed twice");
    if (__builtin_add_overflow(total, file.bytes, &total)) {
      entry["bytes"].refuse("the files add up to 2^63 bytes or more");
    }
    files.push_back(file);
  }
  return files;
}

std::string file_fault(const fs::path& path, const FileRecord& record,
                       const std::function<void()>& on_chunk) {
  if (!is_regular_file_itself(path)) {
    return fs::exists(fs::symlink_status(path)) ? "not a regular file" : "missing";
  }
  const int64_t bytes = file_bytes(path);
  if (bytes < record.bytes) return format("truncated: {} of {} bytes", bytes, record.bytes);
  if (bytes > record.bytes) return format("{} bytes instead of {}", bytes, record.bytes);
  if (file_hash(path, on_chunk) != record.hash) return "changed: its hash differs from the recorded one";
  return "";
}

}  // namespace stepforge
