// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/hf_index.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/error_list.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/utf8.h"
#include "stepforge/tensorfile/other_weights.h"
#include "stepforge/tensorfile/wrapped_names.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".safetensors";

/// Whether folder/name is a regular file of this folder. A link counts if it leads to a file of the folder or
/// of the `blobs` folder of a Hugging Face cache, to which its snapshots and folders made by `hf download --local-dir` lead.
bool is_file_of_folder(const fs::path& folder, std::string_view name) {
  if (!is_plain_file_name(name)) return false;
  std::error_code failure;
  const fs::path home = fs::canonical(folder, failure);
  if (failure) return false;
  const fs::path target = fs::canonical(home / name, failure);
  if (failure || !is_regular_file_itself(target)) return false;
  if (target.parent_path() == home) return true;
  return target.parent_path().filename() == "blobs";
}

/// Why a file does not count as a file of the folder.
std::string fault_of_file(const fs::path& folder, std::string_view name) {
  std::error_code failure;
  if (fs::is_symlink(folder / name, failure)) {
    return format("{} is not a regular file of the folder, but a link to {}: copy that file here", name,
                  fs::read_symlink(folder / name, failure).string());
  }
  if (!fs::exists(folder / name, failure))
    return format("{} is not a regular file of the folder: it is missing; download it", name);
  return format("{} is not a regular file of the folder", name);
}

// The largest published models have some 100,000 tensors: 10 MB of index.
constexpr JsonLimits kIndexLimits = {.max_bytes = int64_t{64} << 20, .max_depth = 8};

int64_t read_total_bytes(const Json& document, ErrorList& errors) {
  const auto metadata = document.find("metadata");
  if (metadata == document.end()) return 0;
  if (!metadata->is_object()) {
    errors.add("field \"metadata\" is not an object");
    return 0;
  }
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return 0;
  // Some published indexes write the total as 1.6e10.
  const double value = total->is_number() ? total->get<double>() : -1.0;
  if (value < 0.0 || value >= 9.2e18) {
    errors.add("field \"metadata.total_size\" is not a number of bytes");
    return 0;
  }
  return total->is_number_integer() ? total->get<int64_t>() : static_cast<int64_t>(value);
}

}  // namespace

HfIndex read_hf_index(const fs::path& path) {
  const Json document = read_json_file(path, kIndexLimits);
  ErrorList errors(path.string());
  HfIndex index;
  if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object()) {
    errors.add("field \"weight_map\" is missing or not an object");
    errors.throw_if_any();
  }
  index.total_bytes = read_total_bytes(document, errors);
  for (const auto& [name, file] : document["weight_map"].items()) {
    if (!file.is_string()) {
      errors.add(format("weight_map: the file of {} is not a string", quoted_for_message(name)));
    } else if (!is_plain_file_name(file.get_ref<const std::string&>())) {
      errors.add(format("weight_map: the file {} of {} is not a plain file name",
                        quoted_for_message(file.get_ref<const std::string&>()), quoted_for_message(name)));
    } else {
      index.weight_map.emplace(name, file.get<std::string>());
    }
  }
  if (document["weight_map"].empty()) errors.add("field \"weight_map\" is empty");
  errors.throw_if_any();
  return index;
}

void write_hf_index(const fs::path& path, const HfIndex& index) {
  const Json document = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", index.weight_map}};
  write_file_atomic(path, document.dump(2) + "\n");
}

std::vector<ShardPlan> plan_shards(std::span<const TensorSpec> specs, int64_t max_shard_bytes) {
  std::vector<ShardPlan> shards(1);
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t bytes = specs[i].bytes();
    if (!shards.back().tensors.empty() && bytes > max_shard_bytes - shards.back().bytes)
      shards.emplace_back();
    shards.back().tensors.push_back(i);
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file_name = shards.size() == 1
                              ? std::string(kSingleFileName)
                              : format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

HfIndex index_of_shards(std::span<const TensorSpec> specs, std::span<const ShardPlan> shards) {
  HfIndex index;
  for (const ShardPlan& shard : shards) {
    index.total_bytes += shard.bytes;
    for (const size_t tensor : shard.tensors) index.weight_map.emplace(specs[tensor].name, shard.file_name);
  }
  return index;
}

namespace {

/// The files that the index names, each checked to be a file of the folder.
std::vector<fs::path> indexed_files(const fs::path& folder, const HfIndex& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.weight_map) names.insert(file);
  ErrorList errors((folder / kIndexFileName).string());
  std::vector<fs::path> paths;
  for (const std::string& name : names) {
    if (!is_file_of_folder(folder, name)) errors.add(fault_of_file(folder, name));
    paths.push_back(folder / name);
  }
  errors.throw_if_any();
  return paths;
}

void check_index(const fs::path& folder, const HfIndex& index, const TensorFolder& tensors) {
  ErrorList errors((folder / kIndexFileName).string());
  const auto file_of = [&tensors](const StoredPart& part) {
    return tensors.files()[part.file].path().filename().string();
  };
  for (const auto& [name, file] : index.weight_map) {
    const StoredTensor* tensor = tensors.find(name);
    if (tensor == nullptr) {
      errors.add(format("{} is missing from {}", quoted_for_message(name), file));
      continue;
    }
    for (const StoredPart& part : tensor->parts) {
      if (const std::string found = file_of(part); found != file) {
        errors.add(format("{} is in {}, not in {}", quoted_for_message(name), found, file));
      }
    }
  }
  for (const std::string& name : tensors.names()) {
    if (index.weight_map.contains(name)) continue;
    errors.add(format("{} of {} is not in the index", quoted_for_message(name),
                      file_of(tensors.find(name)->parts.front())));
  }
  errors.throw_if_any();
}

/// "model-00002-of-00003.safetensors" in its parts.
struct ShardName {
  std::string begin;  ///< "model"
  int64_t number = 0;
  int64_t count = 0;
};

std::optional<int64_t> number_of(std::string_view digits) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<ShardName> shard_name(std::string_view file) {
  constexpr std::string_view kOf = "-of-";
  if (!file.ends_with(kExtension)) return std::nullopt;
  file.remove_suffix(kExtension.size());
  const size_t of = file.rfind(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  const size_t dash = file.substr(0, of).rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto number = number_of(file.substr(dash + 1, of - dash - 1));
  const auto count = number_of(file.substr(of + kOf.size()));
  if (!number || !count) return std::nullopt;
  return ShardName{std::string(file.substr(0, dash)), *number, *count};
}

/// Files of a model without an index: the shards of one model, or a single file of another name. Empty if there are none.
/// Throws UsageError if some shards are missing, or if it is not certain which files are the model.
std::vector<fs::path> unindexed_files(const fs::path& folder) {
  std::map<std::pair<std::string, int64_t>, std::map<int64_t, std::string>> shards;
  std::vector<std::string> single;
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (const auto shard = shard_name(name)) {
      shards[{shard->begin, shard->count}][shard->number] = name;
    } else if (name.ends_with(kExtension) && !name.starts_with("adapter") &&
               !name.starts_with("consolidated")) {
      single.push_back(name);
    }
  }
  if (shards.empty()) return single.size() == 1 ? std::vector{folder / single[0]} : std::vector<fs::path>();
  if (shards.size() > 1) {
    throw UsageError(
        format("{} has shards of {} models and no {}: remove those that do not belong to it, or copy "
               "the index into it",
               folder.string(), shards.size(), kIndexFileName));
  }
  const auto& [kind, files] = *shards.begin();
  const int64_t first = files.begin()->first == 0 ? 0 : 1;
  std::vector<std::string> missing;
  for (int64_t i = first; i < kind.second + first && std::ssize(missing) < 8; ++i) {
    if (!files.contains(i)) missing.push_back(std::to_string(i));
  }
  if (!missing.empty()) {
    throw UsageError(
        format("{} has {} of {} shards such as {} (number {} missing) and no {}: download the others",
               folder.string(), files.size(), kind.second, files.begin()->second, join(missing, ", "),
               kIndexFileName));
  }
  std::vector<fs::path> paths;
  for (const auto& [number, name] : files) paths.push_back(folder / name);
  return paths;
}

TensorFolder open_folder(const fs::path& path) {
  std::error_code failure;
  if (fs::exists(path / kSingleFileName, failure) || fs::is_symlink(path / kSingleFileName, failure)) {
    if (!is_file_of_folder(path, kSingleFileName))
      throw FormatError(format("{}: {}", path.string(), fault_of_file(path, kSingleFileName)));
    return TensorFolder({path / kSingleFileName});
  }
  if (fs::exists(path / kIndexFileName, failure)) {
    const HfIndex index = read_hf_index(path / kIndexFileName);
    TensorFolder folder(indexed_files(path, index));
    check_index(path, index, folder);
    return folder;
  }
  if (fs::exists(path / "adapter_config.json", failure))
    throw UsageError(format("{} {}", path.string(), other_weights_in(path)));
  const std::vector<fs::path> files = unindexed_files(path);
  for (const fs::path& file : files) {
    if (!is_file_of_folder(path, file.filename().string()))
      throw FormatError(format("{}: {}", path.string(), fault_of_file(path, file.filename().string())));
  }
  if (!files.empty()) return TensorFolder(files);
  const std::string other = other_weights_in(path);
  if (!other.empty()) throw UsageError(format("{} {}", path.string(), other));
  throw UsageError(format("{} contains no Hugging Face model: neither {} nor {} exists", path.string(),
                          kSingleFileName, kIndexFileName));
}

}  // namespace

bool holds_hf_weights(const fs::path& folder) {
  std::error_code failure;
  if (fs::exists(folder / kSingleFileName, failure) || fs::exists(folder / kIndexFileName, failure))
    return true;
  return fs::is_directory(folder, failure) && !fs::exists(folder / "adapter_config.json", failure) &&
         !unindexed_files(folder).empty();
}

TensorFolder open_hf_weights(const fs::path& path) {
  std::error_code failure;
  if (!fs::exists(path, failure))
    throw UsageError(format("there is no model folder or file {}", path.string()));
  TensorFolder folder = fs::is_directory(path, failure) ? open_folder(path) : TensorFolder({path});
  const std::vector<std::string> names = folder.names();
  if (const std::string other = other_weights_named(names); !other.empty())
    throw UsageError(format("{} {}", path.string(), other));
  if (const auto unwrapped = without_wrappers(names))
    folder.rename(unwrapped->names, format("{}: {}", path.string(), unwrapped->what));
  return folder;
}

}  // namespace stepforge
