// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/table_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/records/arrow_library.h"
#include "stepforge/records/decompressor.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStateFile = "state.json";
constexpr std::string_view kInfoFile = "dataset_info.json";
constexpr std::string_view kTrain = "train";

/// The split that a word names, in any case; "" if it names none.
std::string split_word(std::string_view word) {
  constexpr std::array<std::string_view, 8> kWords = {kTrain, "validation", "valid", "val",
                                                      "dev",  "test",       "eval",  "evaluation"};
  std::string lower(word);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "training") return std::string(kTrain);
  if (lower == "testing") return "test";
  return std::ranges::find(kWords, lower) != kWords.end() ? lower : "";
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

constexpr std::string_view kSeparators = "-_.";

std::string_view after_last(std::string_view text, std::string_view separators) {
  return text.substr(text.find_last_of(separators) + 1);
}

/// Without numbers at the end, as shards have them: "test" of "test_001".
std::string_view without_numbers(std::string_view name) {
  const size_t last = name.find_last_not_of("0123456789-_.");
  return last == std::string_view::npos ? "" : name.substr(0, last + 1);
}

/// The split in the last word of a name, or in its first.
std::string split_in_name(std::string_view name) {
  name = without_numbers(name);
  const std::string last = split_word(after_last(name, kSeparators));
  return last.empty() ? split_word(name.substr(0, name.find_first_of(kSeparators))) : last;
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
void keep(FolderChoice& choice, const Wanted& wanted) {
  const auto rest = std::stable_partition(choice.chosen.begin(), choice.chosen.end(), wanted);
  choice.left_out.insert(choice.left_out.end(), rest, choice.chosen.end());
  choice.chosen.erase(rest, choice.chosen.end());
}

/// Leaves out the files of a folder that are not among those of its data set.
void keep_data_files(FolderChoice& choice) {
  std::map<fs::path, std::optional<std::set<fs::path>>> listed;
  for (const fs::path& table : choice.chosen) {
    const fs::path folder = table.parent_path();
    if (!is_arrow_name(table)) continue;
    if (!listed.contains(folder)) listed[folder] = listed_files(folder);
  }
  keep(choice, [&](const fs::path& table) {
    if (!is_arrow_name(table)) return true;
    const fs::path folder = table.parent_path();
    if (const auto& files = listed.at(folder)) return files->contains(table);
    // The results of map() and filter() lie beside the data set.
    return !(table.filename().string().starts_with("cache-") && fs::exists(folder / kInfoFile));
  });
}

void keep_one_split(FolderChoice& choice, const fs::path& folder) {
  const auto split = [&](const fs::path& file) { return split_of(file.lexically_relative(folder)); };
  std::set<std::string> splits;
  for (const fs::path& file : choice.chosen) splits.insert(split(file));
  const bool has_others = splits.erase("") > 0;
  const bool has_train = splits.contains(std::string(kTrain));
  const auto names_split = [](const std::string& name) { return !split_word(name).empty(); };
  const bool is_only_held_out = !has_train && has_others && std::ranges::all_of(splits, names_split);
  if (splits.empty() || (splits.size() == 1 && !has_train && !has_others)) return;
  if (splits.size() == 1 && has_train && !has_others) return;
  if (!has_train && !is_only_held_out) {
    throw UsageError(format("the folder {} holds several splits and no \"train\" ({}): name the files of one",
                            folder.string(), list_of(splits)));
  }
  const std::string kept(has_train ? kTrain : "");
  keep(choice, [&](const fs::path& file) { return split(file) == kept; });
  splits.erase(kept);
  if (has_others && has_train) splits.insert("files without a split");
  choice.note =
      has_train ? format("the split \"train\" of {} is read (others: {})", folder.string(), list_of(splits))
                : format("the files of {} that name no split are read (splits: {})", folder.string(),
                         list_of(splits));
}

void require_one_data_set(const FolderChoice& choice, const fs::path& folder) {
  std::set<std::string> folders;
  for (const fs::path& table : choice.chosen)
    if (is_arrow_name(table) && fs::exists(table.parent_path() / kInfoFile))
      folders.insert(table.parent_path().string());
  if (folders.size() > 1) {
    throw UsageError(
        format("the folder {} holds several data sets, perhaps versions of one ({}): name the folder of one",
               folder.string(), list_of(folders)));
  }
}

}  // namespace

namespace {

/// Whether a text begins with YAML that has fields of a card of the Hub.
bool begins_with_card(const fs::path& path) {
  constexpr size_t kMostBytes = 65536;
  std::string text(kMostBytes, '\0');
  text.resize(static_cast<size_t>(open_bytes(path)->read(text)));
  if (!text.starts_with("---\n") && !text.starts_with("---\r\n")) return false;
  const std::string header = text.substr(0, text.find("\n---", 3));
  constexpr std::array<std::string_view, 6> kFields = {
      "\ndataset_info:",    "\nlicense:",     "\ntask_categories:",
      "\nsize_categories:", "\npretty_name:", "\nannotations_creators:"};
  return std::ranges::any_of(kFields,
                             [&](std::string_view field) { return header.find(field) != std::string::npos; });
}

}  // namespace

bool describes_data_set(const fs::path& path) {
  return path.filename() == kStateFile || path.filename() == kInfoFile ||
         path.filename() == "dataset_dict.json";
}

bool is_card_or_licence(const fs::path& path) {
  constexpr std::array<std::string_view, 7> kNames = {"readme", "license",  "licence",     "copying",
                                                      "notice", "licenses", "dataset_card"};
  const fs::path unpacked = unpacked_name(path);
  const std::string extension = lower_extension(unpacked);
  if (extension != ".md" && extension != ".txt" && extension != ".text") return false;
  std::string stem = unpacked.stem().string();
  std::ranges::transform(stem, stem.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string first = stem.substr(0, stem.find_first_of("-_."));
  if (std::ranges::find(kNames, stem) != kNames.end() || std::ranges::find(kNames, first) != kNames.end())
    return true;
  return extension == ".md" && begins_with_card(path);
}

std::string split_of(const fs::path& relative) {
  std::string folder;
  for (const fs::path& part : relative.parent_path())
    if (std::string split = split_word(part.string()); !split.empty()) folder = std::move(split);
  if (!folder.empty()) return folder;
  const fs::path unpacked = unpacked_name(relative);
  const std::string stem = unpacked.stem().string();
  const auto name = without_shard_number(stem);
  // Only tables are named so by the Hub whatever the word is: "train_sft".
  if (name && is_arrow_name(unpacked)) {
    const std::string word(after_last(*name, "-"));
    const std::string split = split_word(word);
    return split.empty() ? word : split;
  }
  if (name) return split_in_name(*name);
  const std::string extension = lower_extension(unpacked);
  const bool is_text = extension == ".txt" || extension == ".text" || extension == ".md";
  return is_text ? split_word(without_numbers(stem)) : split_in_name(stem);
}

FolderChoice choose_files(const fs::path& folder, const std::vector<fs::path>& files) {
  FolderChoice choice{.chosen = files, .left_out = {}, .note = ""};
  keep_data_files(choice);
  keep_one_split(choice, folder);
  require_one_data_set(choice, folder);
  return choice;
}

}  // namespace stepforge
