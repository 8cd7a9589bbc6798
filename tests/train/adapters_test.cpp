// SPDX-License-Identifier: Apache-2.0
// Runs that train adapters: what they change, what their checkpoints hold, and in which layouts they continue.
#include "stepforge/catalog/adapters.h"

#include <algorithm>

#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/train/adapter_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

TEST(AdapterRun, StartsAsTheModelThatItBelongsTo) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Strings one_step{"training.steps=1", "checkpoint.enable=false"};
  for (const char* compute : {"fp32", "bf16"}) {
    const Strings run = one_step + Strings{format("precision.compute={}", compute)};
    const Records plain = TestRun(trainer_run(folder / "plain") +
                                  Strings{format("checkpoint.initial_load_path={}", base.string())} + run)
                              .run();
    for (const char* type : {"lora", "dora"}) {
      const Records adapted = TestRun(lora_run(folder, "adapted", base, run + of_type(type))).run();
      EXPECT_EQ(plain.at(0).loss, adapted.at(0).loss) << "B is zero: " << type;
    }
  }
}

TEST(AdapterRun, ChangesAdaptersAndNothingElse) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  for (const auto& [type, dtype] :
       {std::pair{"lora", "fp32"}, {"lora", "bf16"}, {"lora", "nf4"}, {"lora", "int8"}, {"dora", "nf4"}}) {
    TestRun run(
        lora_run(folder, format("{}_{}", type, dtype), base, kBlocks + of_type(type) + frozen_as(dtype)));
    std::string before;
    run.trainer().add_callback(std::make_unique<RecordFrozenBits>(before));
    const Records steps = run.run();
    EXPECT_FALSE(before.empty());
    EXPECT_EQ(frozen_bits(run.trainer()), before);
    EXPECT_NE(steps.at(3).loss, steps.at(0).loss);
  }
}

TEST(AdapterRun, CheckpointsHoldTheAdapterAndNotTheModel) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  TestRun(lora_run(folder, "run", base, {"adapter.also_train=norm"})).run();
  for (const std::string& name : stored_tensors(adapter_step(folder, "run", 4)).names()) {
    const bool of_adapter = name.find("lora_") != std::string::npos;
    const bool of_norm =
        name.ends_with("model.norm.weight") || name.find("model.norm.weight.") != std::string::npos;
    EXPECT_TRUE(of_adapter || of_norm) << name;
  }
}

// Cases 45 to 60 of the silent faults of adapters: of checkpoints that depend on the layout.
TEST(AdapterRun, ContinuesInEveryLayoutWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  for (const char* type : {"lora", "dora"}) {
    const Strings ordered = of_type(type) + kOrderedSums;
    const Records whole = TestRun(lora_run(folder, type, base, ordered)).run();
    for (const int ranks : {1, 2, 4}) {
      const std::string name = format("{}{}", type, ranks);
      fs::create_directories(folder / name);
      fs::copy(folder / type, folder / name, fs::copy_options::recursive);
      RankThreads threads(ranks);
      const auto records = threads.run(
          [&](int) { return lora_run(folder, name, base, ordered + Strings{"checkpoint.load_step=2"}); },
          [](TestRun&, int) {});
      for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << name;
      ASSERT_EQ(records.at(0).size(), 2U);
      EXPECT_EQ(records[0][1].loss, whole.at(3).loss) << name;
      EXPECT_EQ(records[0][1].grad_norm, whole.at(3).grad_norm) << name;
    }
  }
}

TEST(AdapterRun, MagnitudesThatAreLoadedFromNowhereStartAsNorms) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Records lora = TestRun(lora_run(folder, "lora", base)).run();
  const std::string from = adapter_step(folder, "lora", 4).string();
  const auto first_loss = [&](const char* name, const char* type) {
    return TestRun(trainer_run(folder / name) +
                   Strings{"checkpoint.initial_load_path=" + from, "checkpoint.initial_load_model_only=true",
                           "checkpoint.strict=false", "checkpoint.enable=false", "adapter.rank=4",
                           "training.steps=1"} +
                   of_type(type))
        .run()
        .at(0)
        .loss;
  };
  EXPECT_EQ(first_loss("as_dora", "dora"), first_loss("as_lora", "lora"));
}

TEST(AdapterRun, FromAFolderOfAnotherKindIsRefused) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  TestRun(lora_run(folder, "first", base, {"checkpoint.last_save_in_hf=true"})).run();
  EXPECT_CONTAINS(
      message_of<UsageError>([&] {
        TestRun(lora_run(folder, "second", base,
                         of_type("dora") +
                             Strings{"adapter.from=" + (folder / "first" / "hf" / "step-4").string()}))
            .run();
      }),
      "is one of lora", "remove adapter.type");
}

/// The curves on two ranks are those of `one`, of the run of `args` on one rank.
void expect_curve_on_two_ranks(const TempFolder& folder, const fs::path& base, const Strings& args,
                               const Records& one, const std::vector<Strings>& layouts) {
  int number = 0;
  for (const Strings& layout : layouts) {
    RankThreads threads(2);
    const std::string name = format("two{}", ++number);
    const auto records =
        threads.run([&](int) { return lora_run(folder, name, base, args + layout); }, [](TestRun&, int) {});
    for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << layout.back();
    expect_curve(records.at(0), one, layout.back());
  }
}

const std::vector<Strings> kTensorLayouts{
    {"parallelism.tensor_parallel_degree=2"},
    {"parallelism.tensor_parallel_degree=2", "parallelism.enable_sequence_parallel=false"},
    {"parallelism.tensor_parallel_degree=2", "parallelism.enable_async_tensor_parallel=true"}};

TEST(AdapterRun, OfDoraHasTheCurveOfOneRankInEveryLayout) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  const Strings dora =
      kBlocks + of_type("dora") + Strings{"training.global_batch_size=4", "training.local_batch_size=1"};
  const Records one = TestRun(lora_run(folder, "one", base, dora)).run();
  EXPECT_NE(one.at(3).loss, one.at(0).loss);
  std::vector<Strings> layouts = kTensorLayouts;
  for (const char* layout : {"parallelism.context_parallel_degree=2",
                             "parallelism.pipeline_parallel_degree=2", "parallelism.fsdp_cpu_offload=true"})
    layouts.push_back({layout});
  expect_curve_on_two_ranks(folder, base, dora, one, layouts);
}

TEST(AdapterRun, DropsTheSameElementsOnTensorParallelRanks) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  const Strings batch = kBlocks + Strings{"training.global_batch_size=4", "training.local_batch_size=1"};
  const Strings dropped = batch + Strings{"adapter.dropout=0.5"};
  const Records one = TestRun(lora_run(folder, "one", base, dropped)).run();
  EXPECT_NE(one.at(3).loss, TestRun(lora_run(folder, "whole", base, batch)).run().at(3).loss);
  expect_curve_on_two_ranks(folder, base, dropped, one, kTensorLayouts);
}

TEST(AdapterRun, OfCodesHasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  for (const std::string_view code : {"nf4", "nf4 twice", "int8"}) {
    const bool is_twice = code == "nf4 twice";
    const Strings sizes = kBlocks + kOrderedSums + frozen_as(is_twice ? "nf4" : code) +
                          Strings{format("model.double_quantization={}", is_twice)};
    TestRun one(lora_run(folder, format("{}-one", code), base, sizes));
    const Records whole = one.run();
    const UnitSpec& coded = one.trainer().store->unit(3).spec();
    EXPECT_NE(coded.code, WeightCode::none) << coded.name;
    EXPECT_EQ(coded.coded_factors, is_twice) << coded.name;
    for (const Strings& layout : {Strings{}, Strings{"parallelism.pipeline_parallel_degree=2"}}) {
      RankThreads threads(2);
      const std::string name = format("{}-two{}", code, layout.size());
      const auto records = threads.run([&](int) { return lora_run(folder, name, base, sizes + layout); },
                                       [](TestRun&, int) {});
      for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << name;
      for (size_t step = 0; step < whole.size(); ++step) {
        EXPECT_EQ(records.at(0).at(step).loss, whole[step].loss) << name << " " << step;
        EXPECT_EQ(records.at(0).at(step).grad_norm, whole[step].grad_norm) << name << " " << step;
      }
    }
  }
}

/// Writes them into a run that has the same weights as numbers.
void store_decoded(const std::map<std::string, at::Tensor>& decoded, Trainer& trainer) {
  for (size_t u = 0; u < trainer.store->size(); ++u) {
    UnitStore& unit = trainer.store->unit(u);
    const std::string& name = unit.spec().name;
    if (!name.ends_with(".frozen")) continue;
    const auto found = decoded.find(name.substr(0, name.size() - 6) + "codes");
    ASSERT_NE(found, decoded.end()) << name;
    int64_t begin = 0;
    for (size_t i = 0; i < unit.spec().parameters.size(); ++i) {
      if (unit.spec().parameters[i].tag != ParameterTag::matrix) continue;
      const int64_t elements = unit.spec().parameters[i].elements();
      unit.master_view(i).view({-1}).copy_(found->second.narrow(0, begin, elements));
      begin += elements;
    }
  }
}

TEST(AdapterRun, OfCodesTrainsAsOnTheWeightsThatTheyStandFor) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks + Strings{"checkpoint.export_dtype=bf16"});
  for (const WeightCodeKind& kind : kWeightCodes) {
    const auto run_of = [&](const char* name, std::string_view dtype) {
      return lora_run(folder, format("{}-{}", kind.name, name), base,
                      kBlocks + kOrderedSums + frozen_as(dtype));
    };
    TestRun coded(run_of("coded", kind.name));
    const Records steps = coded.run();
    const auto decoded = decoded_units(coded.trainer());
    ASSERT_EQ(decoded.size(), 2U);
    TestRun plain(run_of("plain", "fp32"));
    plain.trainer().add_callback(
        std::make_unique<CallAtStart>([&](Trainer& trainer) { store_decoded(decoded, trainer); }));
    const Records expected = plain.run();
    for (size_t step = 0; step < steps.size(); ++step)
      EXPECT_EQ(steps[step].loss, expected.at(step).loss) << kind.name << " " << step;
  }
}

TEST(AdapterRun, IsExportedAsAFolderOfPeftThatARunStartsFrom) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Strings hf{"checkpoint.last_save_in_hf=true", "adapter.type=dora"};
  TestRun(lora_run(folder, "first", base, hf + Strings{"adapter.patterns=[{pattern=\"k_proj\",rank=2}]"}))
      .run();
  const fs::path adapter = folder / "first" / "hf" / "step-4";
  ASSERT_TRUE(fs::exists(adapter / "adapter_model.safetensors"));
  TestRun second(trainer_run(folder / "second") +
                 Strings{format("checkpoint.initial_load_path={}", base.string()),
                         "adapter.from=" + adapter.string(), "training.steps=1", "checkpoint.interval=1",
                         "optimizer.lr=0", "lr_scheduler.warmup_steps=0"});
  second.run();
  EXPECT_EQ(second.trainer().config.adapter.rank, 4);
  EXPECT_EQ(second.trainer().config.adapter.type, AdapterType::dora) << "as the folder says";
  const TensorFolder left = stored_tensors(adapter_step(folder, "first", 4));
  const TensorFolder right = stored_tensors(adapter_step(folder, "second", 1));
  int64_t compared = 0;
  for (const std::string& name : left.names()) {
    if (!is_adapter_tensor(name)) continue;
    ++compared;
    const StoredTensor* there = right.find(name);
    ASSERT_NE(there, nullptr) << name;
    EXPECT_EQ(there->shape, left.find(name)->shape) << name;
    const TensorSlice all = whole_slice(there->shape);
    std::vector<std::byte> bytes[2];
    for (auto& each : bytes) each.resize(static_cast<size_t>(all.elements()) * 4);
    left.read(name, all, bytes[0]);
    right.read(name, all, bytes[1]);
    EXPECT_EQ(bytes[0], bytes[1]) << name;
  }
  EXPECT_GT(compared, 0);
}

TEST(AdapterRun, WithoutAModelOnDiskOrWithFreezeIsRefused) {
  const TempFolder folder;
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { TestRun(trainer_run(folder / "run") + Strings{"adapter.type=lora"}); }),
      "checkpoint.initial_load_path");
  EXPECT_CONTAINS(
      message_of<UsageError>([&] {
        TestRun(trainer_run(folder / "run") +
                Strings{"adapter.type=lora", "checkpoint.enable=false", "model.freeze=embedding"});
      }),
      "adapter.also_train");
}

TEST(AdapterRun, IsRefusedAsThePlainModelOfAnotherRun) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  TestRun(lora_run(folder, "run", base)).run();
  EXPECT_CONTAINS(
      message_of<UsageError>([&] {
        TestRun(trainer_run(folder / "next") +
                Strings{format("checkpoint.initial_load_path={}", adapter_step(folder, "run", 4).string()),
                        "checkpoint.initial_load_model_only=true"})
            .run();
      }),
      "--merge");
}

}  // namespace
}  // namespace stepforge::testing
