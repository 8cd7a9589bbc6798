// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/frozen_weights.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/stored_weight.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// A hash of the shape and of the hashes of chunks of kWeightChunk elements.
std::string hash_of(const TensorFolder& folder, const std::string& name) {
  WeightReader reader(folder, name);
  const TensorSlice whole = whole_slice(reader.shape());
  const at::Tensor chunk =
      at::empty({std::min(kWeightChunk, whole.elements())}, at::device(at::kCPU).dtype(at::kFloat));
  std::string parts = shape_text(reader.shape());
  for (int64_t begin = 0; begin < whole.elements(); begin += kWeightChunk) {
    const at::Tensor values = chunk.narrow(0, 0, std::min(kWeightChunk, whole.elements() - begin));
    reader.read(whole, begin, values);
    parts += content_hash(bytes_of(values));
  }
  return content_hash(parts);
}

/// The hashes of every `ranks`-th name from number `rank` on, or the error of one, as JSON.
std::string hash_share(const std::function<TensorFolder()>& open, const std::vector<std::string>& names,
                       size_t rank, size_t ranks) {
  try {
    const TensorFolder folder = open();
    Json hashes = Json::object();
    for (size_t i = rank; i < names.size(); i += ranks) {
      if (!holds_weight(folder, names[i])) return Json{{"fault", format("{} is missing", names[i])}}.dump();
      hashes[names[i]] = hash_of(folder, names[i]);
    }
    return Json{{"hashes", hashes}}.dump();
  } catch (const Error& failure) {
    return Json{{"fault", failure.what()}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace

std::vector<std::string> FrozenWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, hash] : hashes.items()) names.push_back(name);
  return names;
}

Json FrozenWeights::to_json() const {
  Json json = {{"from", from.string()}, {"hashes", hashes}};
  if (!taken.empty()) json["taken"] = taken;
  return json;
}

FrozenWeights frozen_weights_of(const Json& state, const std::string& source) {
  const JsonReader reader(state, source);
  if (!reader.has(kFrozenWeights)) return {};
  const JsonReader frozen = reader[std::string(kFrozenWeights)];
  const Json& hashes = frozen["hashes"].json();
  const bool valid = hashes.is_object() && std::ranges::all_of(hashes, &Json::is_string);
  if (!valid)
    throw FormatError(format("{}: field \"{}.hashes\" does not map names to hashes", source, kFrozenWeights));
  return {frozen["from"].text(), hashes, frozen.text_or("taken", "")};
}

std::vector<std::string> frozen_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : named_tensors(model)) {
    const UnitSpec& unit = model.units.at(tensor.unit);
    if (!unit.trainable && !unit.state) names.push_back(tensor.name);
  }
  return names;
}

TensorFolder open_weights(const fs::path& path) {
  return has_manifest(path) ? stored_tensors(path) : open_hf_weights(path);
}

fs::path home_of_frozen_weights(const fs::path& path) {
  if (!has_manifest(path)) return path;
  const fs::path file = path / kStateFileName;
  const FrozenWeights frozen = frozen_weights_of(read_json_file(file), file.string());
  return frozen.none() ? path : frozen.from;
}

Json hash_tensors(const std::function<TensorFolder()>& open, const std::vector<std::string>& names,
                  const CheckpointRanks& ranks, const std::string& subject) {
  Json hashes = Json::object();
  for (const std::string& share :
       ranks.run([=, rank = static_cast<size_t>(ranks.rank()), size = static_cast<size_t>(ranks.size())] {
         return hash_share(open, names, rank, size);
       })) {
    const Json result = Json::parse(share);
    if (result.contains("fault"))
      throw UsageError(format("{}: {}", subject, result.at("fault").get<std::string>()));
    hashes.update(result.at("hashes"));
  }
  return hashes;
}

void require_equal_hashes(const Json& expected, const Json& found, const std::string& fault) {
  std::vector<std::string> others;
  for (const auto& [name, hash] : expected.items())
    if (!found.contains(name) || found.at(name) != hash) others.push_back(name);
  if (others.empty()) return;
  throw UsageError(format("{}: {} of {} tensors differ, the first is {}", fault, others.size(),
                          expected.size(), others.front()));
}

void add_frozen_weights(TensorFolder& folder, const FrozenWeights& frozen) {
  std::set<std::string> stored;  // one tensor may hold several weights
  for (const std::string& name : frozen.names())
    for (std::string& of_weight : stored_names(name)) stored.insert(std::move(of_weight));
  folder.adopt(open_weights(frozen.from), {stored.begin(), stored.end()});
}

}  // namespace stepforge
