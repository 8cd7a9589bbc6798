// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/whole_hash.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// What is kept about a file beside its hash.
Json identity_of(const fs::path& file) {
  std::error_code failure;
  const auto changed = fs::last_write_time(file, failure).time_since_epoch().count();
  const auto bytes = static_cast<int64_t>(fs::file_size(file, failure));
  return {{"path", file.string()}, {"bytes", bytes}, {"changed", static_cast<int64_t>(changed)}};
}

/// Whether a later change within the resolution of the clock could keep the time.
bool changed_just_now(const fs::path& file) {
  std::error_code failure;
  const auto changed = fs::last_write_time(file, failure);
  return failure || fs::file_time_type::clock::now() - changed < std::chrono::seconds(2);
}

constexpr const char* kHash = "hash";

/// The hash in the record `kept` if that is of this file; nullopt if there is none, or a damaged one.
std::optional<std::string> kept_hash(const fs::path& kept, const Json& identity) {
  try {
    Json before = read_json_file(kept);
    std::string hash = JsonReader(before, kept.string())[kHash].text();
    before.erase(kHash);
    return before == identity ? std::optional(std::move(hash)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string whole_hash(const fs::path& file, const fs::path& folder, const std::function<void()>& on_chunk) {
  const fs::path absolute = fs::absolute(file);
  const fs::path kept = folder / (content_hash(absolute.string()) + ".json");
  Json record = identity_of(absolute);
  if (const auto hash = kept_hash(kept, record)) return *hash;
  std::string hash = file_hash(absolute, on_chunk);
  if (changed_just_now(absolute)) return hash;
  record[kHash] = hash;
  try {
    fs::create_directories(folder);
    write_file_atomic(kept, record.dump(2) + "\n");
  } catch (const std::exception&) {
    return hash;  // the next start computes it again
  }
  return hash;
}

}  // namespace stepforge
