// SPDX-License-Identifier: Apache-2.0
// Small models with recognizable contents, and helpers for checkpoint folders.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/base/log.h"
#include "stepforge/base/random.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/modelspec/stage_part.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/optim/param_groups.h"
#include "stepforge/storage/unit_store.h"
#include "tests/catalog/all_families.h"
#include "tests/support/flip_bit.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {

inline ModelConfig small_config(const std::string& family = "llama", bool tied = false) {
  ModelConfig config;
  config.family = family;
  config.dim = 16;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 6;  // so that query rows differ from the width
  config.ffn_dim = 24;
  config.vocab_size = 40;
  config.tie_embeddings = tied;
  use_all_settings(config);
  return config;
}

/// What rank `place` of a pipeline holds, in which rank_of_stage[s] has stage s, or all of the model without
/// stages. Stages have equally many blocks.
inline ModelSpec pipeline_part(ModelSpec spec, const std::vector<int>& rank_of_stage, int place) {
  if (rank_of_stage.empty()) return spec;
  std::vector<int> stages;
  for (size_t b = 0; b < spec.blocks.size(); ++b)
    stages.push_back(static_cast<int>(b * rank_of_stage.size() / spec.blocks.size()));
  set_stages(spec, stages);
  std::vector<int> own;
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage)
    if (rank_of_stage[stage] == place) own.push_back(static_cast<int>(stage));
  return stage_part(spec, own);
}

/// The layout of `part` on the rank of `groups`. The first stage counts a tied embedding.
inline RankLayout layout_of_part(const ModelSpec& part, const GroupCommunicators& groups,
                                 const Partition& partition) {
  RankLayout layout =
      rank_layout(part.units, {.dims = groups.layout().dims, .partition = partition}, groups.layout().id);
  if (part.blocks.front().kind != BlockKind::embedding && part.units.front().name == "embedding")
    layout.units.front().counted.assign(part.units.front().parameters.size(), false);
  return layout;
}

/// The index of a rank among those that hold other stages.
inline int pipeline_rank(const RankLayout& layout) {
  return Mesh(layout.dims, layout.id.world_size).coordinate("pp", layout.id.rank);
}

/// The specification of this rank's parts of divided tensors.
inline ModelSpec rank_spec(const ModelConfig& config, const RankLayout& layout) {
  return model_spec(config, 0, tensor_parallel(layout.dims, layout.id));
}

/// A model and its optimizer, or one rank's part of them. Two with the same seed hold the same bits; with
/// different seeds every tensor differs.
struct SmallModel {
  explicit SmallModel(
      uint64_t seed, const ModelConfig& model_config = small_config(),
      std::shared_ptr<const GroupCommunicators> groups = std::make_shared<const GroupCommunicators>(),
      const Partition& partition = {}, const std::vector<int>& rank_of_stage = {})
      : config(model_config),
        spec(model_spec(config)),
        part(pipeline_part(rank_spec(config, groups->layout()), rank_of_stage,
                           pipeline_rank(groups->layout()))),
        store(part.units, layout_of_part(part, *groups, partition), {}, groups),
        optimizer(store, resolve_param_groups(OptimizerConfig(), spec, part.units)) {
    refill(seed);
  }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  void refill(uint64_t seed) {
    optimizer.set_steps(static_cast<int64_t>(seed) + 100);
    for (const NamedTensor& tensor : named_tensors(store)) {
      uint64_t key = stream_key(seed, tensor.name);
      for (const at::Tensor& flat : flats(tensor.unit)) {
        std::vector<float> values(static_cast<size_t>(tensor.elements));
        key = mix_bits(key);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = uniform_float(static_cast<uint32_t>(mix_bits(key + i))) - 0.5F;
        }
        const auto shard =
            std::as_writable_bytes(std::span(flat.data_ptr<float>(), static_cast<size_t>(flat.numel())));
        for (const auto& [slice, local] : shard_slices(store.unit(tensor.unit), tensor)) {
          copy_part(slice, whole_slice(tensor.shape), std::as_bytes(std::span(values)), slice,
                    shard.subspan(static_cast<size_t>(local) * sizeof(float),
                                  static_cast<size_t>(slice.elements()) * sizeof(float)),
                    sizeof(float));
        }
      }
    }
  }

  std::vector<at::Tensor> flats(size_t unit) const {
    if (!store.unit(unit).trained()) return {store.unit(unit).master()};
    return {store.unit(unit).master(), optimizer.slot(unit, 0), optimizer.slot(unit, 1)};
  }

  /// The bytes of the masters, and unless `masters_only` those of moments and steps.
  std::string bits(bool masters_only = false) const {
    std::string all = masters_only ? "" : std::to_string(optimizer.steps());
    for (size_t unit = 0; unit < store.size(); ++unit) {
      for (const at::Tensor& flat : flats(unit)) {
        all.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
        if (masters_only) break;
      }
    }
    return all;
  }

  StagedCheckpoint stage(const Json& state = {{"note", "state of the trainer"}}) const {
    return stage_checkpoint(part, store, &optimizer, state);
  }

  ModelConfig config;
  ModelSpec spec;  ///< the whole model
  ModelSpec part;  ///< what the store holds
  ModelStore store;
  Optimizer optimizer;
};

/// A logger whose lines can be read back.
class RecordedLog {
 public:
  RecordedLog() { logger_.add_file(folder_ / "log"); }
  Logger& logger() { return logger_; }
  std::string text() {
    logger_.flush();
    return read_file(folder_ / "log");
  }

 private:
  TempFolder folder_;
  Logger logger_;
};

/// The names in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace stepforge::testing
