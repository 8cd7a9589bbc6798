// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/hub_name.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>

#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

bool is_hub_word(std::string_view text) {
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), is_allowed);
}

/// The "OWNER/NAME" in an address or a name; "" if there is none.
std::string hub_name(std::string text) {
  bool is_address = false;
  for (const std::string_view prefix :
       {"hf://", "https://", "http://", "www.", "huggingface.co/", "hf.co/", "datasets/", "models/"}) {
    if (!text.starts_with(prefix)) continue;
    text.erase(0, prefix.size());
    is_address = is_address || prefix.find(':') != std::string_view::npos;
  }
  const size_t owner = text.find('/');
  if (owner == std::string::npos) return "";
  const size_t end = text.find('/', owner + 1);
  if (end != std::string::npos && !is_address && end + 1 < text.size()) return "";
  const std::string name = text.substr(owner + 1, end == std::string::npos ? end : end - owner - 1);
  std::error_code failure;
  if (!is_address && fs::exists(text.substr(0, owner), failure)) return "";  // a folder on this machine
  return is_hub_word(text.substr(0, owner)) && is_hub_word(name) ? text.substr(0, owner) + "/" + name : "";
}

/// The path of a snapshot in a cache folder; "" if there is none.
std::string snapshot_of(const fs::path& cache) {
  std::error_code failure;
  std::string newest;
  fs::file_time_type time = fs::file_time_type::min();
  for (const auto& entry : fs::directory_iterator(cache / "snapshots", failure)) {
    const fs::file_time_type written = fs::last_write_time(entry.path(), failure);
    if (failure || (!newest.empty() && written < time)) continue;
    time = written;
    newest = entry.path().string();
  }
  return newest;
}

std::string command(std::string_view name, HubKind kind) {
  return format("hf download {}{}", kind == HubKind::dataset ? "--repo-type dataset " : "", name);
}

std::string of_cache(const fs::path& path, std::string_view folder, std::string_view prefix, HubKind kind) {
  const std::string snapshot = snapshot_of(path);
  if (!snapshot.empty())
    return format("it is the Hugging Face cache of all revisions: name one of them, {}", snapshot);
  std::string name(folder.substr(prefix.size()));
  if (const size_t dashes = name.find("--"); dashes != std::string::npos) name.replace(dashes, 2, "/");
  return format("it is a folder of the Hugging Face cache without a snapshot; download it again: {}",
                command(name, kind));
}

}  // namespace

std::string hub_advice(const fs::path& path, HubKind kind) {
  const std::string text = path.string();
  const fs::path folder = path.has_filename() ? path.filename() : path.parent_path().filename();
  const std::string_view prefix = kind == HubKind::dataset ? "datasets--" : "models--";
  std::error_code failure;
  if (fs::exists(path, failure))
    return folder.string().starts_with(prefix) ? of_cache(path, folder.string(), prefix, kind) : "";
  const std::string name = hub_name(text);
  if (name.empty()) return "";
  return format(
      "if it is on the Hugging Face Hub, download it first: {}, and name the folder that this prints",
      command(name, kind));
}

}  // namespace stepforge
