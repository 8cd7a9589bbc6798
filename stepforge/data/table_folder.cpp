// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/table_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStateFile = "state.json";
constexpr std::string_view kInfoFile = "dataset_info.json";
constexpr std::string_view kTrain = "train";

bool is_split_word(std::string_view word) {
  constexpr std::array<std::string_view, 8> kWords = {kTrain, "validation", "valid", "val",
                                                      "dev",  "test",       "eval",  "evaluation"};
  return std::ranges::find(kWords, word) != kWords.end();
}

/// `name` without -00000-of-00002 and what follows; nullopt if it has no such part.
std::optional<std::string_view> without_shard_number(std::string_view name) {
  constexpr size_t kDigits = 5;
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of < kDigits + 1) return std::nullopt;
  const auto is_number = [](std::string_view text) {
    return text.size() == kDigits && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::string_view before = name.substr(0, of - kDigits);
  if (!before.ends_with('-') || !is_number(name.substr(of - kDigits, kDigits)) ||
      !is_number(name.substr(of + kOf.size(), kDigits)))
    return std::nullopt;
  return before.substr(0, before.size() - 1);
}

std::string_view after_last(std::string_view text, std::string_view separators) {
  return text.substr(text.find_last_of(separators) + 1);
}

std::string list_of(const std::set<std::string>& names) {
  constexpr size_t kShown = 10;
  std::vector<std::string> shown(names.begin(), names.end());
  if (shown.size() > kShown) {
    shown.resize(kShown);
    shown.emplace_back("...");
  }
  return join(shown, ", ");
}

/// The files that the state.json of `folder` lists; nullopt if there is none, or another program's.
std::optional<std::set<fs::path>> listed_files(const fs::path& folder) {
  constexpr std::string_view kFiles = "_data_files";
  const fs::path state = folder / kStateFile;
  if (!fs::exists(state)) return std::nullopt;
  const Json json = read_json_file(state);
  if (!json.is_object() || !json.contains(kFiles)) return std::nullopt;
  const JsonReader reader(json, state.string());
  // Older versions of datasets store a selection of the rows beside them.
  if (reader.has("_indices_data_files") && reader["_indices_data_files"].size() > 0)
    reader.refuse("_indices_data_files",
                  "is not supported: call flatten_indices() and save the data set again");
  std::set<fs::path> files;
  const JsonReader list = reader[kFiles];
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonReader name = list.at(i)["filename"];
    if (!is_plain_file_name(name.text())) name.refuse("must be a name without a folder");
    if (!is_regular_file_itself(folder / name.text())) name.refuse("is not a file of this folder");
    files.insert(folder / name.text());
  }
  return files;
}

/// Moves the tables for which `wanted` does not hold to left_out.
template <typename Wanted>
void keep(TableChoice& choice, const Wanted& wanted) {
  const auto rest = std::stable_partition(choice.chosen.begin(), choice.chosen.end(), wanted);
  choice.left_out.insert(choice.left_out.end(), rest, choice.chosen.end());
  choice.chosen.erase(rest, choice.chosen.end());
}

/// Leaves out the files of a folder that are not among those of its data set.
void keep_data_files(TableChoice& choice) {
  std::map<fs::path, std::optional<std::set<fs::path>>> listed;
  for (const fs::path& table : choice.chosen) {
    const fs::path folder = table.parent_path();
    if (!listed.contains(folder)) listed[folder] = listed_files(folder);
  }
  keep(choice, [&](const fs::path& table) {
    const fs::path folder = table.parent_path();
    if (const auto& files = listed.at(folder)) return files->contains(table);
    // The results of map() and filter() lie beside the data set.
    return !(table.filename().string().starts_with("cache-") && fs::exists(folder / kInfoFile));
  });
}

void keep_one_split(TableChoice& choice, const fs::path& folder) {
  std::set<std::string> splits;
  for (const fs::path& table : choice.chosen) splits.insert(split_of(table.lexically_relative(folder)));
  splits.erase("");
  if (splits.size() < 2) return;
  if (!splits.contains(std::string(kTrain))) {
    throw UsageError(format("the folder {} holds several splits and no \"train\" ({}): name the files of one",
                            folder.string(), list_of(splits)));
  }
  keep(choice, [&](const fs::path& table) { return split_of(table.lexically_relative(folder)) == kTrain; });
  splits.erase(std::string(kTrain));
  choice.note = format("the split \"train\" of {} is read (others: {})", folder.string(), list_of(splits));
}

void require_one_data_set(const TableChoice& choice, const fs::path& folder) {
  std::set<std::string> folders;
  for (const fs::path& table : choice.chosen)
    if (fs::exists(table.parent_path() / kInfoFile)) folders.insert(table.parent_path().string());
  if (folders.size() > 1) {
    throw UsageError(
        format("the folder {} holds several data sets, perhaps versions of one ({}): name the folder of one",
               folder.string(), list_of(folders)));
  }
}

}  // namespace

bool describes_data_set(const fs::path& path) {
  return path.filename() == kStateFile || path.filename() == kInfoFile ||
         path.filename() == "dataset_dict.json";
}

std::string split_of(const fs::path& relative) {
  std::string folder;
  for (const fs::path& part : relative.parent_path())
    if (is_split_word(part.string())) folder = part.string();
  if (!folder.empty()) return folder;
  const std::string stem = relative.stem().string();
  if (const auto name = without_shard_number(stem)) return std::string(after_last(*name, "-"));
  const std::string_view word = after_last(stem, "-_.");
  return is_split_word(word) ? std::string(word) : "";
}

TableChoice choose_tables(const fs::path& folder, const std::vector<fs::path>& tables) {
  TableChoice choice{.chosen = tables, .left_out = {}, .note = ""};
  keep_data_files(choice);
  keep_one_split(choice, folder);
  require_one_data_set(choice, folder);
  return choice;
}

}  // namespace stepforge
