// SPDX-License-Identifier: Apache-2.0
// With pipelines of every schedule, training and checkpoints equal those of one rank.
#include "stepforge/schedule/csv.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/pipeline_choices.h"
#include "tests/proofs/staged_job.h"
#include "tests/schedule/random_schedule.h"

namespace stepforge::testing {
namespace {

class ExactPipeline : public ExactRuns {
 protected:
  /// Rows that divide into slices and chunks.
  const Strings even_rows_{"training.seq_len=24", "checkpoint.enable=true"};
};

/// A layout of up to 8 ranks around a pipeline with 1 to 9 micro-batches, and options.
struct DrawnRun {
  int ranks = 1;
  int64_t rows = 0;  ///< of a step
  Strings args;
};

std::string rows_of_step(int64_t rows) {
  return format("training.global_batch_size={}", rows);
}

DrawnRun draw_run(Dice& dice, const PipelineCase& pipeline) {
  int left = 8 / pipeline.ranks;
  const auto degree = [&] {
    const int drawn = 1 << dice.below(3);
    const int taken = std::min(drawn, left);
    left /= taken;
    return taken;
  };
  const int tensor = degree();
  const int context = degree();
  const int replicas = degree();
  const int shards = degree();
  const int data_ranks = replicas * shards;
  const int parts = data_ranks * (1 + dice.below(9));
  DrawnRun run;
  run.rows = exact_rows(parts);
  run.ranks = pipeline.ranks * tensor * context * data_ranks;
  run.args = exact_choice(data_ranks, dice.below(static_cast<int>(combinations()))) +
             overrides_of({run.ranks, context, tensor, replicas, {}}) + overrides_of(pipeline) +
             Strings{rows_of_step(run.rows), format("training.local_batch_size={}", run.rows / parts),
                     format("parallelism.pipeline_parallel_microbatch_size={}", run.rows / parts)};
  return run;
}

// Finds what went wrong in torchtitan#2972 and #4194 (gradients times tokens), #1732 and #1733 (moving average of
// gradients), Megatron-LM#844 (tied weights), #7227 (the norm of a tied weight counted twice: 40 instead of 28.284),
// AutoModel#3530 (gradients cleared between micro-batches), transformers#34191, #35203, #37766 (accumulation).
TEST_P(ExactPipeline, EveryScheduleGivesTheBitsOfOneRankInEveryLayout) {
  const TempFolder folder;
  std::map<std::pair<int, int64_t>, WholeRun> known;  // by layers and rows
  const auto expected = [&](int layers, int64_t rows) -> const WholeRun& {
    if (!known.contains({layers, rows})) {
      const Strings size{format("model.n_layers={}", layers), rows_of_step(rows)};
      known[{layers, rows}] = layout_on_one(folder / format("one-{}-{}", layers, rows), even_rows_ + size);
    }
    return known[{layers, rows}];
  };
  std::vector<PipelineCase> cases = pipeline_cases({1, 2, 4});
  uint64_t seed = GetParam() == ExactModel::plain ? 0 : 1;
  for (size_t c = 0; c < cases.size(); ++c) {
    if (!long_tests() && c % 2 != seed % 2) continue;
    const PipelineCase& pipeline = cases[c];
    Dice dice(1000 * seed + c);
    for (int i = 0; i < (long_tests() ? 20 : 1); ++i) {
      const DrawnRun run = draw_run(dice, pipeline);
      expect_bits_of(expected(pipeline.layers(), run.rows), folder / "many", run.ranks,
                     even_rows_ + run.args);
    }
  }
}

TEST_P(ExactPipeline, ARunMovesFromFourStagesToTensorParallelStagesToOneRank) {
  const TempFolder folder;
  const Strings layers{"model.n_layers=3"};
  run_one(folder / "one", even_rows_ + layers);
  const auto degrees = [](int pipeline, int tensor) {
    return Strings{format("parallelism.pipeline_parallel_degree={}", pipeline),
                   format("parallelism.tensor_parallel_degree={}", tensor)};
  };
  const std::vector<std::pair<int, Strings>> moves = {{4, degrees(4, 1)},
                                                      {4, degrees(2, 2)},
                                                      {1, {}},
                                                      {8, degrees(2, 1)},
                                                      {2, overrides_of(PipelineCase{"ZBVZeroBubble", 2, 2})}};
  for (size_t i = 0; i < moves.size(); ++i) {
    const Strings job = exact_job(folder / "many") + even_rows_ + moves[i].second +
                        Strings{"parallelism.pipeline_parallel_layers_per_stage=0"} + layers;
    run_many(moves[i].first, job, static_cast<int64_t>(2 * i + 2));
  }
  expect_same_tensors(saved_tensors(folder / "many", 10), saved_tensors(folder / "one", 10), "moved");
}

INSTANTIATE_TEST_SUITE_P(Models, ExactPipeline,
                         ::testing::Values(ExactModel::plain, ExactModel::shared, ExactModel::adapted),
                         [](const auto& model) { return std::string(exact_model_name(model.param)); });

/// One case of each schedule, on 2 and on 4 ranks.
std::vector<PipelineCase> six_layer_cases() {
  std::vector<PipelineCase> cases;
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string name(kind.name);
    const int stages = kind.stages.min;
    for (const int ranks : {2, 4}) cases.push_back({name, ranks, stages});
  }
  return cases;
}

const Strings kOrdered{"training.reduction=ordered", "checkpoint.enable=true"};

class PipelineTraining : public ::testing::TestWithParam<const char*> {
 protected:
  Strings job(const std::string& name, int rows) const {
    return staged_job(folder_ / name, GetParam(), rows);
  }
  Records run_one(int rows, const Strings& more = {}) const { return TestRun(job("one", rows) + more).run(); }

  TempFolder folder_;
};

TEST_P(PipelineTraining, InOrderedModeEveryScheduleGivesTheBitsOfOneRank) {
  // Trees of 5, 7, 8 and 9 micro-batches; dp 2 with 4 each.
  struct Ordered {
    int rows;
    int data_ranks;
  };
  size_t number = 0;
  for (const Ordered& ordered : {Ordered{5, 1}, Ordered{7, 1}, Ordered{8, 2}, Ordered{9, 1}}) {
    const Records one = run_one(ordered.rows, kOrdered);
    const auto expected = saved_tensors(folder_ / "one", 4);
    for (const PipelineCase& pipeline : cases_of(GetParam(), six_layer_cases())) {
      if (!long_tests() && ++number % 2 == 0) continue;
      const Strings more = kOrdered + pipeline_of(pipeline);
      const std::string name = format("{} rows, {}", ordered.rows, join(more, " "));
      const auto many =
          RankThreads(pipeline.ranks * ordered.data_ranks).run(job("many", ordered.rows) + more);
      expect_same_steps(many, one, name);
      expect_same_tensors(saved_tensors(folder_ / "many", 4), expected, name);
      std::filesystem::remove_all(folder_ / "many");
    }
    std::filesystem::remove_all(folder_ / "one");
  }
}

// Finds what went wrong in transformers#34191, #35203, #37766 (accumulation is not the large batch), verl#5625 and
// torchtitan#1842, #2206 (a mean of means) in a pipeline.
TEST_P(PipelineTraining, MicroBatchesWithUnequalLabelsTogetherAreTheLargeBatch) {
  const int rows = 7;
  const Strings documents = kOrdered + Strings{"data.synthetic_document_length=13"};
  TestRun one(job("one", rows) + documents + Strings{format("training.local_batch_size={}", rows)});
  const Records whole = one.run();
  EXPECT_NE(one.trainer().last_step.valid_labels % rows, 0);
  for (const PipelineCase& pipeline : {PipelineCase{"1F1B", 4, 1}, PipelineCase{"ZBVZeroBubble", 2, 2}}) {
    const auto many = RankThreads(pipeline.ranks).run(job("many", rows) + documents + pipeline_of(pipeline));
    expect_same_steps(many, whole, pipeline.schedule);
    expect_same_tensors(saved_tensors(folder_ / "many", 4), saved_tensors(folder_ / "one", 4),
                        pipeline.schedule);
    std::filesystem::remove_all(folder_ / "many");
  }
}

/// Embedding and head are on one rank, in one stage or two, or on two ranks, which each keep the state on the host.
TEST_P(PipelineTraining, InOrderedModeATiedEmbeddingGivesTheBitsOfOneRank) {
  const Strings tied = kOrdered + Strings{"model.tie_embeddings=true"};
  struct Layout {
    std::string schedule;
    int ranks;
    int stages_per_rank;
    int data_ranks;
    bool offload = false;
  };
  const std::vector<Layout> layouts = {{"1F1B", 1, 1, 2},
                                       {"1F1B", 2, 1, 1},
                                       {"1F1B", 4, 1, 2},
                                       {"1F1B", 2, 1, 2, true},
                                       {"Interleaved1F1B", 2, 2, 2},
                                       {"InterleavedZeroBubble", 4, 2, 1},
                                       {"ZBVZeroBubble", 2, 2, 2},
                                       {"DualPipeV", 4, 2, 1}};
  for (const int rows : {5, 8}) {
    const Records one = run_one(rows, tied);
    const auto expected = saved_tensors(folder_ / "one", 4);
    for (const Layout& layout : layouts) {
      if (layout.data_ranks > 1 && rows % layout.data_ranks != 0) continue;
      const Strings more = tied + pipeline_of({layout.schedule, layout.ranks, layout.stages_per_rank}) +
                           Strings{format("parallelism.fsdp_cpu_offload={}", layout.offload)};
      const std::string name = format("{} rows, {}", rows, join(more, " "));
      const auto many = RankThreads(layout.ranks * layout.data_ranks).run(job("many", rows) + more);
      expect_same_steps(many, one, name);
      expect_same_tensors(saved_tensors(folder_ / "many", 4), expected, name);
      std::filesystem::remove_all(folder_ / "many");
    }
    std::filesystem::remove_all(folder_ / "one");
  }
}

/// A schedule as a file.
Strings own_schedule(const std::filesystem::path& file, const Schedule& schedule) {
  write_text(file, schedule_csv(schedule));
  return {format("parallelism.pipeline_parallel_degree={}", schedule.ranks()),
          "parallelism.pipeline_parallel_schedule_csv=" + file.string()};
}

TEST_P(PipelineTraining, AFileWithAnyLegalOrderGivesTheSameBits) {
  const Records one = run_one(5, kOrdered);
  const auto expected = saved_tensors(folder_ / "one", 4);
  for (uint64_t seed = 0; seed < (long_tests() ? 40 : 4); ++seed) {
    Dice dice(seed);
    const int ranks = 2 + dice.below(2);
    const Schedule schedule =
        random_schedule(dice, 5, random_stages(dice, ranks, ranks + dice.below(2)), ranks, dice.toss());
    const std::string name = schedule_csv(schedule);
    const Strings more = kOrdered + own_schedule(folder_ / "own.csv", schedule);
    RankThreads threads(ranks);
    const auto many = threads.run([&](int) { return job("many", 5) + more; });
    for (const std::string& failure : threads.failures) ASSERT_EQ(failure, "") << name;
    expect_same_steps(many, one, name);
    expect_same_tensors(saved_tensors(folder_ / "many", 4), expected, name);
    std::filesystem::remove_all(folder_ / "many");
  }
}

// Finds what went wrong in torchtitan#4167 (validation is a mean of means) in a pipeline.
TEST_P(PipelineTraining, ValidationIsThatOfOneRank) {
  // The last batch of five rows is smaller than the others.
  const Strings validated =
      kNoCheckpoint + Strings{"training.reduction=ordered", "data.validation=[{format=\"synthetic\"}]",
                              "data.synthetic_tokens=4830", "validation.freq=2",
                              "training.local_batch_size=5"};
  TestRun one(job("one", 10) + validated);
  one.run();
  const EvaluationResult expected = one.trainer().last_validation;
  EXPECT_GT(expected.valid_labels, 1000);
  for (const PipelineCase& pipeline : {PipelineCase{"1F1B", 4, 1}, PipelineCase{"ZBVZeroBubble", 2, 2}}) {
    std::vector<EvaluationResult> results(static_cast<size_t>(pipeline.ranks));
    const auto keep = [&](TestRun& run, int rank) {
      run.trainer().add_callback(std::make_unique<CallAtValidation>(
          [&results, rank](Trainer& at) { results[static_cast<size_t>(rank)] = at.last_validation; }));
    };
    RankThreads threads(pipeline.ranks);
    threads.run([&](int) { return job("many", 10) + validated + pipeline_of(pipeline); }, keep);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(threads.failures[rank], "");
      EXPECT_EQ(results[rank].loss, expected.loss) << pipeline.schedule << ", rank " << rank;
      EXPECT_EQ(results[rank].valid_labels, expected.valid_labels);
      EXPECT_EQ(results[rank].tokens, expected.tokens);
    }
  }
}

TEST_P(PipelineTraining, SampledTextIsThatOfOneRank) {
  const Strings sampling = kNoCheckpoint + Strings{"training.reduction=ordered", "sampling.freq=2",
                                                   "sampling.prompt=Once", "sampling.max_tokens=12"};
  run_one(4, sampling);
  const std::string expected = samples_of(folder_ / "one" / "log.txt");
  EXPECT_NE(expected, "");
  for (const PipelineCase& pipeline :
       {PipelineCase{"1F1B", 4, 1}, PipelineCase{"DualPipeV", 2, 2}, PipelineCase{"Interleaved1F1B", 2, 2}}) {
    RankThreads(pipeline.ranks).run(job("many", 4) + sampling + pipeline_of(pipeline));
    EXPECT_EQ(samples_of(folder_ / "many" / "log.txt"), expected) << pipeline.schedule;
    EXPECT_EQ(samples_of(folder_ / "many" / "logs" / "rank-1.txt"), expected) << pipeline.schedule;
    std::filesystem::remove_all(folder_ / "many");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PipelineTraining, ::testing::Values("llama", "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace stepforge::testing
