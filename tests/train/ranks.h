// SPDX-License-Identifier: Apache-2.0
// Several ranks of one training job as threads of this process.
#pragma once

#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stepforge/comm/shared_memory.h"
#include "tests/support/delayed_world.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {

using Records = std::vector<StepRecord>;

/// The lines with samples of a log.
inline std::string samples_of(const std::filesystem::path& log) {
  std::string all;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("sample at step");
    if (at != std::string::npos) all += line.substr(at) + "\n";
  }
  return all;
}

/// Runs a job on `ranks` ranks, each a thread with a trainer. `prepare` may change a trainer before it is
/// built. `failures` holds the error message of each rank, "" if it succeeded.
class RankThreads {
 public:
  using Prepare = std::function<void(TestRun&, int rank)>;

  /// `rule`: delays of collectives.
  explicit RankThreads(int ranks, const DelayRule& rule = {}) : worlds_(thread_worlds(ranks, {60, 60})) {
    if (!rule) return;
    for (auto& world : worlds_) world = delayed_world(std::move(world), rule);
  }

  std::vector<Records> run(const std::function<Strings(int rank)>& args, const Prepare& prepare = {},
                           std::optional<int64_t> last_step = {}) {
    std::vector<Records> records(worlds_.size());
    failures.assign(worlds_.size(), "");
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < worlds_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          TestRun run(args(static_cast<int>(rank)), nullptr, worlds_[rank].get());
          if (!test_device().empty()) run.trainer().ranks_on_host = static_cast<int>(worlds_.size());
          if (prepare) prepare(run, static_cast<int>(rank));
          records[rank] = run.run(last_step);
        } catch (const std::exception& failure) {
          failures[rank] = failure.what();
          worlds_[rank]->abort(failure.what());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return records;
  }

  /// The records of every rank; fails the test if a rank throws.
  std::vector<Records> run(const Strings& args, std::optional<int64_t> last_step = {}) {
    auto records = run([&](int) { return args; }, {}, last_step);
    for (const auto& failure : failures) EXPECT_EQ(failure, "");
    return records;
  }

  std::vector<std::string> failures;

 private:
  std::vector<std::unique_ptr<World>> worlds_;
};

/// Eight rows per step in micro-batches of one row.
inline Strings job(const TempFolder& folder, const std::string& name, const Strings& more = {}) {
  return trainer_run(folder / name) +
         Strings{"training.local_batch_size=1", "training.global_batch_size=8", "training.steps=4",
                 "model.dropout=0.1", "checkpoint.enable=false"} +
         more;
}

/// The records without token ids, which differ between ranks.
inline Records numbers(Records records) {
  for (auto& record : records) record.tokens.clear();
  return records;
}

inline void expect_same_numbers(const std::vector<Records>& ranks, const Records& expected,
                                const std::string& context) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(numbers(ranks[rank]), numbers(expected)) << context << ", rank " << rank;
  }
}

/// Relative to each value; of losses also absolute.
struct CurveTolerance {
  double loss = 2e-5;
  double norm = 1e-4;
  double small_loss = 0.0;
};

/// The curve of the same job in another layout: products of divided matrices, or of other numbers of tokens, are rounded differently.
inline void expect_curve(const Records& found, const Records& expected, const std::string& name,
                         const CurveTolerance& tolerance = {}) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(found[step].loss, expected[step].loss,
                tolerance.loss * std::abs(expected[step].loss) + tolerance.small_loss)
        << name << ", step " << step;
    EXPECT_NEAR(found[step].grad_norm, expected[step].grad_norm, tolerance.norm * expected[step].grad_norm)
        << name << ", step " << step;
  }
}

}  // namespace stepforge::testing
