// SPDX-License-Identifier: Apache-2.0
// Runs of several ranks save checkpoints, resume, and resume in other layouts.
#include "stepforge/checkpoint/native.h"
#include "stepforge/tensorfile/hf_index.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

struct Layout {
  int ranks = 1;
  int replicas = 1;
  std::string partition = "flat";
};

/// 24 rows per step; an asynchronous checkpoint after every second step.
Strings job(const fs::path& run_dir, const Layout& layout, const Strings& more = {}) {
  return trainer_run(run_dir) +
         Strings{"training.local_batch_size=1",
                 "training.global_batch_size=24",
                 "training.steps=6",
                 "checkpoint.async=true",
                 "checkpoint.interval=2",
                 format("parallelism.data_parallel_replicate_degree={}", layout.replicas),
                 format("parallelism.fsdp_partition={}", layout.partition)} +
         more;
}

using Inspect = std::function<void(Trainer&)>;

/// Trains a job on the ranks of a layout; `inspect` gets each trainer after it was built.
std::vector<Records> train(const Layout& layout, const Strings& args, std::optional<int64_t> last_step = {},
                           const Inspect& inspect = {}) {
  const auto prepare = [&](TestRun& run, int) {
    if (inspect) run.trainer().add_callback(std::make_unique<CallAtStart>(inspect));
  };
  RankThreads threads(layout.ranks);
  auto records = threads.run([&](int) { return args; }, prepare, last_step);
  for (const std::string& failure : threads.failures) EXPECT_EQ(failure, "");
  return records;
}

TEST(CheckpointsOfRanks, ResumeInTheSameLayoutIsBitEqual) {
  const TempFolder folder;
  for (const Layout& layout : {Layout{3, 1}, Layout{4, 2}, Layout{2, 2}, Layout{4, 2, "by_dim"}}) {
    const std::string name = format("{}-{}-{}", layout.ranks, layout.replicas, layout.partition);
    const auto uncut = train(layout, job(folder / ("uncut-" + name), layout));
    const Strings cut = job(folder / ("cut-" + name), layout);
    auto records = train(layout, cut, 3);
    const auto rest = train(layout, cut, {}, [](const Trainer& trainer) {
      EXPECT_TRUE(trainer.resumed);
      EXPECT_EQ(trainer.state.step, 3);
    });
    for (size_t rank = 0; rank < records.size(); ++rank) {
      records[rank].insert(records[rank].end(), rest[rank].begin(), rest[rank].end());
      EXPECT_EQ(records[rank], uncut[rank]) << name << ", rank " << rank;
    }
  }
}

// Finds what went wrong in Megatron-LM#5077 (moments of another layout).
TEST(CheckpointsOfRanks, WeightsAndMomentsAreBitEqualInEveryLayout) {
  const TempFolder folder;
  const fs::path run_dir = folder / "run";
  std::string bits;
  int64_t step = 0;
  for (const Layout& layout :
       {Layout{1, 1}, Layout{3, 1}, Layout{4, 2}, Layout{2, 2}, Layout{8, 1, "by_tensor"}, Layout{1, 1}}) {
    const auto compare = [&](Trainer& trainer) {
      const std::string loaded = bits_of(trainer);
      if (step > 0) {
        EXPECT_EQ(loaded, bits) << layout.ranks << " ranks at step " << step;
      }
      EXPECT_EQ(trainer.state.step, step);
    };
    const auto records = train(layout, job(run_dir, layout), step + 1, compare);
    bits = records[0].at(0).bits;
    ++step;
  }
}

TEST(CheckpointsOfRanks, AfterADamagedShardAllRanksResumeFromTheStepBefore) {
  const TempFolder folder;
  const Layout layout = {3, 1};
  const Strings args = job(folder / "run", layout);
  const auto records = train(layout, args, 4);
  for (const auto& entry : fs::directory_iterator(folder / "run" / "checkpoint" / "step-4")) {
    if (!entry.path().filename().string().starts_with("shard-00003")) continue;
    fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
    break;
  }
  train(layout, args, 4, [&](Trainer& trainer) {
    EXPECT_EQ(trainer.state.step, 2);
    EXPECT_EQ(bits_of(trainer), records[0][1].bits);
    trainer.log.flush();
  });
  EXPECT_NE(read_file(folder / "run" / "logs" / "rank-2.txt").find("truncated"), std::string::npos);
}

TEST(CheckpointsOfRanks, ARunStartsFromTheWeightsOrTheWholeStateOfAnotherLayout) {
  const TempFolder folder;
  const auto records = train({4, 2}, job(folder / "first", {4, 2}), 2);
  const Strings from = {
      format("checkpoint.initial_load_path=\"{}\"", (folder / "first" / "checkpoint" / "step-2").string())};
  train({3, 1}, job(folder / "weights", {3, 1}, from), 1, [](const Trainer& trainer) {
    EXPECT_EQ(trainer.state.step, 0);
    EXPECT_EQ(trainer.optimizer->steps(), 0);
  });
  train({2, 1}, job(folder / "all", {2, 1}, from + Strings{"checkpoint.initial_load_model_only=false"}), 3,
        [&](Trainer& trainer) {
          EXPECT_EQ(trainer.state.step, 2);
          EXPECT_EQ(bits_of(trainer), records[0][1].bits);
        });
}

TEST(CheckpointsOfRanks, OnlyTheLatestStepsAreKeptAndComplete) {
  const TempFolder folder;
  const Layout layout = {4, 1};
  train(layout, job(folder / "run", layout, {"checkpoint.interval=1", "checkpoint.keep_latest_k=2"}));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "run" / "checkpoint")) {
    names.push_back(entry.path().filename().string());
    EXPECT_NO_THROW(verify_checkpoint(entry.path()));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"step-5", "step-6"}));
}

/// Names and hashes of all weights.
std::string weights_in(const TensorFolder& files) {
  std::string all;
  for (const std::string& name : files.names()) {
    if (name.starts_with("optim.")) continue;
    const TensorSlice whole = whole_slice(files.find(name)->shape);
    std::vector<float> values(static_cast<size_t>(whole.elements()));
    files.read(name, whole, std::as_writable_bytes(std::span(values)));
    all += format("{} {} ", name, content_hash(std::as_bytes(std::span(values))));
  }
  return all;
}

TEST(CheckpointsOfRanks, TheLastSaveIsExportedToAHuggingFaceFolderIfConfigured) {
  const TempFolder folder;
  const Layout layout = {4, 2};
  const fs::path run = folder / "run";
  const Strings args = job(run, layout, {"checkpoint.last_save_in_hf=true"});
  train(layout, args, 3);
  const fs::path exported = run / "hf" / "step-3";
  const auto checkpoint = verify_checkpoint(run / "checkpoint" / "step-3");
  EXPECT_EQ(weights_in(open_hf_weights(exported)), weights_in(checkpoint_tensors(checkpoint)));
  EXPECT_TRUE(fs::exists(exported / "config.json"));
  EXPECT_TRUE(fs::exists(exported / "tokenizer.json"));
  train(layout, args, 3);  // a completed run leaves the folder unchanged
  EXPECT_NE(read_file(run / "log.txt").find("exists already and is kept"), std::string::npos);
}

}  // namespace
}  // namespace stepforge::testing
