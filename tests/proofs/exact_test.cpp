// SPDX-License-Identifier: Apache-2.0
// With exact arithmetic, ten steps have the same bits in every layout.
#include "tests/engines/gloo_ranks.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/exact_model.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

struct Layout {
  int ranks;
  int replicas;  ///< 1: FSDP; equal to ranks: plain data parallelism; otherwise HSDP
};

const std::vector<Layout> kLayouts = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1},
                                      {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}};

/// Combinations of choices, different ones for each layout and model.
std::vector<Strings> sample_choices(ExactModel model, const Layout& layout) {
  const int key = layout.ranks * 100 + layout.replicas * 10 + static_cast<int>(model);
  std::vector<Strings> choices = exact_choices(layout.ranks, key, long_tests() ? 60 : 3);
  for (Strings& args : choices)
    args.push_back(format("parallelism.data_parallel_replicate_degree={}", layout.replicas));
  return choices;
}

Records one_rank(const TempFolder& folder, ExactModel model, const Strings& more = {}) {
  TestRun run(exact_job(folder / "one") + more);
  use_exact_model(run, model);
  return run.run();
}

std::vector<Records> many_ranks(const TempFolder& folder, ExactModel model, int ranks, const Strings& more) {
  RankThreads threads(ranks);
  const auto records = threads.run([&](int) { return exact_job(folder / "many") + more; },
                                   [&](TestRun& run, int) { use_exact_model(run, model); });
  for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << join(more, " ");
  return records;
}

class ExactArithmetic : public ::testing::TestWithParam<ExactModel> {};

TEST_P(ExactArithmetic, EveryStepChangesLossNormAndWeights) {
  const TempFolder folder;
  const Records steps = one_rank(folder, GetParam());
  ASSERT_EQ(steps.size(), 10U);
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_NE(steps[i].loss, steps[i - 1].loss);
    EXPECT_NE(steps[i].grad_norm, steps[i - 1].grad_norm);
    EXPECT_NE(steps[i].bits, steps[i - 1].bits);
  }
}

// Finds what went wrong in torchtitan#2318, #2206, torchtune#2172, radixark/miles#3231, verl#5625, #7493,
// VeOmni#862, DeepSpeed#1488, #7718, #7837, accelerate#3877, transformers#34191, #35203, #37766.
TEST_P(ExactArithmetic, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const Records one = one_rank(folder, GetParam());
  for (const Layout& layout : kLayouts) {
    for (const Strings& args : sample_choices(GetParam(), layout)) {
      const std::string name = format("{} ranks, {}", layout.ranks, join(args, " "));
      expect_same_numbers(many_ranks(folder, GetParam(), layout.ranks, args), one, name);
    }
  }
}

TEST_P(ExactArithmetic, EveryEngineGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const auto text = [](const Records& records) {
    std::string all;
    for (const StepRecord& record : records) {
      all += format("{} {} {}\n", record.loss, record.grad_norm, record.bits);
    }
    return all;
  };
  // Three steps, in the long tests ten, because TCP is slow.
  const Strings args{"parallelism.fsdp_forward_prefetch=2", "parallelism.fsdp_reduce_in_flight=2",
                     format("training.steps={}", long_tests() ? 10 : 3)};
  const std::string expected = text(one_rank(folder, GetParam(), args));
  for (const RankRunner& engine : {as_processes(), as_gloo_processes(), as_gloo_threads()}) {
    for (const int ranks : {2, 4}) {
      const auto body = [&](stepforge::World& world) {
        TestRun run(exact_job(folder / format("{}-{}", engine.name, ranks)) + args, nullptr, &world);
        use_exact_model(run, GetParam());
        return text(run.run());
      };
      for (const std::string& result : engine.run(ranks, body, {60, 60})) {
        EXPECT_EQ(result, expected) << engine.name << ", " << ranks << " ranks";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExactArithmetic,
                         ::testing::Values(ExactModel::plain, ExactModel::shared, ExactModel::adapted),
                         [](const auto& model) { return std::string(exact_model_name(model.param)); });

/// Checks whether an element of this rank's gradients has more bits than bf16.
class FindFp32Bits : public Callback {
 public:
  explicit FindFp32Bits(bool& found) : found_(found) {}
  std::string_view name() const override { return "bits"; }
  void step_end(Trainer& trainer) override {
    for (size_t u = 0; u < trainer.store->size(); ++u) {
      const at::Tensor& gradient = trainer.store->unit(u).gradient();
      if (gradient.defined() && !at::equal(gradient.to(at::kBFloat16).to(at::kFloat), gradient))
        found_ = true;
    }
  }

 private:
  bool& found_;
};

TEST(ExactMixedPrecision, GradientsAreAccumulatedInFp32OverMicroStepsAndRanks) {
  // The gradients of a micro-batch of one row, at most 7 x 16 units, fit into the 8 bits of bf16; the sums of
  // 24 rows do not.
  const TempFolder folder;
  const Strings bf16{"precision.compute=bf16"};
  bool wide = false;
  TestRun run(exact_job(folder / "one") + bf16);
  use_exact_model(run, ExactModel::plain);
  run.trainer().add_callback(std::make_unique<FindFp32Bits>(wide));
  const Records one = run.run();
  EXPECT_TRUE(wide);
  for (const Layout& layout : kLayouts) {
    for (const char* each : {"false", "true"}) {
      const Strings args =
          bf16 + Strings{format("parallelism.data_parallel_replicate_degree={}", layout.replicas),
                         format("parallelism.fsdp_reduce_each_micro_batch={}", each)};
      expect_same_numbers(many_ranks(folder, ExactModel::plain, layout.ranks, args), one,
                          format("{} ranks, {}", layout.ranks, join(args, " ")));
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
