// SPDX-License-Identifier: Apache-2.0
// Runs whose frozen weights have coded factors (model.double_quantization).
#include <map>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/storage/tensor_parts.h"
#include "tests/train/adapter_runs.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// Some matrices have two scales, of 256 blocks each.
const Strings kWiderBlocks = kBlocks + Strings{"model.ffn_dim=256"};
const Strings kTwiceQuantized = kWiderBlocks + frozen_as("nf4") + Strings{"model.double_quantization=true"};

/// What the codes that a rank holds stand for, by tensor and slice of it.
using CodedParts = std::vector<std::tuple<std::string, TensorSlice, at::Tensor>>;

CodedParts coded_parts(Trainer& trainer) {
  CodedParts parts;
  for (const NamedTensor& tensor : named_tensors(*trainer.store)) {
    const UnitStore& unit = trainer.store->unit(tensor.unit);
    if (!unit.coded()) continue;
    const at::Tensor values = unit.master_values();
    for (const ShardSlice& held : shard_slices(unit, tensor))
      parts.emplace_back(tensor.name, held.slice, part_of(values, held).clone());
  }
  return parts;
}

/// Calls the function with what a run has before its first step.
void record_parts(TestRun& run, CodedParts& parts) {
  run.trainer().add_callback(
      std::make_unique<CallAtStart>([&parts](Trainer& trainer) { parts = coded_parts(trainer); }));
}

TEST(DoubleQuantization, GivesTheSameNumbersInEveryLayout) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kWiderBlocks);
  const auto run_of = [&](const std::string& name, const Strings& layout) {
    return lora_run(folder, name, base,
                    kTwiceQuantized + layout +
                        Strings{"training.steps=1", "checkpoint.enable=false", "training.global_batch_size=4",
                                "training.local_batch_size=1"});
  };
  CodedParts one;
  TestRun single(run_of("one", {}));
  record_parts(single, one);
  single.run();
  std::map<std::string, at::Tensor> whole;
  for (const auto& [name, slice, values] : one) whole[name] = values;
  ASSERT_EQ(whole.size(), 2 * 7U) << "matrices of two layers";
  int number = 0;
  for (const Strings& layout :
       {Strings{}, Strings{"parallelism.fsdp_partition=by_tensor"},
        Strings{"parallelism.tensor_parallel_degree=2"}, Strings{"parallelism.pipeline_parallel_degree=2"}}) {
    RankThreads threads(2);
    std::vector<CodedParts> parts(2);
    const std::string name = format("two{}", ++number);
    threads.run([&](int) { return run_of(name, layout); },
                [&](TestRun& run, int rank) { record_parts(run, parts.at(static_cast<size_t>(rank))); });
    for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << name;
    int64_t elements = 0;
    for (const CodedParts& of_rank : parts) {
      for (const auto& [tensor, slice, values] : of_rank) {
        elements += values.numel();
        EXPECT_TRUE(at::equal(part_of(whole.at(tensor), slice), values))
            << join(layout, " ") << ": " << tensor << " " << slice_text(slice);
      }
    }
    int64_t expected = 0;
    for (const auto& [tensor, values] : whole) expected += values.numel();
    EXPECT_EQ(elements, expected) << join(layout, " ");
  }
}

TEST(DoubleQuantization, ChangesWeightsByLittle) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kWiderBlocks);
  const auto decoded = [&](const std::string& name, const Strings& more) {
    TestRun run(lora_run(folder, name, base,
                         kTwiceQuantized + Strings{"training.steps=1", "checkpoint.enable=false"} + more));
    CodedParts parts;
    record_parts(run, parts);
    run.run();
    return parts;
  };
  for (const char* init : {"kaiming", "pissa"}) {
    const std::string from = format("adapter.init={}", init);
    const CodedParts twice = decoded(format("{}-twice", init), {from});
    const CodedParts once = decoded(format("{}-once", init), {from, "model.double_quantization=false"});
    ASSERT_EQ(twice.size(), once.size());
    for (size_t i = 0; i < twice.size(); ++i) {
      const at::Tensor& expected = std::get<2>(once[i]);
      const double fault = (std::get<2>(twice[i]) - expected).abs().max().item<double>();
      EXPECT_GT(fault, 0.0) << from << " " << std::get<0>(once[i]);
      EXPECT_LT(fault, 0.02 * expected.abs().max().item<double>()) << from << " " << std::get<0>(once[i]);
    }
  }
}

TEST(DoubleQuantization, OfInitialValuesIsThatOfTheSameValuesInAFolder) {
  const TempFolder folder;
  const Strings sizes = trainer_run(folder / "base") + kWiderBlocks;
  const Strings frozen{"model.freeze=layers.0", "model.frozen_dtype=nf4", "model.double_quantization=true",
                       "checkpoint.enable=false", "training.steps=1"};
  CodedParts initial;
  TestRun run(sizes + frozen);
  record_parts(run, initial);
  run.run();
  std::map<std::string, at::Tensor> plain;
  TestRun wide(trainer_run(folder / "wide") + kWiderBlocks + Strings{"training.steps=1"});
  wide.trainer().add_callback(std::make_unique<CallAtStart>([&](Trainer& trainer) {
    for (const NamedTensor& tensor : named_tensors(*trainer.store)) {
      const UnitStore& unit = trainer.store->unit(tensor.unit);
      for (const ShardSlice& held : shard_slices(unit, tensor))
        plain[tensor.name] = part_of(unit.master(), held).clone();
    }
  }));
  wide.run();
  ASSERT_EQ(initial.size(), 7U);
  for (const auto& [name, slice, values] : initial) {
    const at::Tensor weights = plain.at(name).contiguous().view({-1});
    const UnitSpec unit{.name = "unit",
                        .parameters = {{"matrix",
                                        plain.at(name).sizes().vec(),
                                        {{"weight", name, plain.at(name).size(0), {}}}}},
                        .trainable = false,
                        .master = DType::u8,
                        .code = WeightCode::nf4,
                        .coded_factors = true};
    UnitStore store(unit, {}, {.with_gradient = false});
    TensorFactors factors(weights.numel());
    factors.add(0, weights);
    store.store(0, weights);
    store.store_factors(0, 0, factors);
    EXPECT_TRUE(at::equal(store.master_values().narrow(0, 0, weights.numel()).view(values.sizes()), values))
        << name;
  }
}

TEST(DoubleQuantization, OfOtherTypesIsRefused) {
  const TempFolder folder;
  for (const char* type : {"fp32", "int8"})
    EXPECT_CONTAINS(message_of<UsageError>([&] {
                      TestRun(trainer_run(folder / "run") + of_type("lora") + frozen_as(type) +
                              Strings{"model.double_quantization=true"});
                    }),
                    "model.double_quantization", "only the factors of nf4");
}

}  // namespace
}  // namespace stepforge::testing
