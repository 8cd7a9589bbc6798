// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/unit_store.h"

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/modelspec/stage_part.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/rank_groups.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr Initializer kNormal{Initializer::Kind::normal, 0.5};

ParameterSpec matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {name, {rows, columns}, {{"weight", "hf." + name, rows, kNormal}}, ParameterTag::matrix};
}

UnitSpec two_parameters() {
  return {"unit", {matrix("first", 3, 5), matrix("second", 300, 4)}, true};
}

/// The initial values of each sub-tensor of a unit by its Hugging Face name.
std::map<std::string, at::Tensor> sub_tensors_of(const UnitSpec& spec, uint64_t seed) {
  UnitStore store(spec, {}, {.with_gradient = false});
  store.initialize(seed);
  std::map<std::string, at::Tensor> values;
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    int64_t row = 0;
    for (const SubTensor& sub_tensor : spec.parameters[i].sub_tensors) {
      values[sub_tensor.hf_name] = store.master_view(i).narrow(0, row, sub_tensor.rows).clone();
      row += sub_tensor.rows;
    }
  }
  return values;
}

TEST(UnitStore, InitialValuesDependOnSeedHuggingFaceNameAndElementOnly) {
  const SubTensor gate{"gate", "mlp.gate", 6, kNormal};
  const SubTensor up{"up", "mlp.up", 10, kNormal};
  const UnitSpec packed{"unit", {{"gate_up", {16, 4}, {gate, up}}}, true};
  const UnitSpec swapped{
      "other", {{"x", {2, 7}, {{"weight", "x", 2, kNormal}}}, {"up_gate", {16, 4}, {up, gate}}}, true};
  const UnitSpec apart{"third", {{"up", {10, 4}, {up}}, {"gate", {6, 4}, {gate}}}, true};
  const auto expected = sub_tensors_of(packed, 1);
  for (const UnitSpec& unit : {swapped, apart}) {
    auto values = sub_tensors_of(unit, 1);
    EXPECT_TRUE(at::equal(values.at("mlp.gate"), expected.at("mlp.gate"))) << unit.name;
    EXPECT_TRUE(at::equal(values.at("mlp.up"), expected.at("mlp.up"))) << unit.name;
  }
  EXPECT_FALSE(at::equal(sub_tensors_of(packed, 2).at("mlp.up"), expected.at("mlp.up")));
  EXPECT_FALSE(at::equal(expected.at("mlp.up").narrow(0, 0, 6), expected.at("mlp.gate")));
}

TEST(ModelStore, NormsStartAtOneAndMatricesWithTheirStd) {
  TinyModel tiny(tiny_config("qwen3"));
  for (size_t u = 0; u < tiny.store.size(); ++u) {
    const UnitSpec& unit = tiny.store.unit(u).spec();
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const at::Tensor values = tiny.store.unit(u).master_view(i);
      if (unit.parameters[i].tag == ParameterTag::norm) {
        EXPECT_TRUE(values.eq(1).all().item<bool>()) << unit.parameters[i].name;
        continue;
      }
      const SubTensor& sub_tensor = unit.parameters[i].sub_tensors.front();
      const at::Tensor part = values.narrow(0, 0, sub_tensor.rows);
      EXPECT_NEAR(part.std().item<double>() / sub_tensor.init.std, 1.0, 0.06) << unit.parameters[i].name;
      if (sub_tensor.init.kind == Initializer::Kind::truncated_normal) {
        EXPECT_LE(part.abs().max().item<double>(), sub_tensor.init.cutoff * sub_tensor.init.std)
            << unit.parameters[i].name;
      }
    }
  }
}

TEST(UnitStore, ParametersAreViewsOfTheFlatBuffersAtTheLayoutsOffsets) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  EXPECT_TRUE(store.resident());
  EXPECT_EQ(store.master().numel(), store.gathered_size());
  EXPECT_EQ(store.gathered_size() % kUnitAlignment, 0);
  for (size_t i = 0; i < 2; ++i) {
    const int64_t offset = store.shards().gathered().offsets[i];
    EXPECT_EQ(offset % kTensorAlignment, 0);
    Parameter& parameter = store.parameters()[i];
    EXPECT_EQ(parameter.value().data_ptr<float>(), store.master().data_ptr<float>() + offset);
    EXPECT_EQ(parameter.gradient().data_ptr<float>(), store.gradient().data_ptr<float>() + offset);
    EXPECT_EQ(store.master_view(i).data_ptr(), parameter.value().data_ptr());
    EXPECT_EQ(parameter.value().sizes(), at::IntArrayRef(spec.parameters[i].shape));
    EXPECT_TRUE(parameter.value().is_leaf() && parameter.value().requires_grad());
  }
}

TEST(UnitStore, PaddingIsZeroBeforeAndAfterInitialize) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  store.initialize(5);
  const auto& offsets = store.shards().gathered().offsets;
  EXPECT_TRUE(store.master().slice(0, offsets[0] + 15, offsets[1]).eq(0).all().item<bool>());
  EXPECT_TRUE(store.master().slice(0, offsets[1] + 1200).eq(0).all().item<bool>());
  EXPECT_FALSE(store.master_view(0).eq(0).any().item<bool>());
}

TEST(UnitStore, FinishGradientAddsWhatAutogradLeftInTheTensor) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  store.gradient().fill_(9.0);
  store.start_gradient();
  Parameter& second = store.parameters()[1];
  for (int micro_batch = 1; micro_batch <= 2; ++micro_batch) {
    (second.value() * 3.0).sum().backward();
    store.finish_gradient();
    EXPECT_FALSE(second.value().grad().defined());
    EXPECT_TRUE(second.gradient().eq(3.0 * micro_batch).all().item<bool>());
    EXPECT_TRUE(store.parameters()[0].gradient().eq(0).all().item<bool>());
  }
}

/// Records the bytes of live tensors when a communicator is destroyed.
class WatchedWorld : public World {
 public:
  explicit WatchedWorld(std::vector<int64_t>& live) : live_(live) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string transport() const override { return "none"; }
  void abort(const std::string&) override {}
  std::unique_ptr<Communicator> group(const std::string&, const std::vector<int>&) override {
    class Member : public Communicator {
     public:
      explicit Member(std::vector<int64_t>& live) : live_(live) {}
      ~Member() override { live_.push_back(cpu_memory().live_bytes); }
      int rank() const override { return 0; }
      int size() const override { return 2; }
      void all_gather(std::span<const std::byte>, std::span<std::byte>, int) override {}
      void reduce_scatter(std::span<const std::byte>, std::span<std::byte>, DType, int) override {}
      void all_reduce(std::span<std::byte>, DType, int) override {}
      void broadcast(std::span<std::byte>, int) override {}
      void barrier() override {}
      void all_to_all(std::span<const std::byte>, std::span<const std::size_t>, std::span<std::byte>,
                      std::span<const std::size_t>, int) override {}
      void send(std::span<const std::byte>, int) override {}
      void receive(std::span<std::byte>, int) override {}
      void send_receive(std::span<const std::byte>, int, std::span<std::byte>, int) override {}
      void abort(const std::string&) override {}

     private:
      std::vector<int64_t>& live_;
    };
    return std::make_unique<Member>(live_);
  }

 private:
  std::vector<int64_t>& live_;
};

TEST(ModelStore, GroupsAreDestroyedBeforeTheBuffersOfTheirCollectives) {
  install_cpu_allocator();
  std::vector<int64_t> live;
  WatchedWorld world(live);
  const std::vector<UnitSpec> specs = {two_parameters(), two_parameters()};
  auto store =
      std::make_unique<ModelStore>(specs, rank_layout(specs, {}, {0, 2}), StoreOptions{}, rank_groups(world));
  const int64_t before = cpu_memory().live_bytes;
  store.reset();
  EXPECT_EQ(live, std::vector<int64_t>(6, before));
  EXPECT_LT(cpu_memory().live_bytes, before);
}

TEST(ModelStore, ThePartsOfAPipelineStartWithTheValuesOfTheWhole) {
  for (const bool tied : {false, true}) {
    ModelSpec whole = model_spec(tiny_config("qwen3", tied));
    set_stages(whole, std::vector<int>{0, 0, 1, 1});
    ModelStore all(whole.units, rank_layout(whole.units));
    all.initialize(11);
    for (const int stage : {0, 1}) {
      const ModelSpec part = stage_part(whole, {stage});
      ModelStore store(part.units, rank_layout(part.units));
      store.initialize(11);
      for (const UnitSpec& unit : part.units) {
        for (const ParameterSpec& parameter : unit.parameters) {
          EXPECT_TRUE(
              at::equal(store.parameter(parameter.name).value(), all.parameter(parameter.name).value()))
              << parameter.name;
        }
      }
    }
  }
}

TEST(UnitStore, AFrozenUnitHasNoGradient) {
  UnitSpec spec = two_parameters();
  spec.trainable = false;
  const UnitStore frozen(spec);
  EXPECT_FALSE(frozen.trained());
  const UnitSpec trainable = two_parameters();
  UnitStore evaluated(trainable, {}, {.with_gradient = false});
  EXPECT_FALSE(evaluated.trained());
  EXPECT_FALSE(evaluated.parameters()[0].value().requires_grad());
}

TEST(UnitStore, ValuesHaveMemoryOnlyBetweenGatherAndRelease) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec, {.gather = DType::bf16});
  store.initialize(5);
  Parameter& parameter = store.parameters()[1];
  EXPECT_FALSE(store.gathered());
  EXPECT_ANY_THROW(parameter.value().data_ptr<at::BFloat16>());
  const at::Tensor slot = at::empty({store.gathered_size()}, at::kBFloat16);
  store.gather(slot);
  EXPECT_EQ(parameter.value().data_ptr(),
            slot.data_ptr<at::BFloat16>() + store.shards().gathered().offsets[1]);
  EXPECT_TRUE(at::equal(parameter.value().detach(), store.master_view(1).to(at::kBFloat16)));
  store.release();
  EXPECT_FALSE(store.gathered());
  EXPECT_ANY_THROW(parameter.value().data_ptr<at::BFloat16>());
  // A second gather, into other memory, has the masters' current values.
  store.master_view(1).fill_(2.0);
  store.gather(at::empty({store.gathered_size()}, at::kBFloat16));
  EXPECT_TRUE(parameter.value().detach().eq(2.0).all().item<bool>());
}

TEST(UnitStore, FinishGradientZeroesUnwrittenGradients) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  store.gradient().fill_(9.0);
  store.start_gradient();
  Parameter& second = store.parameters()[1];
  second.add_product(at::ones({2, 300}, at::kFloat), at::ones({2, 4}, at::kFloat));
  store.finish_gradient();
  EXPECT_TRUE(store.parameters()[0].gradient().eq(0).all().item<bool>());
  EXPECT_TRUE(second.gradient().eq(2).all().item<bool>());
}

TEST(UnitStore, AnEarlierGradientIsTheLeftOperandOfTheSum) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  std::vector<at::Tensor> leaves;
  const auto write = [&](uint64_t seed) {
    store.start_gradient();
    for (Parameter& parameter : store.parameters()) {
      parameter.add_gradient(random_tensor(parameter.gradient().sizes(), seed));
    }
    leaves.push_back(store.gradient().clone());
  };
  write(1);
  const at::Tensor first = store.take_gradient();
  write(2);
  store.add_gradient(first);
  const at::Tensor first_two = store.take_gradient();
  write(3);
  const at::Tensor third = store.take_gradient();
  write(4);
  store.add_gradient(third);
  store.add_gradient(first_two);
  // (1 + 2) + (3 + 4), not from left to right.
  EXPECT_TRUE(at::equal(store.gradient(), (leaves[0] + leaves[1]) + (leaves[2] + leaves[3])));
  EXPECT_FALSE(at::equal(store.gradient(), ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3]));
}

TEST(UnitStore, AnEarlierGradientOverwritesOneThatHasJustBeenStarted) {
  const UnitSpec spec = two_parameters();
  UnitStore store(spec);
  store.start_gradient();
  for (Parameter& parameter : store.parameters())
    parameter.add_gradient(at::full_like(parameter.gradient(), -0.0));
  const at::Tensor first = store.take_gradient();
  store.start_gradient();
  for (Parameter& parameter : store.parameters()) parameter.add_gradient(at::ones_like(parameter.gradient()));
  const at::Tensor second = store.take_gradient();
  store.start_gradient();
  store.add_gradient(first);
  for (Parameter& parameter : store.parameters())  // -0, not 1 - 0 or 0 - 0
    EXPECT_TRUE(parameter.gradient().eq(0).logical_and(parameter.gradient().signbit()).all().item<bool>());
  store.add_gradient(second);
  EXPECT_TRUE(at::equal(store.gradient(), second));
}

/// A search through all units would make this test, and the start of deep models, take minutes.
TEST(ModelStore, FindsEachParameterOfTwentyThousandUnits) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < 20000; ++i) {
    units.push_back({format("unit {}", i), {matrix(format("weight {}", i), 1, 1)}, true});
  }
  ModelStore store(units, rank_layout(units), {.with_gradient = false});
  for (size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(&store.parameter(format("weight {}", i)), store.unit(i).parameters().data());
  }
}

TEST(ModelStore, AnUnknownParameterIsNamed) {
  TinyModel tiny(tiny_config());
  EXPECT_EQ(tiny.store.parameter("layers.1.mlp.down").spec().name, "layers.1.mlp.down");
  EXPECT_CONTAINS(message_of<Error>([&] { tiny.store.parameter("layers.7.mlp.down"); }), "layers.7.mlp.down");
}

}  // namespace
}  // namespace stepforge::testing
