// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/memory_fit.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/step_plan.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

Config small_job(std::vector<std::string> settings = {}) {
  settings.insert(settings.begin(),
                  {"model.n_layers=4", "model.vocab_size=256", "training.seq_len=128",
                   "training.local_batch_size=8", "training.global_batch_size=64", "training.threads=1"});
  return load_config({}, settings).config;
}

MemoryAccount memory_of(const Config& config, int ranks = 1) {
  return account(write_train_step(plan_job(config, {0, ranks})));
}

std::vector<FittingChange> changes(const Config& config, int64_t bytes, bool with_host = true) {
  return find_fitting_changes(plan_job(config), {bytes, "are free", with_host}).changes;
}

/// The bytes that a new plan with these settings needs.
int64_t bytes_with(const std::string& text) {
  std::vector<std::string> settings;
  int ranks = 1;
  std::string setting;
  for (std::istringstream stream(text); stream >> setting;) {
    if (setting == "--world-size") {
      stream >> ranks;
    } else {
      settings.push_back(setting);
    }
  }
  return memory_of(small_job(settings), ranks).peak_of_one_memory();
}

TEST(MemoryFit, SaysWhetherTheStepFits) {
  const Job job = plan_job(small_job());
  const MemoryAccount memory = memory_of(job.config);
  const int64_t peak = memory.peak_of_one_memory();
  EXPECT_TRUE(memory_verdict(job, memory, {peak, "are free"}).ends_with("are free: it fits"));
  const std::string verdict = memory_verdict(job, memory, {peak - 1, "are free"});
  EXPECT_CONTAINS(verdict, "are free: it does not fit\n  It would fit with\n    activation_checkpoint.mode=")
      << verdict;
}

TEST(MemoryFit, EachChangeIsTheSmallestOfItsKindThatFits) {
  const int64_t peak = memory_of(small_job()).peak_of_one_memory();
  const std::vector<FittingChange> found = changes(small_job(), peak - 1);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].settings, "activation_checkpoint.mode=budget activation_checkpoint.memory_budget=0.5");
  EXPECT_EQ(found[1].settings, "training.local_batch_size=4");
  EXPECT_EQ(found[2].settings, "--world-size 2");
  for (const FittingChange& change : found) {
    EXPECT_LT(change.bytes, peak);
    EXPECT_EQ(bytes_with(change.settings), change.bytes) << change.settings;
  }
}

TEST(MemoryFit, CombinesChangesIfNoSingleOneFits) {
  const int64_t full = bytes_with("activation_checkpoint.mode=full");
  const int64_t small = bytes_with("training.local_batch_size=1");
  const int64_t both = bytes_with("activation_checkpoint.mode=full training.local_batch_size=1");
  ASSERT_LT(both, std::min(full, small));
  const std::vector<FittingChange> found =
      changes(small_job({"parallelism.data_parallel_shard_degree=1"}), both);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].settings, "activation_checkpoint.mode=full training.local_batch_size=1");
}

TEST(MemoryFit, TriesTensorParallelismOnTheSameRanks) {
  const Job job = plan_job(small_job({"activation_checkpoint.mode=full", "training.local_batch_size=1",
                                      "parallelism.data_parallel_shard_degree=1",
                                      "parallelism.data_parallel_replicate_degree=-1"}),
                           {0, 4});
  const MemoryAccount memory = account(write_train_step(job));
  const FitResult found = find_fitting_changes(job, {memory.peak_of_one_memory() - 1, "are free"});
  ASSERT_FALSE(found.changes.empty());
  EXPECT_EQ(found.changes[0].settings, "parallelism.tensor_parallel_degree=2");
}

TEST(MemoryFit, TriesTwoChangesBeforeItAsksForMoreRanks) {
  const int64_t both = bytes_with("activation_checkpoint.mode=full training.local_batch_size=1");
  const std::vector<FittingChange> found = changes(small_job(), both);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].settings, "activation_checkpoint.mode=full training.local_batch_size=1");
  EXPECT_EQ(found[0].bytes, both);
  for (std::size_t i = 1; i < found.size(); ++i) EXPECT_CONTAINS(found[i].settings, "--world-size");
}

TEST(MemoryFit, KeepsTheRowsOfAStepIfTheGlobalBatchFollowsTheLocalOne) {
  const Config config = small_job({"training.global_batch_size=-1"});
  const std::vector<FittingChange> found = changes(config, memory_of(config).peak_of_one_memory() - 1);
  EXPECT_EQ(found.at(1).settings, "training.local_batch_size=4 training.global_batch_size=8");
}

TEST(MemoryFit, OffloadingHelpsOnlyIfTheDeviceHasItsOwnMemory) {
  const auto offloads = [](const FittingChange& change) { return contains(change.settings, "cpu_offload"); };
  const int64_t peak = memory_of(small_job()).peak_bytes;
  EXPECT_TRUE(std::ranges::none_of(changes(small_job(), peak - 1), offloads));
  EXPECT_TRUE(std::ranges::any_of(changes(small_job(), peak - 1, false), offloads));
}

TEST(MemoryFit, SaysWhatWasTriedIfNothingFits) {
  const Config config = small_job();
  EXPECT_TRUE(changes(config, 1000).empty());
  EXPECT_CONTAINS(memory_verdict(plan_job(config), memory_of(config), {1000, "are free"}),
                  "Tried without success, alone and together: activation_checkpoint.mode=budget "
                  "activation_checkpoint.memory_budget=0.5 to 0.25, activation_checkpoint.mode=full, "
                  "training.local_batch_size=4 to 1, --world-size 2 to ",
                  "\n  Not tried: pipeline and context parallelism, ");
}

TEST(MemoryFit, AnOutOfMemoryErrorNamesThePredictedPeak) {
  MemoryAccount memory;
  memory.peak_bytes = int64_t{3} << 30;
  memory.host_bytes = int64_t{1} << 30;
  const MemoryBudget budget{int64_t{2} << 30, "were free"};
  const auto message = [&](const std::function<void()>& work) {
    return message_of<Error>([&] { with_predicted_peak(memory, budget, work); });
  };
  const std::string peak =
      "; the training step alone was predicted to need 4.0 GiB per rank, and 2.0 GiB were free when "
      "the run started";
  EXPECT_TRUE(message([] { throw std::bad_alloc(); }).starts_with("out of memory" + peak));
  EXPECT_TRUE(message([] {
                throw OutOfMemory("backward head m0: out of memory");
              }).starts_with("backward head m0: out of memory" + peak));
  EXPECT_EQ(message([] { throw Error("another fault"); }), "another fault");
}

TEST(MemoryFit, TheBudgetIsTheLesserOfFreeMemoryAndAddressSpace) {
  MemoryFacts memory{.total = 1000, .available = 600};
  EXPECT_EQ(free_memory(memory, 2, "are free").bytes, 300);
  EXPECT_EQ(free_memory(memory, 2, "are free").source, "are free");
  memory.address_space = 400;
  EXPECT_EQ(free_memory(memory, 2, "are free").bytes, 300) << "every rank has an address space of its own";
  EXPECT_EQ(free_memory(memory, 1, "are free").bytes, 400);
  EXPECT_CONTAINS(free_memory(memory, 1, "are free").source, "ulimit -v");
}

TEST(ParseBytes, AcceptsNumbersWithUnits) {
  EXPECT_EQ(parse_bytes("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("512 MB"), 512000000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(message_of<UsageError>([] { parse_bytes("80"); }),
            "\"80\" has no unit; write 80GiB for gibibytes, or 80GB");
  for (const char* wrong :
       {"", "GiB", "0", "-1GiB", "12 apples", "80 gib", "80", "1e9", "1e30", "nan", "inf"})
    EXPECT_THROW(parse_bytes(wrong), UsageError) << wrong;
}

/// 8 experts, 2 per token, on 4 ranks.
Config spread_experts() {
  const std::vector<std::string> settings = {
      "model.family=qwen3_moe",      "model.n_layers=2",          "model.vocab_size=256",
      "model.n_experts=8",           "model.experts_per_token=2", "training.seq_len=128",
      "training.local_batch_size=8", "training.threads=1",        "parallelism.expert_parallel_degree=4"};
  return load_config({}, settings).config;
}

TEST(MemoryFit, NamesTheLoadOfExpertsWithWhichTheBudgetIsReached) {
  const Job job = plan_job(spread_experts(), {0, 4});
  const MemoryAccount even = account(write_train_step(job));
  const MemoryAccount largest = plan_largest_memory(job);
  const int64_t low = even.peak_of_one_memory();
  const int64_t high = largest.peak_of_one_memory();
  ASSERT_GT(high, low);
  const auto verdict = [&](int64_t bytes) {
    return uneven_load_verdict(job, even, largest, {bytes, "are free"});
  };
  // Each rank has 2 experts, so both of every token can be on one of the 4.
  EXPECT_CONTAINS(verdict(high), "(router/max_rank_load 4)");
  EXPECT_TRUE(verdict(high).ends_with(": it fits"));
  EXPECT_CONTAINS(verdict(low + (high - low) / 3 + 1),
                  "it does not fit\n  Keep router/max_rank_load below about 2: model.router_aux_loss_weight "
                  "evens out the loads");
  EXPECT_TRUE(verdict(low - 1).ends_with(": it does not fit"));
}

TEST(MemoryFit, OnlySettingsThatTheJobCanHaveAreNamedToEvenOutLoads) {
  const auto verdict = [](const std::vector<std::string>& settings) {
    const Job job = plan_job(load_config({}, settings).config, {0, 4});
    MemoryAccount even;
    even.peak_bytes = 1;
    MemoryAccount largest;
    largest.peak_bytes = 9;
    return uneven_load_verdict(job, even, largest, {5, "are free", false});
  };
  const std::string ep = "parallelism.expert_parallel_degree=2";
  EXPECT_TRUE(
      verdict({"preset=deepseek-v3", ep})
          .ends_with("below about 1.5: model.router_aux_loss_weight and model.router_bias_update_speed "
                     "even out the loads"));
  EXPECT_TRUE(verdict({"preset=qwen3-30b-a3b", ep, "parallelism.context_parallel_degree=2"})
                  .ends_with("below about 1.5"));
}

TEST(MemoryFit, MemoryGrowsWithTheRowsOfTheRankWithMost) {
  Config config = spread_experts();
  // Every token takes all experts: even loads are the largest.
  config.model.experts_per_token = config.model.n_experts;
  const Job job = plan_job(config, {0, 4});
  EXPECT_EQ(plan_largest_memory(job).peak_bytes, account(write_train_step(job)).peak_bytes);
}

}  // namespace
}  // namespace stepforge::testing
