// SPDX-License-Identifier: Apache-2.0
// Runs of several ranks compared with that of one: steps, and the tensors of checkpoints.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/checkpoint/native.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "tests/proofs/exact_model.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {

/// The degrees of a run, and options.
struct LayoutCase {
  int ranks;
  int context;
  int tensor;
  int replicas;
  Strings more;
};

inline Strings overrides_of(const LayoutCase& layout) {
  return layout.more + Strings{format("parallelism.context_parallel_degree={}", layout.context),
                               format("parallelism.tensor_parallel_degree={}", layout.tensor),
                               format("parallelism.data_parallel_replicate_degree={}", layout.replicas)};
}

inline const Strings kNoCheckpoint{"checkpoint.enable=false"};
inline const Strings kRecomputed{"activation_checkpoint.mode=full", "model.dropout=0.1"};
inline const Strings kAllTokens{"parallelism.enable_sequence_parallel=false",
                                "parallelism.enable_async_tensor_parallel=false"};
inline const Strings kUlysses{"parallelism.context_parallel_method=ulysses"};
inline const Strings kRing{"parallelism.context_parallel_method=ring"};
inline const Strings kAsync{"parallelism.enable_async_tensor_parallel=true"};
inline const Strings kWholeLogits{"parallelism.disable_loss_parallel=true"};
inline const Strings kRegions{"activation_checkpoint.mode=regions",
                              "activation_checkpoint.regions=[\"attention\"]"};
inline const Strings kByDim{"parallelism.fsdp_partition=by_dim",
                            "parallelism.fsdp_reduce_each_micro_batch=true"};
inline const Strings kOffloaded{"parallelism.fsdp_cpu_offload=true", "parallelism.fsdp_partition=by_tensor"};

/// Calls a function at the end of each validation.
class CallAtValidation : public Callback {
 public:
  explicit CallAtValidation(std::function<void(Trainer&)> at_end) : at_end_(std::move(at_end)) {}
  std::string_view name() const override { return "validation"; }
  void evaluate(Trainer& trainer) override { at_end_(trainer); }

 private:
  std::function<void(Trainer&)> at_end_;
};

/// All of `cases` in the long set. In the fast set each of the two families takes every second one.
template <typename Case>
std::vector<Case> cases_of(const std::string& family, const std::vector<Case>& cases) {
  if (long_tests()) return cases;
  std::vector<Case> taken;
  for (size_t i = family == "llama" ? 0 : 1; i < cases.size(); i += 2) taken.push_back(cases[i]);
  return taken;
}

/// The bytes of every tensor of the last checkpoint: masters and moments, whole.
inline std::map<std::string, std::string> saved_tensors(const std::filesystem::path& run_dir, int64_t step) {
  const TensorFolder folder = checkpoint_tensors(checkpoint_of_step(run_dir / "checkpoint", step));
  std::map<std::string, std::string> tensors;
  for (const std::string& name : folder.names()) {
    const StoredTensor& tensor = *folder.find(name);
    const TensorSlice whole = whole_slice(tensor.shape);
    std::string bytes(static_cast<size_t>(whole.elements() * dtype_bytes(tensor.dtype)), ' ');
    folder.read(name, whole, std::as_writable_bytes(std::span(bytes)));
    tensors[name] = bytes;
  }
  return tensors;
}

inline void expect_same_tensors(const std::map<std::string, std::string>& actual,
                                const std::map<std::string, std::string>& expected, const std::string& name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  for (const auto& [tensor, bytes] : expected)
    EXPECT_TRUE(actual.contains(tensor) && actual.at(tensor) == bytes) << tensor << ": " << name;
}

inline void expect_same_steps(const std::vector<Records>& ranks, const Records& one,
                              const std::string& name) {
  for (const Records& records : ranks) {
    ASSERT_EQ(records.size(), one.size()) << name;
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_EQ(records[step].loss, one[step].loss) << name << ", step " << step;
      EXPECT_EQ(records[step].grad_norm, one[step].grad_norm) << name << ", step " << step;
    }
  }
}

/// 20 steps in this layout have the losses and norms of one rank, in real arithmetic; equal ones on all ranks.
inline void expect_losses_of_one_rank(const LayoutCase& layout,
                                      const std::function<Strings(const std::filesystem::path&)>& job) {
  const TempFolder folder;
  const std::string name = format("{} ranks, {}", layout.ranks, join(overrides_of(layout), " "));
  const Records one = TestRun(job(folder / "one") + kNoCheckpoint + layout.more).run();
  RankThreads threads(layout.ranks);
  const auto many = threads.run(job(folder / "many") + kNoCheckpoint + overrides_of(layout));
  for (const std::string& failure : threads.failures) ASSERT_EQ(failure, "") << name;
  ASSERT_EQ(one.size(), 20U);
  for (const Records& records : many) {
    ASSERT_EQ(records.size(), one.size()) << name;
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_NEAR(records[step].loss, one[step].loss, 1e-5) << name << ", step " << step;
      EXPECT_NEAR(records[step].grad_norm, one[step].grad_norm, 1e-4 * one[step].grad_norm) << name;
      EXPECT_EQ(records[step].loss, many[0][step].loss) << name;
      EXPECT_EQ(records[step].grad_norm, many[0][step].grad_norm) << name;
      EXPECT_EQ(records[step].tokens_seen, one[step].tokens_seen) << name;
    }
  }
}

/// The numbers of each step of a run, and the bytes of its last checkpoint.
struct WholeRun {
  Records steps;
  std::map<std::string, std::string> tensors;
};

/// Runs of an exact model with checkpoints.
class RunsOfAModel : public ::testing::Test {
 protected:
  /// Each layout trains as many. All steps do the same; the first ones differ by the moments, which they begin from 0.
  int64_t layout_steps_ = long_tests() ? 10 : 4;

  virtual ExactModel model() const = 0;
  Records run_one(const std::filesystem::path& run_dir, const Strings& more = {}) const {
    TestRun run(exact_job(run_dir) + Strings{"checkpoint.enable=true"} + more);
    use_exact_model(run, model());
    return run.run();
  }
  std::vector<Records> run_many(int ranks, const Strings& args, std::optional<int64_t> last = {}) const {
    RankThreads threads(ranks);
    const auto records = threads.run([&](int) { return args; },
                                     [&](TestRun& run, int) { use_exact_model(run, model()); }, last);
    for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << join(args, " ");
    return records;
  }

  /// The run with which expect_bits_of() compares layouts.
  WholeRun layout_on_one(const std::filesystem::path& run_dir, const Strings& job) const {
    Records steps = run_one(run_dir, job + Strings{format("training.steps={}", layout_steps_)});
    EXPECT_EQ(std::ssize(steps), layout_steps_);
    EXPECT_NE(steps.front().loss, steps.back().loss);
    return {std::move(steps), saved_tensors(run_dir, layout_steps_)};
  }
  /// The same job on many ranks, in a folder that is removed again.
  void expect_bits_of(const WholeRun& one, const std::filesystem::path& run_dir, int ranks,
                      const Strings& job) const {
    const std::string name = format("{} ranks, {}", ranks, join(job, " "));
    const Strings length{"checkpoint.enable=true", format("training.steps={}", layout_steps_)};
    expect_same_steps(run_many(ranks, exact_job(run_dir) + job + length), one.steps, name);
    expect_same_tensors(saved_tensors(run_dir, layout_steps_), one.tensors, name);
    std::filesystem::remove_all(run_dir);
  }
};

class ExactRuns : public RunsOfAModel, public ::testing::WithParamInterface<ExactModel> {
 protected:
  ExactModel model() const override { return GetParam(); }
};

}  // namespace stepforge::testing
