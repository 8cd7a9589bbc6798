// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/path_pattern.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <system_error>

#include <fnmatch.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAnyFolders = "**";

bool has_pattern_characters(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

/// Unlike fs::exists(), false also if the path cannot be looked up, for example because a name is too long.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// How a remote file gets to this machine.
struct RemoteScheme {
  std::string_view scheme;
  std::string_view remedy;
};

constexpr std::array kRemoteSchemes = {
    RemoteScheme{"s3", "download it first: aws s3 cp --recursive {0} FOLDER"},
    RemoteScheme{"gs", "download it first: gcloud storage cp -r {0} FOLDER"},
    RemoteScheme{"http", "download it first: curl -LO {0}"},
    RemoteScheme{"https", "download it first: curl -LO {0}"},
    RemoteScheme{
        "hf",
        "download it with: hf download --repo-type dataset OWNER/NAME, and name the folder that this prints "
        "(~/.cache/huggingface/hub/datasets--OWNER--NAME/snapshots/...)"},
};

void refuse_remote(const fs::path& path) {
  const std::string text = path.string();
  const size_t colon = text.find("://");
  if (colon == std::string::npos || colon == 0) return;
  const std::string_view scheme = std::string_view(text).substr(0, colon);
  const bool is_scheme =
      scheme.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") ==
      std::string_view::npos;
  if (!is_scheme || is_there(path)) return;
  const auto* known = std::find_if(kRemoteSchemes.begin(), kRemoteSchemes.end(),
                                   [&](const RemoteScheme& entry) { return entry.scheme == scheme; });
  throw UsageError(format("{} is a remote address, and only local files are read; {}", text,
                          known != kRemoteSchemes.end() ? format_arguments(known->remedy, {text})
                                                        : "download it first, and name the local file"));
}

bool matches(const fs::path& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

/// Finds what a pattern names, one of its parts after the other.
class PatternSearch {
 public:
  explicit PatternSearch(const fs::path& pattern)
      : parts_(pattern.begin(), pattern.end()),
        recursive_(std::find(parts_.begin(), parts_.end(), kAnyFolders) != parts_.end()) {}

  std::vector<fs::path> run() {
    search("", 0);
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    return std::move(found_);
  }

 private:
  /// `folder`: a match of the parts before number `part`.
  void search(const fs::path& folder, size_t part) {
    if (part == parts_.size()) return add(folder);
    const std::string& text = parts_[part].native();
    if (text == kAnyFolders) return search_below(folder, part);
    if (!has_pattern_characters(text)) {
      const fs::path next = folder / parts_[part];
      if (is_there(next)) search(next, part + 1);
      return;
    }
    for (const fs::path& entry : entries(folder))
      if (matches(entry.filename(), text)) search(entry, part + 1);
  }

  void search_below(const fs::path& folder, size_t part) {
    const bool is_last = part + 1 == parts_.size();
    if (!is_last) search(folder, part + 1);
    for (const fs::path& entry : entries(folder)) {
      if (entry.filename().native().starts_with('.')) continue;
      if (is_folder(entry) && !fs::is_symlink(entry)) {
        search_below(entry, part);
      } else if (is_last) {
        add(entry);
      }
    }
  }

  void add(const fs::path& path) {
    if (!recursive_ || !is_folder(path)) found_.push_back(path);
  }

  static std::vector<fs::path> entries(const fs::path& folder) {
    if (folder.empty()) {
      std::vector<fs::path> names = entries_of(".");
      for (fs::path& name : names) name = name.filename();
      return names;
    }
    return is_folder(folder) ? entries_of(folder) : std::vector<fs::path>{};
  }

  std::vector<fs::path> parts_;
  bool recursive_;
  std::vector<fs::path> found_;
};

/// The deepest folder of the pattern that exists.
std::string nearest_folder(const fs::path& pattern) {
  fs::path folder = pattern;
  while (folder.has_relative_path() && (has_pattern_characters(folder.native()) || !is_folder(folder)))
    folder = folder.parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace

bool is_path_pattern(const fs::path& path) {
  return has_pattern_characters(path.native()) && !is_there(path);
}

std::vector<fs::path> expand_path(const fs::path& path) {
  refuse_remote(path);
  if (!is_path_pattern(path)) return {path};
  std::vector<fs::path> found = PatternSearch(path).run();
  if (found.empty()) {
    throw UsageError(format("nothing matches {}; the nearest folder that exists is {}", path.string(),
                            nearest_folder(path)));
  }
  return found;
}

}  // namespace stepforge
