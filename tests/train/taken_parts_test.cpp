// SPDX-License-Identifier: Apache-2.0
// Runs whose adapters start with parts of the weights (PiSSA): where they start and continue, and what leaves them.
#include "stepforge/train/taken_parts.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/catalog/adapters.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "tests/train/adapter_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const Strings kPissa{"adapter.init=pissa"};
constexpr double kScaleOfRuns = 32.0 / 4;  // alpha / rank of lora_run()

/// What a run on one rank has of a matrix in its frozen unit.
at::Tensor frozen_matrix(Trainer& trainer, const std::string& name) {
  for (const NamedTensor& tensor : named_tensors(*trainer.store)) {
    if (tensor.name != name) continue;
    UnitStore& unit = trainer.store->unit(tensor.unit);
    if (!unit.coded())
      return unit.master_view(tensor.parameter).narrow(0, tensor.row, tensor.shape[0]).to(at::kFloat);
    int64_t begin = 0;
    for (const auto& [slice, local] : unit.slices(tensor.parameter, tensor.row, tensor.row + tensor.shape[0]))
      begin = local;
    return unit.master_values().narrow(0, begin, tensor.elements).view(tensor.shape);
  }
  throw Error(format("the run has no {}", name));
}

/// scale * B A of a module, from tensors of PEFT's names.
at::Tensor product_of(const TensorFolder& adapter, const std::string& module) {
  const std::string prefix = format("{}{}", kAdapterPrefix, module);
  return at::mm(read_whole(adapter, prefix + ".lora_B.weight"),
                read_whole(adapter, prefix + ".lora_A.weight")) *
         kScaleOfRuns;
}

TensorFolder first_values(const fs::path& run) {
  return TensorFolder({run / kInitialAdapterFolder / "rank-00001-of-00001.safetensors"});
}

double largest(const at::Tensor& values) {
  return values.abs().max().item<double>();
}

const char* const kModules[] = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj",
                                "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"};

TEST(PissaRun, StartsAsTheModelWithTheRestOfItsWeights) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Strings one_step{"training.steps=1", "checkpoint.enable=false", "optimizer.lr=0"};
  const Records plain = TestRun(trainer_run(folder / "plain") +
                                Strings{format("checkpoint.initial_load_path={}", base.string())} + one_step)
                            .run();
  const TensorFolder weights = open_hf_weights(base);
  for (const char* type : {"lora", "dora"}) {
    TestRun run(lora_run(folder, type, base, kPissa + one_step + of_type(type)));
    const Records adapted = run.run();
    EXPECT_NEAR(adapted.at(0).loss, plain.at(0).loss, 1e-5 * plain.at(0).loss) << type;
    const TensorFolder first = first_values(folder / type);
    for (const std::string module : kModules) {
      const at::Tensor whole = read_whole(weights, module + ".weight");
      const at::Tensor rest = frozen_matrix(run.trainer(), module + ".weight");
      const at::Tensor part = product_of(first, module);
      EXPECT_LT(largest(rest + part - whole), 1e-6 * largest(whole)) << module;
      // The part is the best one of its rank: what is left is orthogonal to it.
      EXPECT_LT(rest.norm().item<double>(), 0.95 * whole.norm().item<double>()) << module;
      EXPECT_LT(largest(at::mm(rest, part.t())), 1e-4 * whole.square().sum().item<double>()) << module;
    }
  }
}

TEST(PissaRun, OfCodesRoundsOnlyTheRest) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  const TensorFolder weights = open_hf_weights(base);
  const Strings more = kBlocks + Strings{"training.steps=1", "checkpoint.enable=false", "optimizer.lr=0"};
  for (const char* code : {"nf4", "int8"}) {
    TestRun plain(lora_run(folder, format("{}-plain", code), base, more + frozen_as(code)));
    TestRun run(lora_run(folder, code, base, more + kPissa + frozen_as(code)));
    plain.run();
    run.run();
    double error_of_plain = 0;
    double error = 0;
    for (const std::string module : kModules) {
      const std::string name = module + ".weight";
      const at::Tensor whole = read_whole(weights, name);
      const at::Tensor part = product_of(first_values(folder / code), module);
      error_of_plain += (frozen_matrix(plain.trainer(), name) - whole).square().sum().item<double>();
      error += (frozen_matrix(run.trainer(), name) + part - whole).square().sum().item<double>();
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(error, error_of_plain) << code << ": what is left is smaller, and so are its steps";
  }
}

TEST(PissaRun, ContinuesInEveryLayoutWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Strings ordered = kPissa + kOrderedSums;
  const Records whole = TestRun(lora_run(folder, "run", base, ordered)).run();
  EXPECT_NE(whole.at(3).loss, whole.at(0).loss);
  for (const int ranks : {1, 2, 4}) {
    const std::string name = format("run{}", ranks);
    fs::create_directories(folder / name);
    fs::copy(folder / "run", folder / name, fs::copy_options::recursive);
    RankThreads threads(ranks);
    const auto records =
        threads.run(lora_run(folder, name, base, ordered + Strings{"checkpoint.load_step=2"}));
    ASSERT_EQ(records.at(0).size(), 2U);
    EXPECT_EQ(records[0][0].bits, whole.at(2).bits) << name;
    EXPECT_EQ(records[0][1].loss, whole.at(3).loss) << name;
    EXPECT_EQ(records[0][1].grad_norm, whole.at(3).grad_norm) << name;
  }
}

/// Products of divided matrices are rounded differently.
TEST(PissaRun, HasTheCurveOfOneRankInEveryLayout) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kBlocks);
  const Strings more =
      kBlocks + kPissa +
      Strings{"training.global_batch_size=4", "training.local_batch_size=1", "optimizer.lr=0.001"};
  const Records one = TestRun(lora_run(folder, "one", base, more)).run();
  int number = 0;
  for (const char* layout :
       {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2"}) {
    RankThreads threads(2);
    const auto records =
        threads.run(lora_run(folder, format("two{}", ++number), base, more + Strings{layout}));
    expect_curve(records.at(0), one, layout, {.loss = 5e-5, .norm = 1e-3});
  }
}

TEST(PissaRun, LeavesAnAdapterOfTheWholeWeights) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  TestRun run(lora_run(folder, "run", base, kPissa + Strings{"checkpoint.last_save_in_hf=true"}));
  run.run();
  const AdapterFiles exported = open_peft_folder(folder / "run" / "hf" / "step-4");
  EXPECT_EQ(exported.config.rank, 8);
  EXPECT_EQ(exported.config.alpha, 64);
  AdapterDeltas of_export;
  of_export.add(exported.config, exported.weights, 1.0);
  const TensorFolder trained = stored_tensors(adapter_step(folder, "run", 4));
  const InitialAdapter initial(run.trainer().config.adapter, first_values(folder / "run"));
  AdapterDeltas of_run;
  of_run.add(run.trainer().config.adapter, trained, 1.0, /*replaces=*/false, &initial);
  const TensorFolder weights = open_hf_weights(base);
  for (const std::string module : kModules) {
    const std::string name = module + ".weight";
    const at::Tensor whole = read_whole(weights, name);
    const at::Tensor expected = frozen_matrix(run.trainer(), name) + product_of(trained, module);
    EXPECT_GT(largest(expected - whole), 1e-3 * largest(whole)) << "it has learned something";
    for (const AdapterDeltas* deltas : {&of_export, &of_run}) {
      const at::Tensor merged = whole.clone();
      deltas->add_to(name, 0, merged.view({-1}));
      EXPECT_LT(largest(merged - expected), 2e-6 * (largest(whole) + largest(expected))) << name;
    }
  }
}

TEST(PissaRun, AnotherRunStartsFromItsCheckpointWithItsParts) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  TestRun first(lora_run(folder, "first", base, kPissa));
  first.run();
  const auto next = [&](const Strings& more) {
    return lora_run(folder, "next", adapter_step(folder, "first", 4),
                    Strings{"checkpoint.initial_load_model_only=true", "checkpoint.enable=false"} + more);
  };
  std::string before;
  {
    TestRun second(next(kPissa));
    second.trainer().add_callback(std::make_unique<RecordFrozenBits>(before));
    second.run();
  }
  EXPECT_EQ(before, frozen_bits(first.trainer()));
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(next({})).run(); }), "adapter.init", "--merge");
}

TEST(PissaRun, WithoutItsOwnFirstValuesIsRefused) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const Strings run = lora_run(folder, "run", base, kPissa);
  TestRun(run).run(2);
  TestRun(lora_run(folder, "other", base, kPissa + Strings{"adapter.svd_iterations=1"})).run(2);
  fs::rename(folder / "other" / kInitialAdapterFolder / "rank-00001-of-00001.safetensors",
             folder / "run" / kInitialAdapterFolder / "rank-00001-of-00001.safetensors");
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(run).run(); }), "initial_adapter", "other values");
  fs::remove_all(folder / "run" / kInitialAdapterFolder);
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(run).run(); }), "initial_adapter",
                  "put the folder back");
}

TEST(PissaRun, WithoutWholeWeightsOrSingularValuesIsRefused) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder);
  const auto refusal = [&](const Strings& more) {
    return message_of<UsageError>([&] { TestRun(lora_run(folder, "run", base, kPissa + more)).run(); });
  };
  EXPECT_CONTAINS(refusal({"adapter.rank=33"}), "the rank of", "lower rank");
  TestRun(lora_run(folder, "lora", base, {"checkpoint.last_save_in_hf=true"})).run();
  EXPECT_CONTAINS(refusal({"adapter.from=" + (folder / "lora" / "hf" / "step-4").string()}), "adapter.init");
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    TestRun(trainer_run(folder / "none") + kPissa +
                            Strings{"adapter.type=lora", "checkpoint.enable=false"});
                  }),
                  "adapter.init", "model.from");
}

}  // namespace
}  // namespace stepforge::testing
