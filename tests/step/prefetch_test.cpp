// SPDX-License-Identifier: Apache-2.0
// Prefetch of gathers: by distance, forward and backward, or by lists.
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/step/programs.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// One line per computation. "layers.1 > layers.0 embedding": while layers.1 computes, the gathers of
/// layers.0 and embedding start. A gather that overlaps no computation has a line of its own, in brackets.
std::string ahead(const PrefetchPolicy& prefetch, int layers = 3, ReshardMode reshard = ReshardMode::always) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, reshard, prefetch, 2});
  const StepProgram program = programs_of(small_model(layers), 2, 1, options)[0];
  EXPECT_NO_THROW(check_programs(programs_of(small_model(layers), 2, 1, options)));
  std::string text;
  std::string started;
  for (const Operation& operation : program.operations) {
    if (operation.kind == OpKind::gather_start) {
      started += " " + program.units[static_cast<std::size_t>(operation.unit)].name;
    } else if (operation.kind == OpKind::gather_wait && !started.empty()) {
      text += "[" + started.substr(1) + "]\n";
      started.clear();
    } else if (operation.block >= 0) {
      text += program.blocks[static_cast<std::size_t>(operation.block)].name + (started.empty() ? "" : " >") +
              started + "\n";
      started.clear();
    }
  }
  return text;
}

TEST(Prefetch, HasADistanceForEachDirection) {
  PrefetchPolicy prefetch;
  prefetch.forward = 2;
  prefetch.backward = 1;
  EXPECT_EQ(ahead(prefetch),
            "[embedding]\nembedding > layers.0 layers.1\nlayers.0 > layers.2\nlayers.1 > head\nlayers.2\n"
            "[layers.2]\nhead\nlayers.2 > layers.1\nlayers.1 > layers.0\nlayers.0\nembedding\n");
  prefetch.forward = 0;
  prefetch.backward = 2;
  EXPECT_EQ(ahead(prefetch),
            "[embedding]\nembedding\n[layers.0]\nlayers.0\n[layers.1]\nlayers.1\n[layers.2]\nlayers.2\n"
            "[head]\nhead > layers.2 layers.1\nlayers.2 > layers.0\nlayers.1\nlayers.0\nembedding\n");
}

TEST(Prefetch, AListReplacesTheDistanceOfItsUnitAndDirection) {
  PrefetchPolicy prefetch = 1;
  prefetch.lists.push_back({"embedding", {"layers.1", "layers.0"}, {}});
  prefetch.lists.push_back({"layers.2", {}, {"layers.0"}});
  EXPECT_EQ(ahead(prefetch),
            "[embedding]\nembedding > layers.0 layers.1\nlayers.0\nlayers.1 > layers.2\nlayers.2 > head\n"
            "head > layers.2\nlayers.2 > layers.0\n[layers.1]\nlayers.1\nlayers.0\nembedding\n");
}

TEST(Prefetch, BothListsOfTheHeadStartWithItsLoss) {
  PrefetchPolicy prefetch = 0;
  prefetch.lists.push_back({"head", {"layers.2"}, {"layers.0"}});
  EXPECT_EQ(ahead(prefetch),
            "[embedding]\nembedding\n[layers.0]\nlayers.0\n[layers.1]\nlayers.1\n[layers.2]\nlayers.2\n"
            "[head]\nhead > layers.2 layers.0\nlayers.2\n[layers.1]\nlayers.1\nlayers.0\nembedding\n");
}

TEST(Prefetch, ListedUnitsThatAreGatheredOrUnusedAreSkipped) {
  PrefetchPolicy prefetch = 0;
  prefetch.lists.push_back({"layers.0", {"embedding", "layers.1"}, {"head"}});
  EXPECT_EQ(ahead(prefetch, 3, ReshardMode::never),
            "[embedding]\nembedding\n[layers.0]\nlayers.0 > layers.1\nlayers.1\n[layers.2]\nlayers.2\n"
            "[head]\nhead\nlayers.2\nlayers.1\nlayers.0\nembedding\n");
}

TEST(Prefetch, AUnitThatStaysGatheredStartsItsBackwardList) {
  PrefetchPolicy prefetch = 0;
  prefetch.lists.push_back({"layers.2", {}, {"layers.1"}});  // with every second unit, layers.2 stays
  EXPECT_EQ(ahead(prefetch, 3, ReshardMode::every_n),
            "[embedding]\nembedding\n[layers.0]\nlayers.0\n[layers.1]\nlayers.1\n[layers.2]\nlayers.2\n"
            "[head]\nhead\nlayers.2 > layers.1\nlayers.1\nlayers.0\nembedding\n");
}

TEST(Prefetch, ARecomputedBackwardStartsItsListOnce) {
  RankOptions options = small_options(2);
  options.set_gathers({DType::bf16, ReshardMode::always, 0});
  options.gather.prefetch.lists.push_back({"layers.1", {}, {"layers.0", "embedding"}});
  options.recompute.mode = RecomputeMode::full;
  const Programs programs = programs_of(small_model(2), 2, 1, options);
  EXPECT_NO_THROW(check_programs(programs));
  const auto recompute = find(programs[0], {OpKind::recompute, -1, 2, 0});
  EXPECT_EQ(programs[0].operations[recompute - 1].kind, OpKind::gather_start);
  EXPECT_EQ(programs[0].operations[recompute - 2].kind, OpKind::gather_start);
}

TEST(Prefetch, UnitsOfOneBlockCountAsOneInDistances) {
  ModelSpec model = small_model(2);
  const auto second = static_cast<int>(model.units.size());
  model.units.push_back(
      {"layers.1.second", {parameter("layers.1.second", {16, 8}, ParameterTag::matrix)}, true});
  model.blocks.at(2).units.push_back(second);
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const StepProgram program = programs_of(model, 2, 1, options).at(0);
  const std::size_t layer_0 = find(program, {OpKind::forward, -1, 1});
  EXPECT_LT(find(program, {OpKind::gather_start, 2}), layer_0);
  EXPECT_LT(find(program, {OpKind::gather_start, second}), layer_0);
  EXPECT_GT(find(program, {OpKind::gather_start, 3}), layer_0);  // the head
}

TEST(Prefetch, RefusesOptionsThatDoNotFit) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  options.gather.prefetch.backward = -1;
  EXPECT_THROW(build_step(small_model(), options), UsageError);
  options.gather.prefetch = 1;
  options.gather.prefetch.lists.push_back({"layers.0", {"layers.7"}, {}});
  EXPECT_CONTAINS(message_of<UsageError>([&] { build_step(small_model(), options); }), "\"layers.7\"",
                  "it has embedding, layers.0, layers.1, head");
}

}  // namespace
}  // namespace stepforge::testing
