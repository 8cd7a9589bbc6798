// SPDX-License-Identifier: Apache-2.0
// Small runs on pairs of answers.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "stepforge/kernels/cpu_allocator.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {

/// Prompts with a short better answer and a longer worse one.
inline std::string pair_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += format(R"({{"prompt": "{}=", "chosen": "{}", "rejected": "{}."}})"
                    "\n",
                    std::string(static_cast<size_t>(1 + i * 7 % 5), static_cast<char>('a' + i % 26)),
                    std::string(static_cast<size_t>(1 + i * 5 % 4), static_cast<char>('A' + i % 26)),
                    std::string(static_cast<size_t>(1 + i * 3 % 7), static_cast<char>('A' + (i + 3) % 26)));
  }
  return lines;
}

/// On documents of their own, with a checkpoint after every second step.
inline const Strings kSixSteps{"data.packing=best_fit",
                               "training.seq_len=48",
                               "training.local_batch_size=1",
                               "training.global_batch_size=4",
                               "training.steps=6",
                               "lr_scheduler.warmup_steps=0",
                               "optimizer.lr=0.01",
                               "checkpoint.interval=2",
                               "checkpoint.keep_latest_k=0",
                               "metrics.log_freq=1"};
/// Weights of losses are sums over the answers of a step, and losses may be near 0.
inline constexpr CurveTolerance kPairCurve{.norm = 1e-3, .small_loss = 1e-6};

inline Strings pair_run(const TempFolder& folder, const std::string& name, const std::string& loss = "dpo") {
  write_text(folder / "pairs.jsonl", pair_lines(60));
  return trainer_run(folder / name) +
         Strings{format("data.sources=[{{path=\"{}\",format=\"preference\"}}]",
                        (folder / "pairs.jsonl").string()),
                 "preference.loss=" + loss} +
         kSixSteps;
}

/// The peak of the steps after the first one is what the plan says.
inline void expect_planned_memory(TestRun& run) {
  int64_t measured = 0;
  run.build();
  run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
    if (trainer.state.step > 1) measured = std::max(measured, cpu_memory().peak_bytes);
  }));
  run.trainer().run();
  const auto predicted = static_cast<double>(run.trainer().predicted_memory.peak_of_one_memory());
  EXPECT_NEAR(static_cast<double>(measured), predicted, 0.03 * predicted);
}

inline Records run_ranks(int ranks, const Strings& args, std::optional<int64_t> last = {}) {
  return RankThreads(ranks).run(args, last).at(0);
}

/// A run of kSixSteps that changes its number of ranks after every second step.
inline Records moved_between_ranks(const Strings& args, const std::vector<int>& ranks = {1, 2, 4}) {
  Records found;
  for (size_t i = 0; i < ranks.size(); ++i)
    for (const StepRecord& record : numbers(run_ranks(ranks[i], args, static_cast<int64_t>(2 * i + 2))))
      found.push_back(record);
  return found;
}

}  // namespace stepforge::testing
