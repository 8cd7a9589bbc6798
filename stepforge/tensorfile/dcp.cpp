// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/dcp.h"

#include "stepforge/base/error.h"
#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/utf8.h"

namespace stepforge {
namespace {

constexpr std::string_view kShardingKey = "DCP_SHARDING_INFO";

bool are_offsets(const Json& value, size_t rank) {
  if (!value.is_array() || value.size() != rank) return false;
  for (const Json& number : value) {
    if (!number.is_number_integer() || number.get<int64_t>() < 0) return false;
  }
  return true;
}

/// The offsets of one tensor; none, after adding an error, if they are malformed.
std::vector<int64_t> offsets_of(const Json* info, const TensorEntry& entry, ErrorList& errors) {
  if (info == nullptr || !info->is_object() || !info->contains("saved_offsets") ||
      !are_offsets((*info)["saved_offsets"], entry.shape.size())) {
    errors.add(format("no saved_offsets of {} numbers for tensor {}", entry.shape.size(),
                      quoted_for_message(entry.name)));
    return {};
  }
  auto offsets = (*info)["saved_offsets"].get<std::vector<int64_t>>();
  for (size_t i = 0; i < offsets.size(); ++i) {
    int64_t end = 0;
    if (__builtin_add_overflow(offsets[i], entry.shape[i], &end)) {
      errors.add(format("saved_offsets of tensor {} are too large", quoted_for_message(entry.name)));
    }
  }
  return offsets;
}

}  // namespace

SafetensorsMetadata dcp_metadata(const SavedOffsets& offsets) {
  std::string info = "{";
  for (const auto& [name, starts] : offsets) {
    if (info.size() > 1) info += ", ";
    info += format("{}: {{\"saved_offsets\": {}}}", Json(name).dump(), shape_text(starts));
  }
  info += '}';
  return {{std::string(kShardingKey), info}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

SavedOffsets read_saved_offsets(const SafetensorsFile& file) {
  const SafetensorsMetadata metadata = file.metadata();
  const auto text = metadata.find(kShardingKey);
  SavedOffsets offsets;
  if (text == metadata.end()) {
    for (const TensorEntry& entry : file.tensors()) {
      offsets.emplace(entry.name, std::vector<int64_t>(entry.shape.size(), 0));
    }
    return offsets;
  }
  const std::string source = format("{}: {}", file.path().string(), kShardingKey);
  const Json document = parse_json(text->second, source, {.max_bytes = int64_t{100} << 20, .max_depth = 8});
  ErrorList errors(source);
  if (!document.is_object()) errors.add("not a JSON object");
  errors.throw_if_any();
  // An index by name, since finding a member of a Json object is a linear search.
  std::map<std::string_view, const Json*> members;
  for (const auto& [name, info] : document.items()) members.emplace(name, &info);
  for (const TensorEntry& entry : file.tensors()) {
    const auto member = members.find(entry.name);
    offsets.emplace(entry.name,
                    offsets_of(member == members.end() ? nullptr : member->second, entry, errors));
  }
  for (const auto& [name, info] : members) {
    if (file.find(name) == nullptr)
      errors.add(format("tensor {} is not in the file", quoted_for_message(name)));
  }
  errors.throw_if_any();
  return offsets;
}

std::string dcp_file_name(std::string_view kind, int rank, int file, int files) {
  if (rank < 0 || file < 0 || file >= files) {
    throw Error(format("no checkpoint file {} of {} for rank {}", file, files, rank));
  }
  return format("shard-{:05}-{}-{:05}-of-{:05}.safetensors", rank + 1, kind, file + 1, files);
}

}  // namespace stepforge
