// SPDX-License-Identifier: Apache-2.0
// State dicts of sharded models: saved and loaded, in any layout.
#include "stepforge/fsdp/state_dict.h"

#include <map>
#include <memory>
#include <mutex>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tests/support/rank_groups.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr Initializer kNormal{Initializer::Kind::normal, 0.5};

ParameterSpec tensor(const std::string& name, const std::vector<int64_t>& shape) {
  if (shape.empty()) return {name, shape, {}};
  return {name, shape, {{"weight", name, shape[0], kNormal}}};
}

/// Odd shapes, more ranks than elements, a scalar, a frozen unit.
std::vector<UnitSpec> odd_units() {
  return {{"first", {tensor("w", {7, 5}), tensor("tiny", {1}), tensor("cube", {3, 5, 17})}, true},
          {"second", {tensor("v", {1300}), tensor("scalar", {})}, false}};
}

/// How a model is divided over ranks.
struct SavedLayout {
  int replicas = 1;
  int shards = 1;
  Partition partition = {};

  int ranks() const { return replicas * shards; }
};

std::string layout_name(const SavedLayout& layout) {
  return format("{} x {}, {}", layout.replicas, layout.shards, partition_text(layout.partition));
}

const std::vector<SavedLayout> kLayouts = {{1, 1},
                                           {1, 2},
                                           {1, 3, {PartitionKind::by_tensor}},
                                           {1, 4, {PartitionKind::by_dim, 0}},
                                           {1, 3, {PartitionKind::by_dim, -1}},
                                           {2, 2},
                                           {3, 1}};

/// One rank's model.
class Model {
 public:
  Model(World& world, const SavedLayout& layout, uint64_t seed = 1) : specs_(odd_units()) {
    groups_ = rank_groups(world, layout.replicas, format("seed {}", seed));
    for (const UnitSpec& spec : specs_) {
      const UnitLayout unit_layout = sharded_unit(groups_->layout(), {.partition = layout.partition}, spec);
      stores_.push_back(std::make_unique<UnitStore>(spec, unit_layout, StoreOptions{}, *groups_));
      stores_.back()->initialize(seed);
      if (spec.name == "second") {
        for (const ShardSlice& scalar : stores_.back()->slices(1))
          stores_.back()->master().narrow(0, scalar.local, 1).fill_(static_cast<double>(seed));
      }
      const int unit = static_cast<int>(source.units.size());
      source.units.push_back({stores_.back().get(), stores_.back()->master()});
      for (size_t i = 0; i < spec.parameters.size(); ++i)
        source.entries.push_back({spec.parameters[i].name, unit, i, {}, !spec.trainable});
    }
    source.entries.push_back({"steps", -1, 0, at::full({2}, static_cast<int64_t>(seed), at::kLong)});
    source.all = groups_->at(groups_->layout().loss_group, Lane::compute);
  }

  at::Tensor& buffer() { return source.entries.back().whole; }
  /// The hashes of all values.
  std::string values() const {
    std::string text;
    for (const auto& [name, value] : get_state_dict(source, {.full_state_dict = true})) {
      const at::Tensor& tensor = std::get<at::Tensor>(value);
      text += format("{} {};", name,
                     content_hash({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}));
    }
    return text;
  }

  StateSource source;

 private:
  std::vector<UnitSpec> specs_;
  std::shared_ptr<const GroupCommunicators> groups_;
  std::vector<std::unique_ptr<UnitStore>> stores_;
};

std::string expected_values(uint64_t seed) {
  return run_threads(1, [&](World& world) { return Model(world, {}, seed).values(); })[0];
}

/// Runs `body` on every rank of the layout and expects "" from each.
void on_ranks(const SavedLayout& layout, const RankBody& body) {
  const auto results = run_threads(layout.ranks(), body);
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_EQ(results[rank], "") << layout_name(layout) << ", rank " << rank;
}

const at::Tensor& whole(const StateDict& values, const std::string& name) {
  return std::get<at::Tensor>(values.at(name));
}
LocalValue& local(StateDict& values, const std::string& name) {
  return std::get<LocalValue>(values.at(name));
}

TEST(StateDict, FullValuesEqualThoseOfOneRankInEveryLayout) {
  const std::string expected = expected_values(1);
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model model(world, layout);
      EXPECT_EQ(model.values(), expected);
      StateDict values = get_state_dict(model.source, {.full_state_dict = true});
      EXPECT_EQ(values.size(), 6U);
      EXPECT_EQ(whole(values, "cube").sizes(), at::IntArrayRef({3, 5, 17}));
      EXPECT_EQ(whole(values, "scalar").dim(), 0);
      whole(values, "w").zero_();  // a copy
      whole(values, "steps").zero_();
      EXPECT_EQ(model.values(), expected);
      return "";
    });
  }
}

TEST(StateDict, ShardedValuesShareTheModelsMemoryUnlessOffloaded) {
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model model(world, layout);
      const StateDict before = get_state_dict(model.source, {.cpu_offload = true});
      StateDict values = get_state_dict(model.source);
      for (const char* name : {"w", "cube", "v", "tiny", "scalar"}) {
        const LocalValue& copy = std::get<LocalValue>(before.at(name));
        EXPECT_EQ(copy.slices, local(values, name).slices);
        EXPECT_TRUE(at::equal(copy.data, local(values, name).data));
        EXPECT_EQ(copy.global_shape,
                  whole(get_state_dict(model.source, {.full_state_dict = true}), name).sizes());
        local(values, name).data.fill_(2.0F);
        EXPECT_TRUE(copy.data.numel() == 0 || !at::equal(copy.data, local(values, name).data));
      }
      whole(values, "steps").fill_(7);
      const StateDict after = get_state_dict(model.source, {.full_state_dict = true});
      EXPECT_TRUE(whole(after, "cube").eq(2).all().item<bool>());
      EXPECT_TRUE(whole(after, "steps").eq(7).all().item<bool>());
      EXPECT_FALSE(whole(before, "steps").eq(7).any().item<bool>());
      return "";
    });
  }
}

TEST(StateDict, FullOffloadedValuesAreOnRankZeroOnly) {
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model model(world, layout);
      const StateDict values = get_state_dict(model.source, {.full_state_dict = true, .cpu_offload = true});
      EXPECT_EQ(values.size(), world.rank() == 0 ? 6U : 0U);
      return "";
    });
  }
}

TEST(StateDict, FrozenParametersCanBeOmittedAndMayThenBeMissing) {
  const SavedLayout layout{1, 2};
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    for (const bool full : {false, true}) {
      const StateDict values =
          get_state_dict(model.source, {.full_state_dict = full, .ignore_frozen_params = true});
      EXPECT_EQ(values.size(), 4U);
      EXPECT_FALSE(values.contains("v") || values.contains("scalar"));
      EXPECT_TRUE(values.contains("steps"));
      EXPECT_EQ(load_state_dict(model.source, values, {.ignore_frozen_params = true}).missing.size(), 0U);
      EXPECT_THROW(load_state_dict(model.source, values), Error);
    }
    return "";
  });
}

TEST(StateDict, BroadcastGivesEveryRankTheValuesOfRankZero) {
  for (const SavedLayout& layout : {SavedLayout{1, 2}, SavedLayout{2, 2}, SavedLayout{3, 1}}) {
    on_ranks(layout, [&](World& world) {
      Model model(world, layout);
      // Make values differ that should be equal on all ranks.
      model.buffer().fill_(world.rank());
      model.source.units[0].shard.add_(static_cast<float>(world.rank() / layout.shards));
      const std::string own = model.values();
      for (const bool offload : {false, true}) {
        const StateDict values = get_state_dict(
            model.source, {.full_state_dict = true, .cpu_offload = offload, .broadcast_from_rank0 = true});
        EXPECT_EQ(values.size(), 6U);
        EXPECT_TRUE(whole(values, "steps").eq(0).all().item<bool>());
        StateDict mine = get_state_dict(model.source, {.full_state_dict = true});
        const float difference = world.rank() / layout.shards;
        EXPECT_TRUE(
            whole(mine, "w").sub(whole(values, "w")).sub(difference).abs().lt(1e-6).all().item<bool>());
      }
      EXPECT_EQ(model.values(), own);
      return "";
    });
  }
}

TEST(StateDict, BroadcastOfShardedValuesIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { get_state_dict({}, {.broadcast_from_rank0 = true}); }),
                  "set full_state_dict");
}

TEST(LoadStateDict, LoadsWholeTensorsInEveryLayout) {
  const std::string expected = expected_values(2);
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model other(world, layout, 2);
      Model model(world, layout);
      const StateDict values = get_state_dict(other.source, {.full_state_dict = true});
      EXPECT_NE(model.values(), expected);
      const LoadReport report = load_state_dict(model.source, values);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      EXPECT_EQ(model.values(), expected);
      return "";
    });
  }
}

TEST(LoadStateDict, LoadsEachRanksPartsInEveryLayout) {
  const std::string expected = expected_values(2);
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model other(world, layout, 2);
      Model model(world, layout);
      load_state_dict(model.source, get_state_dict(other.source));
      EXPECT_EQ(model.values(), expected);
      return "";
    });
  }
}

TEST(LoadStateDict, LoadsPartsOfAnotherLayoutIfTheyCover) {
  const std::string expected = expected_values(2);
  // The parts of all ranks of one layout, joined.
  std::map<std::string, LocalValue> joined;
  std::mutex mutex;
  const SavedLayout from{1, 4, {PartitionKind::by_dim, -1}};
  on_ranks(from, [&](World& world) {
    Model other(world, from, 2);
    StateDict values = get_state_dict(other.source, {.cpu_offload = true});
    for (const StateEntry& entry : other.source.entries) {
      if (entry.unit < 0) continue;
      const std::lock_guard lock(mutex);
      LocalValue part = local(values, entry.name);
      LocalValue& all = joined[entry.name];
      if (!all.data.defined()) all.data = at::empty({0});
      for (ShardSlice& slice : part.slices) slice.local += all.data.numel();
      all.global_shape = part.global_shape;
      all.slices.insert(all.slices.end(), part.slices.begin(), part.slices.end());
      all.data = at::cat({all.data, part.data});
    }
    return "";
  });
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model model(world, layout);
      StateDict values;
      for (const auto& [name, value] : joined) values[name] = value;
      values["steps"] = at::full({2}, 2, at::kLong);
      load_state_dict(model.source, values);
      EXPECT_EQ(model.values(), expected);
      return "";
    });
  }
}

/// The message of each rank that loads spoiled values into a new model, which must not change.
std::vector<std::string> refusals(const std::function<void(StateDict&, int rank)>& spoil, bool full,
                                  const LoadStateOptions& options = {}, const SavedLayout& layout = {1, 2}) {
  return run_threads(layout.ranks(), [&](World& world) {
    Model model(world, layout);
    const std::string before = model.values();
    Model other(world, layout, 2);
    StateDict values = get_state_dict(other.source, {.full_state_dict = full});
    spoil(values, world.rank());
    const std::string message = result_of([&] {
      load_state_dict(model.source, values, options);
      return std::string("loaded");
    });
    EXPECT_EQ(model.values(), before);
    return message;
  });
}

void expect_all_contain(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
  for (const auto& text : texts) {
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(LoadStateDict, StrictNamesAllMissingAndUnexpectedOnesSorted) {
  const auto messages = refusals(
      [](StateDict& values, int) {
        values.erase("w");
        values.erase("cube");
        values["zeta"] = at::ones({1});
        values["alpha"] = at::ones({1});
      },
      true);
  expect_all_contain(messages, {"missing: cube, w", "unexpected: alpha, zeta"});
}

TEST(LoadStateDict, NotStrictLoadsTheRestAndReports) {
  const SavedLayout layout{1, 2};
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    const std::string before = model.values();
    StateDict values;
    values["w"] = at::ones({7, 5});
    values["zeta"] = at::ones({1});
    const LoadReport report = load_state_dict(model.source, values, {.strict = false});
    EXPECT_EQ(report.unexpected, (std::vector<std::string>{"zeta"}));
    EXPECT_EQ(report.missing, (std::vector<std::string>{"cube", "scalar", "steps", "tiny", "v"}));
    EXPECT_TRUE(whole(get_state_dict(model.source, {.full_state_dict = true}), "w").eq(1).all().item<bool>());
    // A wrong shape is an error even if not strict.
    values["w"] = at::ones({5, 7});
    EXPECT_THROW(load_state_dict(model.source, values, {.strict = false}), Error);
    return "";
  });
}

TEST(LoadStateDict, AWrongShapeOnOneRankLoadsNothingOnAnyAndIsNamedOnAll) {
  const auto messages = refusals(
      [](StateDict& values, int rank) {
        if (rank == 1) values["w"] = at::ones({5, 7});
      },
      true);
  expect_all_contain(messages, {"w has the shape [5, 7], expected [7, 5]"});
  EXPECT_NE(messages[0].find("rank 1"), std::string::npos) << messages[0];
}

TEST(LoadStateDict, APlainTensorIsWholeEvenIfARanksPartHasItsShape) {
  // Two ranks hold one row each of a tensor of shape [2, n]; [1, n] is the shape of a part.
  const SavedLayout layout{1, 2, {PartitionKind::by_dim, 0}};
  expect_all_contain(
      refusals([](StateDict& values, int) { values["w"] = at::ones({4, 5}); }, true, {}, layout),
      {"w has the shape [4, 5], expected [7, 5]"});
  // Rank 0 holds all of "tiny", rank 1 nothing. As LocalValues they load as parts.
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    StateDict values;
    values["tiny"] = LocalValue{{1}, {}, at::empty({0})};
    if (world.rank() == 0) values["tiny"] = LocalValue{{1}, {{whole_slice({1}), 0}}, at::full({1}, 5.0)};
    load_state_dict(model.source, values, {.strict = false});
    EXPECT_EQ(whole(get_state_dict(model.source, {.full_state_dict = true}), "tiny").item<double>(), 5.0);
    return "";
  });
}

TEST(LoadStateDict, PartsThatDoNotFitAreRefused) {
  const auto spoiled = [](const std::function<void(LocalValue&)>& spoil) {
    return refusals(
        [&](StateDict& values, int rank) {
          if (rank == 0) spoil(local(values, "cube"));
        },
        false);
  };
  expect_all_contain(spoiled([](LocalValue& value) { value.slices.pop_back(); }),
                     {"cube", "of the", "needs"});
  expect_all_contain(spoiled([](LocalValue& value) { value.slices.push_back(value.slices[0]); }),
                     {"cube", "overlap"});
  expect_all_contain(spoiled([](LocalValue& value) { value.slices[0].slice.offsets[0] = 3; }),
                     {"cube", "not inside"});
  expect_all_contain(spoiled([](LocalValue& value) { value.slices[0].slice.offsets[1] = INT64_MAX; }),
                     {"cube", "not inside"});
  expect_all_contain(spoiled([](LocalValue& value) { value.slices[0].slice.sizes = {3, 5}; }),
                     {"cube", "not inside"});
  expect_all_contain(spoiled([](LocalValue& value) { value.slices[0].local = INT64_MAX; }),
                     {"cube", "begins at element"});
  expect_all_contain(spoiled([](LocalValue& value) { value.data = value.data.narrow(0, 0, 3); }),
                     {"cube", "data with 3 elements"});
  expect_all_contain(spoiled([](LocalValue& value) { value.global_shape = {3, 17, 5}; }),
                     {"cube", "[3, 17, 5]", "[3, 5, 17]"});
  expect_all_contain(spoiled([](LocalValue& value) { value.data = at::Tensor(); }), {"cube has no data"});
}

TEST(LoadStateDict, CastsFloatingTypesOnly) {
  const SavedLayout layout{1, 2};
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    StateDict values;
    values["w"] = at::full({7, 5}, 1.5, at::kBFloat16);
    load_state_dict(model.source, values, {.strict = false});
    EXPECT_TRUE(
        whole(get_state_dict(model.source, {.full_state_dict = true}), "w").eq(1.5).all().item<bool>());
    return "";
  });
  expect_all_contain(
      refusals([](StateDict& values, int) { values["w"] = at::ones({7, 5}, at::kLong); }, true),
      {"w is of type Long, expected Float"});
}

TEST(LoadStateDict, AssignUsesGivenWholeTensorsAndIsRefusedForUnits) {
  const SavedLayout layout{1, 2};
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    const at::Tensor given = at::full({2}, 9, at::kLong);
    StateDict values;
    values["steps"] = given;
    load_state_dict(model.source, values, {.strict = false});
    EXPECT_NE(model.buffer().data_ptr(), given.data_ptr());
    load_state_dict(model.source, values, {.strict = false, .assign = true});
    EXPECT_EQ(model.buffer().data_ptr(), given.data_ptr());
    return "";
  });
  expect_all_contain(refusals([](StateDict&, int) {}, true, {.assign = true}),
                     {"w shares the buffer of its unit", "without assign"});
}

TEST(LoadStateDict, BroadcastLoadsRankZerosValuesOnAllRanks) {
  const std::string expected = expected_values(2);
  for (const SavedLayout& layout : kLayouts) {
    on_ranks(layout, [&](World& world) {
      Model other(world, layout, 2);
      Model model(world, layout);
      const StateDict values = get_state_dict(other.source, {.full_state_dict = true, .cpu_offload = true});
      EXPECT_EQ(values.empty(), world.rank() != 0);
      load_state_dict(model.source, values, {.broadcast_from_rank0 = true});
      EXPECT_EQ(model.values(), expected);
      return "";
    });
  }
}

TEST(LoadStateDict, RankZerosFaultsAreNamedOnAllRanks) {
  const LoadStateOptions broadcast{.broadcast_from_rank0 = true};
  expect_all_contain(refusals([](StateDict& values, int) { values.erase("w"); }, true, broadcast),
                     {"missing: w"});
  expect_all_contain(refusals([](StateDict&, int) {}, false, broadcast), {"w is a part"});
}

TEST(LoadStateDict, ABufferOnTheMetaDeviceIsRefusedUnlessAssigned) {
  on_ranks({}, [](World& world) {
    Model model(world, {});
    model.buffer() = at::empty({2}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
    StateDict values;
    values["steps"] = at::ones({2}, at::kLong);
    EXPECT_CONTAINS(message_of<Error>([&] { load_state_dict(model.source, values, {.strict = false}); }),
                    "meta");
    load_state_dict(model.source, values, {.strict = false, .assign = true});
    EXPECT_EQ(model.buffer().sum().item<int64_t>(), 2);
    return "";
  });
}

TEST(LoadStateDict, EveryNameOfATiedParameterIsSavedAndLoaded) {
  const SavedLayout layout{1, 2};
  on_ranks(layout, [&](World& world) {
    Model model(world, layout);
    StateEntry alias = model.source.entries[0];
    alias.name = "tied";
    model.source.entries.push_back(alias);
    StateDict values = get_state_dict(model.source, {.full_state_dict = true});
    EXPECT_TRUE(at::equal(whole(values, "tied"), whole(values, "w")));
    whole(values, "tied").fill_(3);
    whole(values, "w").fill_(3);
    load_state_dict(model.source, values);
    EXPECT_TRUE(
        at::equal(whole(get_state_dict(model.source, {.full_state_dict = true}), "w"), whole(values, "w")));
    return "";
  });
}

}  // namespace
}  // namespace stepforge::testing
