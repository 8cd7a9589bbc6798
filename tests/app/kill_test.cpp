// kill -9 at any moment costs time, never a bit.
#include <random>

#include "base/json.h"
#include "metrics/run_folder.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kSteps = 60;

Words saving_every_step(const TempFolder& folder, const std::string& run) {
  return Words{"train"} + small_run(folder / run) +
         Words{format("training.steps={}", kSteps),
               "checkpoint.interval=1",
               "checkpoint.keep_latest_k=3",
               "model.dropout=0.1",
               "data.validation_fraction=0.1",
               "validation.freq=5",
               "validation.steps=1"};
}

bool has_step(const fs::path& run, int64_t step) {
  return fs::exists(run / "checkpoint" / format("step-{}", step) / "manifest.json");
}

int64_t newest_step(const fs::path& run) {
  for (int64_t step = kSteps; step > 0; --step) {
    if (has_step(run, step)) return step;
  }
  return 0;
}

void expect_same_file(const fs::path& left, const fs::path& right) {
  EXPECT_TRUE(read_file(left) == read_file(right)) << left << " differs from " << right;
}

/// Starts the run again and again; each start is killed a random moment after it has saved a step of its own,
/// so that all kills together spread over the whole run. Returns the number of kills.
int kill_until_done(const Words& words, const fs::path& run, int kills) {
  std::mt19937 random(20240517);
  int killed = 0;
  while (killed < kills && newest_step(run) < kSteps) {
    Child child(words);
    // Every third start is killed at any moment, also while it is only setting up.
    const int64_t goal = killed % 3 == 2 ? newest_step(run) : newest_step(run) + 1;
    const bool running = child.wait_until([&] { return newest_step(run) >= goal; });
    if (!running || newest_step(run) >= kSteps) return killed;
    const int range = killed % 3 == 2 ? 400'000 : static_cast<int>(4'000'000 / (kills + 10));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(range)));
    child.signal(SIGKILL);
    if (child.wait().exit_code == 128 + SIGKILL) ++killed;
  }
  return killed;
}

TEST(Kill, AtRandomMomentsLeavesTheFinalCheckpointBitEqual) {
  const int kills = long_tests() ? 100 : 10;
  const TempFolder folder;
  ASSERT_EQ(run_program(saving_every_step(folder, "whole")).exit_code, 0);
  const int killed = kill_until_done(saving_every_step(folder, "killed"), folder / "killed", kills);
  if (!long_tests()) EXPECT_EQ(killed, kills);
  EXPECT_GE(killed, std::min(kills, 10));
  const ProgramResult last = run_program(saving_every_step(folder, "killed"));
  ASSERT_EQ(last.exit_code, 0) << last.err;

  const fs::path step = fs::path("checkpoint") / format("step-{}", kSteps);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    expect_same_file(folder / "whole" / step / file, folder / "killed" / step / file);
  }
  const auto history = read_run_history(folder / "killed");
  EXPECT_GE(std::ssize(history), 2);
  EXPECT_EQ(history.back().exit_reason, "completed");
  EXPECT_EQ(history.back().tokens, read_run_history(folder / "whole").back().tokens);
  for (const auto& entry : fs::directory_iterator(folder / "killed" / "checkpoint")) {
    EXPECT_TRUE(fs::exists(entry.path() / "manifest.json")) << entry.path() << " is half written";
  }
}

/// "kind step loss" of every line.
Words curve(const fs::path& run) {
  Words lines;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    const char* loss =
        json["kind"] == "train" ? "loss_metrics/global_avg_loss" : "validation_metrics/global_avg_loss";
    lines.push_back(format("{} {} {}", json["kind"].get<std::string>(), json["step"].get<int64_t>(),
                           json[loss].get<double>()));
  }
  return lines;
}

TEST(Kill, LeavesEachStepOnceInTheMetrics) {
  const TempFolder folder;
  ASSERT_EQ(run_program(saving_every_step(folder, "whole")).exit_code, 0);
  kill_until_done(saving_every_step(folder, "killed"), folder / "killed", 3);
  ASSERT_EQ(run_program(saving_every_step(folder, "killed")).exit_code, 0);
  const Words expected = curve(folder / "whole");
  EXPECT_EQ(std::ssize(expected), kSteps + kSteps / 5);
  EXPECT_EQ(curve(folder / "killed"), expected);
}

}  // namespace
}  // namespace stepforge::testing
