// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/optimizer_kinds.h"

#include <memory>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/config_section.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

OptimizerConfig named(const std::string& name) {
  OptimizerConfig settings;
  settings.name = name;
  return settings;
}

ParameterSpec parameter_of(ParameterTag tag, const std::vector<int64_t>& shape) {
  return {.name = "p", .shape = shape, .sub_tensors = {{"weight", "p.weight", shape[0], {}}}, .tag = tag};
}

TEST(OptimizerKinds, HaveTheSlotsOfTorchOptim) {
  const ParameterSpec matrix = parameter_of(ParameterTag::matrix, {4, 512});
  const auto names = [&](const OptimizerConfig& settings) {
    std::vector<std::string> found;
    for (const SlotSpec& slot : OptimizerChoice(settings).slots(matrix)) found.push_back(slot.name);
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(named("adamw")), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(named("adamw_bf16")), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(named("adamw_8bit")),
            (Names{"exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"}));
  EXPECT_EQ(names(named("lion")), (Names{"exp_avg"}));
  EXPECT_EQ(names(named("muon")), (Names{"momentum_buffer"}));
  OptimizerConfig sgd = named("sgd");
  EXPECT_EQ(names(sgd), (Names{"momentum_buffer"}));
  sgd.momentum = 0;
  EXPECT_EQ(names(sgd), Names());
}

TEST(OptimizerKinds, EightBitsAreForMatricesWithRowsOfWholeBlocksAndAdamWDoesTheRest) {
  const OptimizerChoice choice(named("adamw_8bit"));
  const auto kind_of = [&](ParameterTag tag, const std::vector<int64_t>& shape) {
    return choice.of(parameter_of(tag, shape)).name;
  };
  EXPECT_EQ(kind_of(ParameterTag::matrix, {3, 512}), "adamw_8bit");
  EXPECT_EQ(kind_of(ParameterTag::head, {3, 256}), "adamw_8bit");
  EXPECT_EQ(kind_of(ParameterTag::matrix, {512, 384}), "adamw");
  EXPECT_EQ(kind_of(ParameterTag::norm, {512}), "adamw");
  EXPECT_EQ(kind_of(ParameterTag::embedding, {300, 512}), "adamw");
  // A rank's part of a tensor that is divided is judged by the whole.
  ParameterSpec part = parameter_of(ParameterTag::matrix, {4, 256});
  part.sub_tensors[0].offsets = {0, 0};
  part.sub_tensors[0].tensor_shape = {4, 384};
  EXPECT_EQ(choice.of(part).name, "adamw");
}

TEST(OptimizerKinds, StateOfFewerBitsIsSmallerInTheAccount) {
  const auto bytes = [](const std::string& name) {
    int64_t total = 0;
    for (const SlotSpec& slot :
         OptimizerChoice(named(name)).slots(parameter_of(ParameterTag::matrix, {4, 512})))
      total += slot.bytes(4 * 512);
    return total;
  };
  EXPECT_EQ(bytes("adamw"), 8 * 2048);
  EXPECT_EQ(bytes("adamw_bf16"), 4 * 2048);
  EXPECT_EQ(bytes("adamw_8bit"), 2 * 2048 + 2 * 4 * 8);
}

struct Rank {
  int64_t rank = 3;
};

TEST(OptimizerKinds, OfAPluginAreFoundReadItsSectionAndOthersRefused) {
  auto registry = std::make_shared<Registry>();
  registry->add(config_section(
      "rank", SchemaOf<Rank>().field("rank", &Rank::rank, "Rank.", {.min = 1, .max = 9}), "Rank."));
  registry->add(OptimizerKind{
      .name = "mine",
      .slots =
          [](const OptimizerConfig&, const Extensions& extensions) {
            return std::vector<SlotSpec>{{"sum" + std::to_string(extensions.section<Rank>().rank)}};
          },
      .workspace = [](const OptimizerConfig&, const Extensions& extensions, int64_t rows,
                      int64_t columns) { return 4 * rows * columns * extensions.section<Rank>().rank; }});
  const OptimizerChoice mine(named("mine"), Extensions(make_config_shape(registry)));
  const UnitSpec unit{.name = "u", .parameters = {parameter_of(ParameterTag::norm, {7})}};
  EXPECT_EQ(mine.slots(unit), (UnitSlots{{{"sum3"}}}));
  EXPECT_EQ(mine.workspace(unit, 1024), 3 * 4096);
  UnitSpec frozen = unit;
  frozen.trainable = false;
  EXPECT_EQ(mine.slots(frozen), UnitSlots(1));
  EXPECT_CONTAINS(message_of<UsageError>([] { OptimizerChoice choice(named("mine")); }),
                  "optimizer.name = \"mine\"", "is a plug-in missing?");
}

}  // namespace
}  // namespace stepforge::testing
