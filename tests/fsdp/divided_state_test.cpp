// SPDX-License-Identifier: Apache-2.0
// State dicts of modules whose tensors are divided over ranks of tensor parallelism.
#include <mutex>

#include <gtest/gtest.h>

#include "tests/fsdp/divided_models.h"

namespace stepforge::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors whole_state(const DividedModel& model) {
  return whole_tensors(get_state_dict(model, {.full_state_dict = true}));
}

/// The whole tensors of a new model, plus `more`.
Tensors expected_state(double more) {
  Tensors values;
  expect_on_ranks(1, {1}, [&](const auto& mesh, auto&) {
    DividedModel model(*mesh);
    for (const auto& [name, value] : values_of(model)) values[name] = value + more;
    values["head"] = values.at("table.weight");
    return "";
  });
  return values;
}

void add_to_all(const DividedModel& model, double more) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& local : model.parameters()) local.add_(more);
}

TEST(DividedState, FullTensorsAreThoseOfOneRank) {
  const Tensors expected = expected_state(0);
  for (const std::vector<int64_t>& degrees : divided_meshes()) {
    expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, CountingWorld& world) -> std::string {
      DividedModel model(*mesh);
      shard_divided(model, mesh, {.partition = {PartitionKind::by_tensor}},
                    [](FullyShardOptions& options, DividedLayerImpl& layer) {
                      options.replicate_params = {layer.down, layer.scale};
                    });
      if (const auto text = difference(whole_state(model), expected); !text.empty()) return text;
      const StateDict saved = get_state_dict(model, {.full_state_dict = true, .cpu_offload = true});
      if (world.rank() != 0) return saved.empty() ? "" : "not on rank 0 alone";
      return difference(whole_tensors(saved), expected);
    });
  }
}

TEST(DividedState, ABroadcastGivesRankZerosCopyOfWhatAllPlacesHold) {
  for (const std::vector<int64_t>& degrees : std::vector<std::vector<int64_t>>{{1, 1, 2}, {2, 1, 2}}) {
    expect_on_ranks(ranks_of(degrees), degrees, [](const auto& mesh, CountingWorld& world) -> std::string {
      DividedModel model(*mesh);
      shard_divided(model, mesh);
      const Tensors before = whole_state(model);
      // Make values differ that should be equal.
      const at::NoGradGuard no_grad;
      for (const auto& [name, local] : model.named_parameters())
        if (name == "gain") local.add_(world.rank());
      return difference(
          whole_tensors(get_state_dict(model, {.full_state_dict = true, .broadcast_from_rank0 = true})),
          before);
    });
  }
}

TEST(DividedState, PartsHaveTheirPlaceInTheWholeTensor) {
  const Tensors expected = expected_state(0);
  for (const std::vector<int64_t>& degrees : divided_meshes()) {
    expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
      DividedModel model(*mesh);
      shard_divided(model, mesh);
      for (const auto& [name, value] : get_state_dict(model)) {
        const auto& parts = std::get<LocalValue>(value);
        if (parts.global_shape != expected.at(name).sizes().vec()) return "shape of " + name;
        for (const ShardSlice& part : parts.slices) {
          if (!at::equal(part_of(parts.data, part), part_of(expected.at(name), part.slice)))
            return "a part of " + name;
        }
      }
      return "";
    });
  }
}

/// The parts of all ranks of a mesh whose tensors are those of expected_state(more).
StateDict parts_of_mesh(const std::vector<int64_t>& degrees, const Partition& partition, double more) {
  StateDict joined;
  std::mutex mutex;
  expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
    DividedModel model(*mesh);
    shard_divided(model, mesh, {.partition = partition});
    add_to_all(model, more);
    const StateDict parts = get_state_dict(model, {.cpu_offload = true});
    const std::lock_guard lock(mutex);
    add_parts(joined, parts);
    return "";
  });
  return joined;
}

TEST(DividedState, PartsAndWholeTensorsLoadIntoEveryOtherMesh) {
  const Tensors expected = expected_state(3);
  const std::vector<std::vector<int64_t>> meshes = {{1}, {4}, {1, 2, 2}, {1, 3, 2}, {2, 1, 2}, {1, 1, 3}};
  for (const auto& [from, partition] :
       std::vector<std::pair<std::vector<int64_t>, Partition>>{{{1, 2, 2}, {PartitionKind::flat}},
                                                               {{1, 2, 2}, {PartitionKind::by_dim, -1}},
                                                               {{4}, {PartitionKind::flat}},
                                                               {{1, 1, 3}, {PartitionKind::by_dim, 0}}}) {
    const StateDict parts = parts_of_mesh(from, partition, 3);
    for (const std::vector<int64_t>& degrees : meshes) {
      expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, CountingWorld& world) -> std::string {
        DividedModel model(*mesh);
        shard_divided(model, mesh);
        load_state_dict(model, parts);
        if (const auto text = difference(whole_state(model), expected); !text.empty())
          return "parts: " + text;
        add_to_all(model, 1);
        load_state_dict(model, StateDict(expected.begin(), expected.end()));
        if (const auto text = difference(whole_state(model), expected); !text.empty())
          return "whole: " + text;
        add_to_all(model, 1);
        StateDict on_rank0;
        if (world.rank() == 0) on_rank0.insert(expected.begin(), expected.end());
        load_state_dict(model, on_rank0, {.broadcast_from_rank0 = true});
        return difference(whole_state(model), expected);
      });
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
