// SPDX-License-Identifier: Apache-2.0
// Runs that train adapters of experts: where they start, in which layouts they have the same curve, and what they leave.
#include <cmath>

#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/support/throws.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const Strings kMixture{"model.family=qwen3_moe",      "model.n_experts=4",  "model.experts_per_token=2",
                       "model.moe_ffn_dim=48",        "model.n_kv_heads=2", "training.global_batch_size=4",
                       "training.local_batch_size=1", "model.ffn_dim=48"};
const std::string kSpreadOverTwo = "parallelism.expert_parallel_degree=2";

/// A Hugging Face folder of a mixture that was trained for two steps.
fs::path mixture(const TempFolder& folder, const Strings& more = {}) {
  TestRun(trainer_run(folder / "mixture") + kMixture +
          Strings{"training.steps=2", "checkpoint.last_save_in_hf=true"} + more)
      .run();
  return folder / "mixture" / "hf" / "step-2";
}

/// Starts from `base`, without an adapter.
Strings mixture_run(const TempFolder& folder, const std::string& name, const fs::path& base,
                    const Strings& more = {}) {
  return trainer_run(folder / name) + kMixture +
         Strings{format("checkpoint.initial_load_path={}", base.string()), "training.steps=4",
                 "checkpoint.interval=2", "lr_scheduler.warmup_steps=0", "optimizer.lr=0.01"} +
         more;
}

/// Of experts and of all other matrices of layers.
Strings expert_lora(const Strings& more = {}) {
  return Strings{"adapter.type=lora", "adapter.rank=4", R"(adapter.targets=all-linear,.*\.experts\..*)"} +
         more;
}

const Strings kSharedA = expert_lora({"adapter.experts=shared_a"});
const Strings kDora = expert_lora({"adapter.type=dora"});

double first_loss(const Strings& run) {
  const Strings one_step{"training.steps=1", "checkpoint.enable=false", "optimizer.lr=0"};
  return TestRun(run + one_step).run().at(0).loss;
}

/// Of the second half of the steps.
double late_losses(const Records& steps) {
  double sum = 0;
  for (size_t i = steps.size() / 2; i < steps.size(); ++i) sum += steps[i].loss;
  return sum;
}

TensorFolder stored_at(const TempFolder& folder, const std::string& run, int64_t step) {
  return stored_tensors(folder / run / "checkpoint" / format("step-{}", step));
}

std::string stored_bytes(const TensorFolder& tensors, const std::string& name) {
  const StoredTensor* found = tensors.find(name);
  if (found == nullptr) return "none";
  const TensorSlice all = whole_slice(found->shape);
  std::vector<std::byte> bytes(static_cast<size_t>(all.elements()) * 4);
  tensors.read(name, all, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ExpertAdapterRun, StartsAsTheModelThatItBelongsToAndLearns) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  for (const char* compute : {"fp32", "bf16"}) {
    const Strings in{format("precision.compute={}", compute)};
    const Strings longer = in + Strings{"training.steps=30", "checkpoint.enable=false"};
    const Records plain =
        TestRun(mixture_run(folder, format("plain_{}", compute), base, longer + Strings{"optimizer.lr=0"}))
            .run();
    const Records steps =
        TestRun(mixture_run(folder, format("adapted_{}", compute), base, longer + expert_lora())).run();
    EXPECT_EQ(steps.at(0).loss, plain.at(0).loss) << "B is zero: " << compute;
    const double first = first_loss(mixture_run(folder, "first", base, in));
    for (const Strings& more : {kDora, kDora + Strings{kSharedA.back()}})
      EXPECT_EQ(first_loss(mixture_run(folder, "dora", base, in + more)), first) << compute;
    EXPECT_LT(late_losses(steps), late_losses(plain)) << compute;
  }
}

TEST(ExpertAdapterRun, StartsWithPartsOfEachExpert) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  const double plain = first_loss(mixture_run(folder, "plain", base));
  const Strings pissa = expert_lora({"adapter.init=pissa"});
  EXPECT_NEAR(first_loss(mixture_run(folder, "pissa", base, pissa)), plain, 1e-5 * plain);
  const auto records =
      RankThreads(2).run(mixture_run(folder, "spread", base, pissa + Strings{kSpreadOverTwo}), 1);
  EXPECT_NEAR(records.at(0).at(0).loss, plain, 1e-5 * plain);
}

TEST(ExpertAdapterRun, TrainsEachMatrixOfEachExpert) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun(mixture_run(folder, "run", base, expert_lora())).run();
  const TensorFolder early = stored_at(folder, "run", 2);
  const TensorFolder late = stored_at(folder, "run", 4);
  int64_t of_experts = 0;
  for (const std::string& name : late.names()) {
    if (!is_adapter_tensor(name)) continue;
    of_experts += name.find(".experts.") != std::string::npos ? 1 : 0;
    EXPECT_NE(stored_bytes(early, name), stored_bytes(late, name)) << name;
  }
  EXPECT_EQ(of_experts, 2 * 4 * 3 * 2) << "layers, experts, matrices, A and B";
}

TEST(ExpertAdapterRun, ContinuesOnAnyNumberOfRanksWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  const Strings ordered = expert_lora({"training.reduction=ordered"});
  const Records whole = TestRun(mixture_run(folder, "whole", base, ordered)).run();
  for (const int ranks : {1, 2}) {
    const std::string name = format("on_{}", ranks);
    fs::create_directories(folder / name);
    fs::copy(folder / "whole", folder / name, fs::copy_options::recursive);
    const auto records =
        RankThreads(ranks).run(mixture_run(folder, name, base, ordered + Strings{"checkpoint.load_step=2"}));
    ASSERT_EQ(records.at(0).size(), 2U);
    EXPECT_EQ(records[0][1].loss, whole.at(3).loss) << name;
    EXPECT_EQ(records[0][1].grad_norm, whole.at(3).grad_norm) << name;
  }
}

constexpr CurveTolerance kExpertCurve{.norm = 1e-3};

TEST(ExpertAdapterRun, OfSpreadExpertsHasTheCurveOfOneRank) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  const Records one = TestRun(mixture_run(folder, "one", base, expert_lora())).run();
  const std::string tensor = "parallelism.tensor_parallel_degree=2";
  int number = 0;
  for (const auto& [ranks, layout] : std::vector<std::pair<int, Strings>>{
           {2, {kSpreadOverTwo}},
           {2, {kSpreadOverTwo, "parallelism.expert_parallel_dispatcher=allgather"}},
           {2, {kSpreadOverTwo, "activation_checkpoint.mode=full"}},
           {2, {tensor}},
           {2, {tensor, kSpreadOverTwo}},
           {4, {kSpreadOverTwo}}}) {
    const std::string name = format("spread{}", ++number);
    const auto records = RankThreads(ranks).run(mixture_run(folder, name, base, expert_lora(layout)));
    expect_curve(records.at(0), one, name + ": " + join(layout, " "), kExpertCurve);
  }
  // What these ranks have stored one rank continues.
  const Records continued =
      TestRun(mixture_run(folder, "spread1", base, expert_lora({"checkpoint.load_step=2"}))).run();
  expect_curve(continued, {one.at(2), one.at(3)}, "continued by one rank", kExpertCurve);
}

TEST(ExpertAdapterRun, WithASharedAHasTheCurveOfOneRank) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  const Records one = TestRun(mixture_run(folder, "one", base, kSharedA)).run();
  int number = 0;
  for (const auto& [ranks, layout] : std::vector<std::pair<int, Strings>>{
           {2, {kSpreadOverTwo}},
           {2, {kSpreadOverTwo, "parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=full"}},
           {4, {kSpreadOverTwo}}}) {
    const std::string name = format("spread{}", ++number);
    const auto records = RankThreads(ranks).run(mixture_run(folder, name, base, kSharedA + layout));
    expect_curve(records.at(0), one, name + ": " + join(layout, " "), kExpertCurve);
  }
  const Records continued =
      TestRun(mixture_run(folder, "spread1", base, kSharedA + Strings{"checkpoint.load_step=2"})).run();
  expect_curve(continued, {one.at(2), one.at(3)}, "continued by one rank", kExpertCurve);
}

TEST(ExpertAdapterRun, OfDoraHasTheCurveOfOneRank) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  const Records one = TestRun(mixture_run(folder, "one", base, kDora)).run();
  EXPECT_NE(one.at(3).loss, one.at(0).loss);
  int number = 0;
  for (const Strings& layout : std::vector<Strings>{
           {kSpreadOverTwo},
           {kSpreadOverTwo, "parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=full"}}) {
    const std::string name = format("spread{}", ++number);
    const auto records = RankThreads(2).run(mixture_run(folder, name, base, kDora + layout));
    expect_curve(records.at(0), one, name, kExpertCurve);
  }
  const Strings with_one_a = kDora + Strings{kSharedA.back()};
  const Records shared = TestRun(mixture_run(folder, "shared", base, with_one_a)).run();
  const auto records =
      RankThreads(2).run(mixture_run(folder, "shared2", base, with_one_a + Strings{kSpreadOverTwo}));
  expect_curve(records.at(0), shared, "with one A", kExpertCurve);
}

TEST(ExpertAdapterRun, OfCodesHasTheCurveOfOneRank) {
  const TempFolder folder;
  const Strings blocks{"model.dim=128",     "model.n_heads=4",       "model.n_kv_heads=2",
                       "model.head_dim=32", "model.moe_ffn_dim=128", "model.ffn_dim=128"};
  const fs::path base = mixture(folder, blocks);
  const Strings coded = expert_lora({"model.frozen_dtype=nf4"}) + blocks;
  TestRun run(mixture_run(folder, "one", base, coded));
  const Records one = run.run();
  int64_t of_experts = 0;
  for (size_t u = 0; u < run.trainer().store->size(); ++u) {
    const UnitStore& unit = run.trainer().store->unit(u);
    for (const ParameterSpec& parameter : unit.spec().parameters)
      if (unit.coded() && parameter.name.find(".expert_") != std::string::npos) ++of_experts;
  }
  EXPECT_EQ(of_experts, 4) << "gate_up and down of two layers";
  const auto records = RankThreads(2).run(mixture_run(folder, "two", base, coded + Strings{kSpreadOverTwo}));
  expect_curve(records.at(0), one, "two", kExpertCurve);
}

TEST(ExpertAdapterRun, IsExportedAsAFolderOfPeftThatARunStartsFrom) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun(mixture_run(folder, "first", base, expert_lora({"checkpoint.last_save_in_hf=true"}))).run();
  const fs::path adapter = folder / "first" / "hf" / "step-4";
  ASSERT_TRUE(fs::exists(adapter / "adapter_model.safetensors"));
  TestRun(mixture_run(folder, "second", base,
                      {"adapter.from=" + adapter.string(), "training.steps=1", "checkpoint.interval=1",
                       "optimizer.lr=0"}))
      .run();
  const TensorFolder left = stored_at(folder, "first", 4);
  const TensorFolder right = stored_at(folder, "second", 1);
  int64_t compared = 0;
  for (const std::string& name : left.names()) {
    if (!is_adapter_tensor(name)) continue;
    ++compared;
    EXPECT_EQ(stored_bytes(left, name), stored_bytes(right, name)) << name;
  }
  EXPECT_EQ(compared, 2 * (4 + 4 * 3) * 2) << "layers, matrices of attention and of experts, A and B";
}

/// PEFT knows no A of several modules.
TEST(ExpertAdapterRun, WithASharedAIsExportedWithACopyForEachExpert) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun run(mixture_run(folder, "first", base, kSharedA + Strings{"checkpoint.last_save_in_hf=true"}));
  run.run();
  const fs::path adapter = folder / "first" / "hf" / "step-4";
  const TensorFolder saved({adapter / "adapter_model.safetensors"});
  const auto name_of = [](int expert, const char* factor) {
    return format("base_model.model.model.layers.1.mlp.experts.{}.up_proj.lora_{}.weight", expert, factor);
  };
  for (int expert = 1; expert < 4; ++expert) {
    EXPECT_EQ(stored_bytes(saved, name_of(expert, "A")), stored_bytes(saved, name_of(0, "A"))) << expert;
    EXPECT_NE(stored_bytes(saved, name_of(expert, "B")), stored_bytes(saved, name_of(0, "B"))) << expert;
  }
  TensorFolder own = stored_at(folder, "first", 4);
  EXPECT_EQ(own.find(name_of(1, "A")), nullptr) << "a checkpoint has it once";
  const Strings from{"adapter.from=" + adapter.string()};
  const double shared = first_loss(mixture_run(folder, "shared", base, from + Strings{kSharedA.back()}));
  EXPECT_NEAR(first_loss(mixture_run(folder, "each", base, from)), shared, 2e-5 * shared);
  name_shared_factors(run.trainer().job.whole, own);
  AdapterDeltas of_run;
  of_run.add(run.trainer().config.adapter, own, 1.0, /*replaces=*/false);
  EXPECT_EQ(of_run.names().size(), read_adapters({adapter.string()}, run.trainer().job.whole).names().size());
}

TEST(ExpertAdapterRun, WithASharedAStartsFromNoFolderWhoseExpertsDiffer) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun(mixture_run(
              folder, "each", base,
              expert_lora({"checkpoint.last_save_in_hf=true", "training.steps=1", "checkpoint.interval=1"})))
      .run();
  const Strings from{"adapter.from=" + (folder / "each" / "hf" / "step-1").string()};
  const std::string refusal = message_of<Error>(
      [&] { first_loss(mixture_run(folder, "shared", base, from + Strings{kSharedA.back()})); });
  EXPECT_CONTAINS(refusal, "experts.3.up_proj.lora_A.weight", "adapter.experts = \"shared_a\"",
                  "set it to \"each\"");
}

/// Each expert's matrix by itself, from the files of PEFT.
TEST(ExpertAdapterRun, OfDoraIsMergedIntoAModelThatComputesTheSame) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun run(mixture_run(folder, "run", base, kDora + Strings{"checkpoint.last_save_in_hf=true"}));
  run.run();
  const fs::path adapter = folder / "run" / "hf" / "step-4";
  const ModelSpec plain = model_spec(run.trainer().config.model);
  const AdapterDeltas deltas = read_adapters({adapter.string()}, plain);
  export_hf(folder / "merged", run.trainer().config.model, plain, open_hf_weights(base), nullptr,
            {.adapters = &deltas});
  const double adapted =
      first_loss(mixture_run(folder, "adapted", base, {"adapter.from=" + adapter.string()}));
  EXPECT_GT(std::abs(adapted - first_loss(mixture_run(folder, "base", base))), 1e-3);
  EXPECT_NEAR(first_loss(mixture_run(folder, "merged_run", folder / "merged")), adapted, 2e-5 * adapted);
}

TEST(ExpertAdapterRun, IsMergedIntoAModelThatComputesTheSame) {
  const TempFolder folder;
  const fs::path base = mixture(folder);
  TestRun run(mixture_run(folder, "run", base, expert_lora({"checkpoint.last_save_in_hf=true"})));
  run.run();
  const fs::path adapter = folder / "run" / "hf" / "step-4";
  const ModelSpec plain = model_spec(run.trainer().config.model);
  const AdapterDeltas deltas = read_adapters({adapter.string()}, plain);
  for (const bool stacked : {false, true})
    export_hf(folder / format("merged{}", stacked ? 1 : 0), run.trainer().config.model, plain,
              open_hf_weights(base), nullptr, {.stacked_experts = stacked, .adapters = &deltas});
  const double before = first_loss(mixture_run(folder, "base", base));
  const double adapted =
      first_loss(mixture_run(folder, "adapted", base, {"adapter.from=" + adapter.string()}));
  const double merged = first_loss(mixture_run(folder, "merged", folder / "merged0"));
  EXPECT_GT(std::abs(adapted - before), 1e-3);
  EXPECT_NEAR(merged, adapted, 2e-5 * adapted);
  EXPECT_EQ(first_loss(mixture_run(folder, "stacked", folder / "merged1")), merged);
}

}  // namespace
}  // namespace stepforge::testing
