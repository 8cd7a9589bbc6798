// SPDX-License-Identifier: Apache-2.0
// Output that cannot be written is an error of the command.
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// The result of the program with standard output on a device that is always full.
ProgramResult run_on_full_device(const Strings& args) {
  return Child({"-c", shell_command(args) + " >/dev/full"}, "", {}, "/bin/sh").wait();
}

class FullOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  }
  static void expect_failure(const Strings& args) {
    const ProgramResult result = run_on_full_device(args);
    EXPECT_EQ(result.exit_code, 1) << join(args, " ");
    EXPECT_CONTAINS(result.err, "output") << join(args, " ");
  }
};

TEST_F(FullOutput, FailsCommandsWithoutAModel) {
  expect_failure({"config", "schema"});
  expect_failure({"config", "presets"});
  expect_failure({"config", "show", "preset=debug"});
  expect_failure({"plan", "preset=debug"});
}

TEST_F(FullOutput, FailsGenerateAndEval) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  ASSERT_EQ(run_program(Strings{"train"} + small_run(run)).exit_code, 0);
  std::ofstream(folder / "text.txt") << some_text(30);
  expect_failure({"generate", run.string(), "--prompt", "a", "--max-tokens", "4"});
  expect_failure({"eval", run.string(), "--data", (folder / "text.txt").string()});
}

/// Writes NaN over the last weight of every tensor file.
void plant_nan(const fs::path& hf_folder) {
  const fs::path path = hf_folder / "model.safetensors";
  std::string bytes = read_file(path);
  bytes.replace(bytes.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Eval, OfALossThatIsNotFiniteFails) {
  const TempFolder folder;
  ASSERT_EQ(run_program(Strings{"train"} + small_run(folder / "run")).exit_code, 0);
  const std::string exported = (folder / "hf").string();
  ASSERT_EQ(run_program({"export", (folder / "run").string(), exported, "--dtype", "fp32"}).exit_code, 0);
  plant_nan(exported);
  std::ofstream(folder / "text.txt") << some_text(30);
  const ProgramResult result = run_program({"eval", exported, "--data", (folder / "text.txt").string()});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_CONTAINS(result.err, "is not finite", exported);
}

/// "loss ... over 1,234 tokens, 567 tok/s" up to the speed.
std::string without_speed(const std::string& text) {
  return text.substr(0, text.rfind(','));
}

TEST(Eval, DoesNotDependOnHowTheRunWasTrained) {
  const TempFolder folder;
  std::ofstream(folder / "text.txt") << some_text(30);
  const auto evaluated = [&](const std::string& name, const Strings& more) {
    EXPECT_EQ(run_program(Strings{"train"} + small_run(folder / name) + more).exit_code, 0);
    return run_program({"eval", (folder / name).string(), "--data", (folder / "text.txt").string()});
  };
  const ProgramResult plain = evaluated("plain", {});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* setting :
       {"precision.reduce=bf16", "parallelism.fsdp_cpu_offload=true", "parallelism.fsdp_partition=by_dim"}) {
    const ProgramResult other = evaluated(setting, {setting});
    EXPECT_EQ(other.exit_code, 0) << setting << ": " << other.err;
    EXPECT_EQ(without_speed(other.out), without_speed(plain.out)) << setting;
  }
}

}  // namespace
}  // namespace stepforge::testing
