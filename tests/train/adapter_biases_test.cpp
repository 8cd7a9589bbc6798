// SPDX-License-Identifier: Apache-2.0
// Runs that train biases of the model beside adapters.
#include <ATen/ops/equal.h>

#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/train/adapter_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const Strings kQwen = kBlocks + Strings{"model.family=qwen2"};
const Strings kTwoOfThree{"adapter.targets=q_proj,v_proj"};

Strings biases_of(const char* bias) {
  return kQwen + kTwoOfThree + Strings{format("adapter.bias={}", bias)};
}

std::string bias_name(const char* module) {
  return format("model.layers.0.self_attn.{}.bias", module);
}

TEST(AdapterBiasRun, HasTheCurveOfOneRankInEveryLayout) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kQwen);
  const Strings batch{"training.global_batch_size=4", "training.local_batch_size=1"};
  const Strings biased = biases_of("lora_only") + batch;
  const Records one = TestRun(lora_run(folder, "one", base, biased)).run();
  const Records without = TestRun(lora_run(folder, "without", base, kQwen + kTwoOfThree + batch)).run();
  EXPECT_EQ(one.at(0).loss, without.at(0).loss) << "it starts as the model";
  EXPECT_NE(one.at(3).loss, without.at(3).loss);
  int number = 0;
  for (const char* layout : {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2",
                             "parallelism.fsdp_cpu_offload=true"}) {
    const auto records =
        RankThreads(2).run(lora_run(folder, format("two{}", ++number), base, biased + Strings{layout}));
    expect_curve(records.at(0), one, layout);
  }
  const Records continued =
      TestRun(lora_run(folder, "two1", base, biased + Strings{"checkpoint.load_step=2"})).run();
  expect_curve(continued, {one.at(2), one.at(3)}, "what two ranks have stored, continued by one");
}

TEST(AdapterBiasRun, LeavesTrainedBiasesInCheckpointsAndFoldersOfPeftThatARunStartsFrom) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kQwen);
  const TensorFolder of_base = open_hf_weights(base);
  for (const char* bias : {"all", "lora_only"}) {
    const bool all = std::string(bias) == "all";
    TestRun(lora_run(folder, bias, base, biases_of(bias) + Strings{"checkpoint.last_save_in_hf=true"})).run();
    const TensorFolder left = stored_tensors(adapter_step(folder, bias, 4));
    const fs::path peft = folder / bias / "hf" / "step-4";
    const TensorFolder exported({peft / "adapter_model.safetensors"});
    const std::string prefix = "base_model.model.model.layers.0.self_attn.";
    EXPECT_NE(exported.find(prefix + "q_proj.base_layer.bias"), nullptr) << "as PEFT names it";
    EXPECT_NE(exported.find(prefix + "v_proj.base_layer.bias"), nullptr);
    EXPECT_EQ(exported.find(prefix + "k_proj.bias") != nullptr, all) << "a module without an adapter";
    EXPECT_EQ(left.find(bias_name("k_proj")) != nullptr, all);

    TestRun second(trainer_run(folder / format("{}-next", bias)) + kQwen +
                   Strings{format("checkpoint.initial_load_path={}", base.string()),
                           "adapter.from=" + peft.string(), "training.steps=1", "checkpoint.interval=1",
                           "optimizer.lr=0", "lr_scheduler.warmup_steps=0"});
    second.run();
    EXPECT_EQ(choice_name(second.trainer().config.adapter.bias), bias) << "as the folder says";
    const TensorFolder right = stored_tensors(adapter_step(folder, format("{}-next", bias), 1));
    for (const char* module : {"q_proj", "k_proj", "v_proj"}) {
      const std::string name = bias_name(module);
      if (left.find(name) == nullptr) continue;
      EXPECT_FALSE(at::equal(read_whole(left, name), read_whole(of_base, name))) << name;
      EXPECT_TRUE(at::equal(read_whole(left, name), read_whole(right, name))) << name;
    }
  }
}

TEST(AdapterBiasRun, RefusesBiasesThatAnotherRunHasTrainedOrThatItsFolderLacks) {
  const TempFolder folder;
  const fs::path base = base_of_adapters(folder, kQwen);
  const Strings short_run{"training.steps=1", "checkpoint.interval=1", "checkpoint.last_save_in_hf=true"};
  TestRun(lora_run(folder, "first", base, biases_of("lora_only") + short_run)).run();
  const fs::path step = adapter_step(folder, "first", 1);
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    TestRun(lora_run(folder, "second", step, kQwen + kTwoOfThree + short_run)).run();
                  }),
                  bias_name("q_proj") + " was trained in", "adapter.bias", "--merge");
  TestRun(lora_run(folder, "plain", base, kQwen + kTwoOfThree + short_run)).run();
  const Strings from{format("adapter.from={}", (folder / "plain" / "hf" / "step-1").string()),
                     "adapter.bias=all"};
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    TestRun(trainer_run(folder / "third") + kQwen +
                            Strings{format("checkpoint.initial_load_path={}", base.string())} + from)
                        .run();
                  }),
                  "adapter.bias = \"all\"", "has \"none\"");
}

}  // namespace
}  // namespace stepforge::testing
