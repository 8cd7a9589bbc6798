// SPDX-License-Identifier: Apache-2.0
// The measured peak memory of each rank is the predicted one.
#include "stepforge/kernels/cpu_allocator.h"
#include "tests/support/rank_threads.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

struct MemoryLayout {
  std::string name;
  int ranks = 2;
  Strings more;
};

void PrintTo(const MemoryLayout& layout, std::ostream* out) {
  *out << layout.name;
}

/// The debug preset with four micro-batches per rank.
Strings memory_job(const std::filesystem::path& run_dir, const MemoryLayout& layout) {
  return Strings{"preset=debug",
                 "model.vocab_size=257",
                 format("run_dir={}", run_dir.string()),
                 format("data.cache_dir={}", (run_dir / "cache").string()),
                 "data.synthetic_tokens=65536",
                 "training.local_batch_size=2",
                 format("training.global_batch_size={}", 8 * layout.ranks),
                 "training.threads=1",
                 "training.steps=4",
                 "checkpoint.enable=false",
                 "metrics.status_line=off"} +
         layout.more;
}

/// Predicted peak of this rank divided by the measured one of all steps but the first. The prediction is for the lanes
/// that run at the least convenient time, such as a message that comes early, which not every step does.
double predicted_over_measured(const Strings& args, World& world) {
  TestRun run(args, nullptr, &world);
  int64_t measured = 0;
  run.build();
  run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
    if (trainer.state.step > 1) measured = std::max(measured, cpu_memory().peak_bytes);
  }));
  run.trainer().run();
  return static_cast<double>(run.trainer().predicted_memory.peak_of_one_memory()) /
         static_cast<double>(measured);
}

class LiveBytes : public ::testing::TestWithParam<MemoryLayout> {};

/// The predicted peak holds on every rank in every run, and each rank reaches it within 5 % in one of a few runs: on a
/// busy machine the least convenient time may not come in any step of one run.
TEST_P(LiveBytes, OfEachRankAreThePredictedOnes) {
  const MemoryLayout& layout = GetParam();
  const int most_runs = 24;
  std::vector<double> nearest(static_cast<size_t>(layout.ranks), 2.0);
  const auto reached = [&] { return std::ranges::max(nearest) <= 1.05; };
  for (int run = 0; run < most_runs && !reached(); ++run) {
    const TempFolder folder;
    const Strings args = memory_job(folder.path() / "run", layout);
    const auto results = run_processes(
        layout.ranks, [&](World& world) { return format("{:.4f}", predicted_over_measured(args, world)); });
    for (size_t rank = 0; rank < nearest.size(); ++rank) {
      const std::string& result = results.at(rank);
      ASSERT_TRUE(result.starts_with("0.") || result.starts_with("1.")) << result;
      EXPECT_GE(std::stod(result), 0.95);
      nearest[rank] = std::min(nearest[rank], std::stod(result));
    }
  }
  EXPECT_TRUE(reached()) << "predicted over measured: " << std::ranges::max(nearest);
}

TEST(LiveBytesOfThreads, AreCountedSeparatelyForEachRank) {
  const TempFolder folder;
  const Strings args = memory_job(folder.path() / "run", {"threads", 2, {"training.steps=12"}});
  const auto results =
      run_threads(2, [&](World& world) { return format("{:.4f}", predicted_over_measured(args, world)); });
  for (const std::string& result : results) {
    ASSERT_TRUE(result.starts_with("0.") || result.starts_with("1.")) << result;
    EXPECT_NEAR(std::stod(result), 1.0, 0.05);
  }
}

const std::string kReplicated = "parallelism.data_parallel_replicate_degree=2";
const std::string kContext = "parallelism.context_parallel_degree=2";
const std::string kTensor = "parallelism.tensor_parallel_degree=2";
const std::string kAsync = "parallelism.enable_async_tensor_parallel=true";
const std::string kPipeline = "parallelism.pipeline_parallel_degree=2";
const std::string kStages4 = "parallelism.pipeline_parallel_degree=4";
const std::string kOffloadState = "parallelism.fsdp_cpu_offload=true";

const std::string kSpread = "parallelism.expert_parallel_degree=2";
const std::string kGathered = "parallelism.expert_parallel_dispatcher=allgather";
const Strings kExperts = {"model.family=qwen3_moe", "model.n_experts=4", "model.experts_per_token=4",
                          "model.moe_ffn_dim=48"};

const Strings kExpertAdapters = {"adapter.type=lora", "adapter.rank=4",
                                 R"(adapter.targets=all-linear,.*\.experts\..*)"};

const Strings kVocabularyAdapters = {"adapter.type=lora", "adapter.rank=4",
                                     "adapter.targets=all-linear,embed_tokens,lm_head"};

const Strings kFrozen = {"model.freeze=embedding,layers.0,layers.1", "model.frozen_dtype=bf16"};

/// Adapters of matrices whose rows are whole blocks of codes, also on two tensor-parallel ranks.
const Strings kCodes = {"adapter.type=lora", "adapter.rank=4",   "model.frozen_dtype=nf4",
                        "model.dim=128",     "model.n_heads=4",  "model.n_kv_heads=2",
                        "model.head_dim=32", "model.ffn_dim=128"};

/// Of weights whose inputs are kept in any case.
const std::string kPartlyFrozen =
    R"(model.freeze=embedding,layers\.[01]\..*norm,layers\.[01]\.attention\.out)";

std::string schedule(const std::string& name) {
  return "parallelism.pipeline_parallel_schedule=" + name;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LiveBytes,
    ::testing::Values(
        MemoryLayout{"one_offloaded", 1, {kOffloadState}}, MemoryLayout{"fsdp", 2, {}},
        MemoryLayout{"fsdp_never_resharded", 2, {"parallelism.fsdp_reshard_after_forward=never"}},
        MemoryLayout{"fsdp_reduced_each_time", 2, {"parallelism.fsdp_reduce_each_micro_batch=true"}},
        MemoryLayout{"fsdp_ordered", 2, {"training.reduction=ordered"}},
        MemoryLayout{"fsdp_recomputed", 2, {"activation_checkpoint.mode=full"}},
        MemoryLayout{"fsdp_reduced_in_bf16", 2, {"precision.reduce=bf16"}},
        MemoryLayout{"fsdp_offloaded", 2, {kOffloadState}},
        MemoryLayout{"muon", 2, {"optimizer.name=muon", "parallelism.fsdp_partition=by_tensor"}},
        MemoryLayout{"lion_offloaded", 2, {"optimizer.name=lion", kOffloadState}},
        MemoryLayout{"frozen_in_bf16", 2, kFrozen},
        MemoryLayout{"frozen_in_bf16_whole", 1, kFrozen + Strings{"precision.compute=bf16"}},
        MemoryLayout{"frozen_in_bf16_offloaded", 2, kFrozen + Strings{kOffloadState}},
        MemoryLayout{"codes", 2, kCodes}, MemoryLayout{"codes_of_tensor_parts", 2, kCodes + Strings{kTensor}},
        MemoryLayout{"codes_in_replicas", 2, kCodes + Strings{kReplicated}},
        MemoryLayout{"codes_with_coded_factors", 2, kCodes + Strings{"model.double_quantization=true"}},
        MemoryLayout{"codes_of_8_bits", 2, kCodes + Strings{"model.frozen_dtype=int8"}},
        MemoryLayout{"partly_frozen", 2, {kPartlyFrozen}},
        MemoryLayout{"sgd", 1, {"optimizer.name=sgd", "optimizer.momentum=0"}},
        MemoryLayout{"replicas", 2, {kReplicated}}, MemoryLayout{"hsdp", 4, {kReplicated}},
        MemoryLayout{"context_gathered", 2, {kContext}}, MemoryLayout{"tensor", 2, {kTensor}},
        MemoryLayout{"tensor_all_tokens", 2, {kTensor, "parallelism.enable_sequence_parallel=false"}},
        MemoryLayout{"tensor_async", 2, {kTensor, kAsync}},
        MemoryLayout{"tensor_async_of_four",
                     4,
                     {"parallelism.tensor_parallel_degree=4", "model.n_kv_heads=4", kAsync}},
        MemoryLayout{"tensor_whole_logits", 2, {kTensor, "parallelism.disable_loss_parallel=true"}},
        MemoryLayout{"tensor_recomputed", 4, {kTensor, "activation_checkpoint.mode=full"}},
        MemoryLayout{"tensor_within_a_budget", 4, {kTensor, "activation_checkpoint.mode=budget"}},
        MemoryLayout{"tensor_and_context", 4, {kTensor, kContext}},
        MemoryLayout{"context_in_a_ring", 2, {kContext, "parallelism.context_parallel_method=ring"}},
        MemoryLayout{"context_in_both_ways",
                     4,
                     {"parallelism.context_parallel_degree=4", "parallelism.context_parallel_method=hybrid"}},
        MemoryLayout{"context_by_heads", 2, {kContext, "parallelism.context_parallel_method=ulysses"}},
        // Each token takes all experts, so that the rows that come are as many as those that go.
        MemoryLayout{"experts", 2, kExperts + Strings{kSpread}},
        MemoryLayout{
            "magnitudes_of_experts_with_one_a", 2,
            kExperts + kExpertAdapters + Strings{kSpread, "adapter.type=dora", "adapter.experts=shared_a"}},
        MemoryLayout{"biases_beside_adapters",
                     1,
                     {"model.family=qwen2", "adapter.type=lora", "adapter.rank=4",
                      "adapter.targets=q_proj,v_proj", "adapter.bias=lora_only"}},
        MemoryLayout{"experts_with_adapters", 2, kExperts + kExpertAdapters + Strings{kSpread}},
        MemoryLayout{"experts_with_adapters_recomputed", 2,
                     kExperts + kExpertAdapters + Strings{"activation_checkpoint.mode=full"}},
        MemoryLayout{"vocabulary_adapters", 2, kVocabularyAdapters},
        MemoryLayout{"vocabulary_adapters_in_bf16", 1,
                     kVocabularyAdapters + Strings{"precision.compute=bf16", "model.frozen_dtype=bf16"}},
        MemoryLayout{"vocabulary_adapters_of_tensor_parts", 2, kVocabularyAdapters + Strings{kTensor}},
        MemoryLayout{"vocabulary_adapters_of_a_tied_pipeline", 2,
                     kVocabularyAdapters + Strings{kPipeline, "model.tie_embeddings=true"}},
        MemoryLayout{"experts_gathered", 2, kExperts + Strings{kSpread, kGathered}},
        MemoryLayout{"divided_experts_gathered", 4,
                     kExperts + Strings{kTensor, kGathered, "parallelism.expert_tensor_parallel_degree=2",
                                        "parallelism.expert_parallel_degree=2"}},
        MemoryLayout{"experts_recomputed", 4, kExperts + Strings{kSpread, "activation_checkpoint.mode=full"}},
        MemoryLayout{"experts_within_a_budget", 2,
                     kExperts + Strings{kSpread, "model.family=qwen2_moe", "model.shared_expert_dim=64",
                                        "activation_checkpoint.mode=budget",
                                        "activation_checkpoint.memory_budget=0.1"}},
        MemoryLayout{"experts_and_a_shared_one", 2,
                     kExperts + Strings{kSpread, "model.family=qwen2_moe", "model.shared_expert_dim=64"}},
        MemoryLayout{"experts_of_slices", 2, kExperts + Strings{kTensor}},
        MemoryLayout{"spread_experts_of_slices", 4,
                     kExperts + Strings{kTensor, "parallelism.expert_parallel_degree=4"}},
        MemoryLayout{"divided_experts", 2,
                     kExperts + Strings{kTensor, "parallelism.expert_tensor_parallel_degree=2"}},
        MemoryLayout{"shared_experts_of_slices_recomputed", 2,
                     kExperts + Strings{kTensor, kSpread, "model.family=qwen2_moe",
                                        "model.shared_expert_dim=64", "activation_checkpoint.mode=full"}},
        MemoryLayout{"pipeline", 2, {kPipeline}}, MemoryLayout{"pipeline_of_four", 4, {kStages4}},
        MemoryLayout{"pipeline_gpipe", 2, {kPipeline, schedule("GPipe")}},
        MemoryLayout{"pipeline_interleaved", 2, {kPipeline, schedule("Interleaved1F1B")}},
        MemoryLayout{
            "pipeline_zero_bubble", 4, {kStages4, "model.n_layers=8", schedule("InterleavedZeroBubble")}},
        MemoryLayout{"pipeline_v", 2, {kPipeline, schedule("ZBVZeroBubble")}},
        MemoryLayout{"pipeline_v_recomputed",
                     2,
                     {kPipeline, schedule("ZBVZeroBubble"), "activation_checkpoint.mode=full"}},
        MemoryLayout{"pipeline_v_within_a_budget",
                     2,
                     {kPipeline, schedule("ZBVZeroBubble"), "activation_checkpoint.mode=budget"}},
        MemoryLayout{"pipeline_dual_v", 4, {kStages4, "model.n_layers=8", schedule("DualPipeV")}},
        MemoryLayout{"pipeline_of_shards", 4, {kPipeline, schedule("ZBVZeroBubble")}},
        MemoryLayout{"hsdp_offloaded",
                     4,
                     {kReplicated, kOffloadState, "parallelism.fsdp_reduce_each_micro_batch=true"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
