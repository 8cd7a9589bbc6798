// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/step_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/pass_kind.h"
#include "stepforge/step/collectives.h"
#include "stepforge/step/memory.h"
#include "tests/support/sanitizer.h"
#include "tests/support/small_run.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

Config with(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.n_layers=2", "model.vocab_size=256", "training.seq_len=16",
                                     "training.local_batch_size=2"});
  return load_config({}, settings).config;
}

ProvedStep proved_step(const Config& config, RankId rank = {}) {
  return prove_train_step(plan_job(config, rank));
}

int count(const StepProgram& program, OpKind kind) {
  return static_cast<int>(std::count_if(program.operations.begin(), program.operations.end(),
                                        [&](const Operation& operation) { return operation.kind == kind; }));
}

int max_reductions_in_flight(const StepProgram& program) {
  int in_flight = 0;
  int max = 0;
  for (const Operation& operation : program.operations) {
    in_flight += operation.kind == OpKind::reduce_start ? 1 : 0;
    in_flight -= operation.kind == OpKind::reduce_wait ? 1 : 0;
    max = std::max(max, in_flight);
  }
  return max;
}

/// Two ranks that shard the model, with a pass of a plug-in.
Config with_pass(void (*run)(StepProgram&, const Config&)) {
  auto registry = std::make_shared<Registry>();
  registry->add(PassKind{.name = "mine", .run = run});
  Config config = with({});
  config.extensions = Extensions(make_config_shape(registry));
  return config;
}

TEST(PassOfAPlugin, ChangesTheProgramThatIsProved) {
  const Config config = with_pass([](StepProgram& program, const Config&) {
    for (int i = 1; i < std::ssize(program.operations); ++i)
      element(program.operations, i).needs.push_back(i - 1);
  });
  const ProvedStep step = proved_step(config, {0, 2});
  const StepProgram& program = element(step.stages, step.member);
  for (int i = 1; i < std::ssize(program.operations); ++i)
    EXPECT_GE(std::ranges::count(element(program.operations, i).needs, i - 1), 1) << i;
  EXPECT_EQ(program.operations.size(), proved_step(with({}), {0, 2}).stages.at(0).operations.size());
}

TEST(PassOfAPlugin, ThatBreaksARuleIsRefusedByName) {
  const Config config = with_pass([](StepProgram& program, const Config&) {
    std::erase_if(program.operations,
                  [](const Operation& operation) { return operation.kind == OpKind::gradient_norm; });
  });
  EXPECT_CONTAINS(message_of<UsageError>([&] { proved_step(config); }),
                  "passes of plug-ins have changed this program: mine");
}

TEST(PlanOfAPlugin, KeepsUnitsGatheredUnlessTheUserChooses) {
  auto registry = std::make_shared<Registry>();
  registry->add(ParallelPlanKind{
      .name = "mine", .reshards = [](const Config&, std::string_view unit) { return unit != "layers.0"; }});
  const auto gathers = [&](const std::string& unit, const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"model.n_layers=2", "model.vocab_size=256", "training.seq_len=16",
                                    "training.local_batch_size=2", "parallelism.plan=mine"};
    all.insert(all.end(), settings.begin(), settings.end());
    const ProvedStep step =
        proved_step(load_config({}, all, ConfigUse::inspect, {}, registry).config, {0, 2});
    const StepProgram& program = element(step.stages, step.member);
    return std::ranges::count_if(program.operations, [&](const Operation& operation) {
      return operation.kind == OpKind::gather_start && element(program.units, operation.unit).name == unit;
    });
  };
  EXPECT_EQ(gathers("layers.0", {}), 1);
  EXPECT_EQ(gathers("layers.1", {}), 2);
  EXPECT_EQ(gathers("layers.0", {"parallelism.fsdp_reshard_after_forward=always"}), 2);
  EXPECT_EQ(gathers("layers.1", {"parallelism.fsdp_reshard_after_forward=never"}), 1);
}

TEST(PlanJob, TheLayoutFollowsTheConfiguration) {
  const Config config =
      with({"parallelism.data_parallel_replicate_degree=2", "parallelism.fsdp_partition=by_tensor",
            "parallelism.fsdp_cpu_offload=true", "precision.compute=bf16", "precision.reduce=fp16"});
  const Job job = plan_job(config, {5, 8});
  EXPECT_EQ(job.layout.dims.dp_shard, 4);
  ASSERT_EQ(job.layout.units.size(), job.whole.units.size());
  for (const UnitLayout& unit : job.layout.units) {
    EXPECT_EQ(unit.partition.kind, PartitionKind::by_tensor);
    EXPECT_EQ(unit.gather, DType::bf16);
    EXPECT_EQ(unit.reduce, DType::f16);
    EXPECT_TRUE(unit.offloaded);
  }
}

TEST(PlanTensor, HasTheOptionsOfTensorParallelismOnlyWithIt) {
  Config config = with({"parallelism.tensor_parallel_degree=2", "parallelism.disable_loss_parallel=true"});
  const TensorParallel tensor = plan_tensor(config, {3, 4});
  EXPECT_EQ(tensor.rank, 1);
  EXPECT_EQ(tensor.degree, 2);
  EXPECT_TRUE(tensor.sequence && tensor.whole_logits);
  config.parallelism.enable_sequence_parallel = false;
  EXPECT_FALSE(plan_tensor(config, {3, 4}).sequence);
  EXPECT_FALSE(plan_tensor(with({}), {3, 4}).sequence);
}

TEST(PlanDataRanks, RefusesDegreesThatDoNotFitTheWorld) {
  EXPECT_EQ(plan_data_ranks(with({"parallelism.data_parallel_replicate_degree=2"}), 8), 8);
  const Config config = with({"parallelism.data_parallel_shard_degree=4"});
  const std::string message = message_of<UsageError>([&] { plan_data_ranks(config, 6); });
  EXPECT_CONTAINS(message, "parallelism.data_parallel_shard_degree = 4") << message;
  EXPECT_CONTAINS(message, "for 6 ranks") << message;
}

/// Of a job with experts that take slices of the tokens, on two ranks.
std::string refusal_of_slices(const Strings& more) {
  const Config config = with(Strings{"model.family=qwen3_moe", "model.n_experts=4",
                                     "model.experts_per_token=2", "parallelism.tensor_parallel_degree=2"} +
                             more);
  try {
    plan_train_step(plan_job(config, {0, 2}));
  } catch (const UsageError& refusal) {
    return refusal.what();
  }
  return "";
}

TEST(PlanTrainStep, GradientsOfSlicesAreNoOrderedSumsOverRows) {
  const std::string message = refusal_of_slices({"training.reduction=ordered"});
  EXPECT_CONTAINS(message, "training.reduction = \"ordered\"", "parallelism.tensor_parallel_degree = 2",
                  "set parallelism.enable_sequence_parallel = false");
  EXPECT_EQ(refusal_of_slices({"training.reduction=ordered", "parallelism.enable_sequence_parallel=false"}),
            "");
}

TEST(PlanTrainStep, AnOptimizerOfWholeMatricesNamesTheDegreeThatDividesThem) {
  const auto refusal = [](std::vector<std::string> settings) {
    settings.insert(
        settings.begin(),
        {"model.family=qwen3_moe", "model.n_experts=4", "model.experts_per_token=2", "optimizer.name=muon",
         "parallelism.fsdp_partition=by_tensor", "parallelism.tensor_parallel_degree=2"});
    const Config config = with(std::move(settings));
    return message_of<UsageError>([&] { plan_train_step(plan_job(config, {0, 4})); });
  };
  EXPECT_CONTAINS(refusal({}),
                  "but parallelism.tensor_parallel_degree divides layers.0.attention.qkv; set it to 1");
  EXPECT_CONTAINS(
      refusal({"parallelism.expert_tensor_parallel_degree=2",
               "parallelism.tensor_parallel_plan=[{pattern=\"attention\", style=\"replicate\"}]"}),
      "but parallelism.expert_tensor_parallel_degree divides layers.0.mlp.expert_gate_up; set it to 1");
}

TEST(PlanTrainStep, ExpertsAreBalancedInSlicesOfWholeRowsOnly) {
  const Strings balanced{"model.router_aux_loss_weight=0.1", "training.global_batch_size=12"};
  const std::string message = refusal_of_slices(balanced + Strings{"training.local_batch_size=3"});
  EXPECT_CONTAINS(message, "model.router_aux_loss_weight = 0.1", "a micro-batch has 3 rows",
                  "set training.local_batch_size");
  EXPECT_EQ(refusal_of_slices(balanced + Strings{"training.local_batch_size=4"}), "");
  EXPECT_EQ(refusal_of_slices({"training.local_batch_size=3", "training.global_batch_size=12"}), "");
}

TEST(PlanTrainStep, OneRankIgnoresOptionsOfSharding) {
  const Config plain = with({"precision.compute=bf16"});
  const Config moved =
      with({"precision.compute=bf16", "parallelism.fsdp_reshard_after_forward=always",
            "parallelism.fsdp_forward_prefetch=3", "parallelism.fsdp_reduce_each_micro_batch=true"});
  const StepProgram program = proved_step(plain).program();
  EXPECT_EQ(count(program, OpKind::gather_start), 4);
  EXPECT_EQ(program.operations.size(), proved_step(moved).program().operations.size());
}

TEST(PlanTrainStep, ShardingOptionsReachTheProgram) {
  const auto program = [](std::vector<std::string> settings) {
    settings.push_back("training.global_batch_size=8");
    const Config config = with(settings);
    return proved_step(config, {1, 2}).program();
  };
  const StepProgram usual = program({});
  EXPECT_EQ(usual.rank, 1);
  EXPECT_EQ(usual.micro_batches, 2);
  // In each of two micro-batches: the embedding for its forward, both layers for forward and backward, and
  // the head once for both, since its backward follows at once.
  EXPECT_EQ(count(usual, OpKind::gather_start), 12);
  EXPECT_EQ(count(usual, OpKind::reduce_start), 4);
  EXPECT_EQ(count(program({"parallelism.fsdp_reshard_after_forward=always"}), OpKind::gather_start), 12);
  EXPECT_EQ(count(program({"parallelism.fsdp_reshard_after_forward=never"}), OpKind::gather_start), 4);
  const std::string every_n = "parallelism.fsdp_reshard_after_forward=every_n";
  EXPECT_EQ(count(program({every_n}), OpKind::gather_start), 3 + 1 + 4);
  EXPECT_EQ(count(program({every_n, "parallelism.fsdp_reshard_every_n=1"}), OpKind::gather_start), 12);
  EXPECT_EQ(count(program({"parallelism.fsdp_reduce_each_micro_batch=true"}), OpKind::reduce_start), 8);
  EXPECT_EQ(usual.operations[3].kind, OpKind::gather_wait);
  EXPECT_EQ(usual.operations[4].kind, OpKind::gather_start);
  EXPECT_EQ(program({"parallelism.fsdp_forward_prefetch=0"}).operations[4].kind, OpKind::forward);
  EXPECT_EQ(operation_text(usual, usual.operations[4]), "gather_start layers.0 over fsdp");
  const StepProgram listed =
      program({"parallelism.fsdp_prefetch_lists=[{ unit = \"embedding\", forward = [\"head\"] }]"});
  EXPECT_EQ(operation_text(listed, listed.operations[4]), "gather_start head over fsdp");
  EXPECT_EQ(max_reductions_in_flight(program({"parallelism.fsdp_reduce_in_flight=1"})), 1);
  EXPECT_EQ(max_reductions_in_flight(program({"parallelism.fsdp_reduce_in_flight=3"})), 3);
  EXPECT_EQ(count(usual, OpKind::reload_start), 0);
  EXPECT_EQ(count(program({"parallelism.fsdp_cpu_offload=true"}), OpKind::reload_start), 12 + 4);
}

TEST(PlanTrainStep, OneRankReleasesUnitsWithOffloadedState) {
  const Config config = with({"parallelism.fsdp_cpu_offload=true"});
  const StepProgram program = proved_step(config).program();
  EXPECT_EQ(count(program, OpKind::gather_start), 6);
  EXPECT_EQ(count(program, OpKind::reduce_start), 4);
  EXPECT_EQ(account(program).persistent_bytes(), 0);
  EXPECT_GT(account(program).host_bytes, 0);
}

TEST(PlanTrainStep, ReplicasAllReduceWithoutGathers) {
  const Config config =
      with({"parallelism.data_parallel_replicate_degree=-1", "parallelism.data_parallel_shard_degree=1"});
  const StepProgram program = proved_step(config, {2, 3}).program();
  EXPECT_EQ(count(program, OpKind::gather_start), 0);
  EXPECT_EQ(count(program, OpKind::all_reduce_start), 4);
}

TEST(PlanTrainStep, ProvesAJobOf16384Ranks) {
  const Config config =
      load_config(
          {}, std::vector<std::string>{"preset=llama3-405b", "parallelism.data_parallel_replicate_degree=32",
                                       "precision.compute=bf16", "training.global_batch_size=-1"})
          .config;
  const ProvedStep step = proved_step(config, {16383, 16384});
  EXPECT_EQ(step.proof.world_size, 16384);
  EXPECT_EQ(step.proof.groups, 32U + 512U + 1U);
  EXPECT_EQ(step.proof.peak_bytes, account(step.program()).peak_bytes);
}

TEST(PlanTrainStep, ProvesAPipelineOf16384Ranks) {
  std::vector<std::string> settings = {"preset=llama3-405b", "parallelism.tensor_parallel_degree=8",
                                       "parallelism.pipeline_parallel_schedule=Interleaved1F1B",
                                       "training.local_batch_size=1"};
  const std::vector<std::string> large = {"parallelism.pipeline_parallel_degree=16",
                                          "training.global_batch_size=2048"};
  const std::vector<std::string> small = {"parallelism.pipeline_parallel_degree=4", "model.n_layers=14",
                                          "training.global_batch_size=64"};
  const std::vector<std::string>& size = kSanitizer ? small : large;
  settings.insert(settings.end(), size.begin(), size.end());
  const int ranks = kSanitizer ? 256 : 16384;
  const Config config = load_config({}, settings).config;
  const Job job = plan_job(config, {ranks - 1, ranks});
  const ProvedStep step = prove_train_step(job);
  const int stages = job.pipeline.ranks();
  EXPECT_EQ(step.proof.world_size, ranks);
  EXPECT_EQ(std::ssize(step.stages), stages);
  EXPECT_EQ(step.member, stages - 1);
  EXPECT_EQ(step.program().rank, ranks - 1);
  ASSERT_EQ(std::ssize(step.proof.class_peaks), stages);
  for (int member = 0; member < stages; ++member)
    EXPECT_EQ(element(step.proof.class_peaks, member), account(element(step.stages, member)).peak_bytes);
}

TEST(PlanTrainStep, HybridAttentionExchangesOverBothItsGroups) {
  const Config config =
      with({"parallelism.context_parallel_degree=8", "parallelism.context_parallel_method=hybrid",
            "model.n_heads=4", "model.n_kv_heads=2"});
  const ProvedStep step = proved_step(config, {5, 16});
  ProgramBlock layer = step.program().blocks.at(1);
  EXPECT_EQ(layer.group(BlockAxis::heads), find_group(step.program().groups, kHeadsGroup));
  EXPECT_EQ(layer.group(BlockAxis::context), find_group(step.program().groups, kRingGroup));
  EXPECT_EQ(step.proof.world_size, 16);
}

TEST(PlanTrainStep, RefusesTooManyMicroBatchesBeforeWritingTheProgram) {
  const Config config = with({"training.global_batch_size=16777216"});
  const std::string message = message_of<UsageError>([&] { proved_step(config); });
  EXPECT_CONTAINS(message, "8,388,608 micro-batches on each rank, each through 4 blocks") << message;
  EXPECT_CONTAINS(message, "use at most 65,536 micro-batches") << message;
}

TEST(PlanTrainStep, ProvesAJobOfAMillionRanks) {
  const int replicas = kSanitizer ? 16 : 1024;
  const int ranks = 1024 * replicas;
  const Config config = with(
      {format("parallelism.data_parallel_replicate_degree={}", replicas), "training.local_batch_size=1"});
  const ProvedStep step = proved_step(config, {ranks - 1, ranks});
  EXPECT_EQ(step.proof.world_size, ranks);
  EXPECT_EQ(step.proof.groups, static_cast<std::size_t>(1024 + replicas + 1));
}

TEST(PlanEvaluation, GathersShardsAndJoinsLabelsAndLosses) {
  const StepProgram program = plan_evaluation(plan_job(with({}), {1, 2}));
  EXPECT_EQ(program.micro_batches, 1);
  std::vector<std::pair<OpKind, int64_t>> counts;
  for (const CollectiveTotal& total : collective_totals(program))
    counts.emplace_back(total.kind, total.count);
  EXPECT_EQ(counts, (std::vector<std::pair<OpKind, int64_t>>{
                        {OpKind::gather_start, 4}, {OpKind::count_labels, 1}, {OpKind::reduce_loss, 1}}));
}

TEST(PlanTrainStep, RefusesASpecificationThatIsNotDividedAsTheMesh) {
  Config config;
  config.parallelism.tensor_parallel_degree = 2;
  config.training.local_batch_size = 1;
  config.model.vocab_size = 64;
  const ModelSpec whole = plan_model(config);
  const Job job = plan_job(config, {0, 2}, whole, whole);
  EXPECT_CONTAINS(message_of<Error>([&] { prove_train_step(job); }),
                  "the model specification is divided over 1 ranks for tensor, but the mesh has 2 there");
}

}  // namespace
}  // namespace stepforge::testing
