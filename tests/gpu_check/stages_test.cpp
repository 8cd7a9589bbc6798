// SPDX-License-Identifier: Apache-2.0
// The stages of `stepforge gpu-check` pass on a simulated device and on the CPU. Faults are planted for all but "memory" and "rates"; those of
// "peer" and "sanitizer" in tests/app/gpu_check_test.cpp.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "stepforge/app/torch/gpu_check/gpu_check.h"
#include "stepforge/app/torch/gpu_check/kernel_cases.h"
#include "stepforge/app/torch/gpu_check/models.h"
#include "stepforge/app/torch/gpu_check/report.h"
#include "stepforge/base/files.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/plan/machine_file.h"
#include "stepforge/plan/step_plan.h"
#include "tests/support/long_tests.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::gpu_check {
namespace {

using stepforge::testing::message_of;
using stepforge::testing::TempFolder;

class GpuCheck : public ::testing::Test {
 protected:
  Check check_of(CheckedDevice device) {
    GpuCheckOptions options;
    options.device = device;
    options.output = folder_.path();
    return make_check(options, stepforge::testing::binary_dir() / "stepforge", folder_.path());
  }
  static std::vector<StageReport> run(Check& check, const std::vector<std::string>& names) {
    const std::vector<Stage> stages = choose_stages(names);
    return run_stages(check, stages);
  }
  /// The failures of one stage, one a line.
  static std::string failures_of(Check& check, const std::string& name) {
    const std::vector<StageReport> reports = run(check, {name});
    EXPECT_EQ(reports.front().found.outcome(), Outcome::failed) << stage_text(reports.front());
    EXPECT_EQ(verdict(reports), "failed");
    EXPECT_CONTAINS(stage_text(reports.front()), "FAILED");
    return join(reports.front().found.failures(), "\n");
  }

  TempFolder folder_;
};

TEST_F(GpuCheck, AllStagesPassOnASimulatedDevice) {
  Check check = check_of(CheckedDevice::sim);
  for (const StageReport& report : run(check, {})) {
    const std::string& name = report.stage.name;
    const bool left_out = name == "kernels" || name == "memory" || name == "peer" || name == "sanitizer";
    EXPECT_EQ(report.found.outcome(), left_out ? Outcome::skipped : Outcome::passed) << stage_text(report);
    EXPECT_EQ(report.found.skipped().empty(), !left_out) << name;
    EXPECT_FALSE(report.found.figures().empty() && !left_out && name != "resume") << name;
  }
  const Json machine = read_json_file(folder_ / "machine.json");
  EXPECT_GT(machine["flops_per_second"].get<double>(), 0);
  EXPECT_EQ(check.machine->flops_per_second, machine["flops_per_second"].get<double>());
  const MachineSpec measured = load_machine((folder_ / "machine.toml").string(), "test");
  EXPECT_EQ(measured.device.peak_tflops.bf16, check.machine->flops_per_second * 1e-12);
}

void expect_kernels_agree(Check& check) {
  Findings found;
  check_kernels(check, found);
  EXPECT_EQ(join(found.failures(), "\n"), "");
  EXPECT_GT(found.figures()["rows"].get<int>(), 40);
}

TEST_F(GpuCheck, EveryKernelOfTheCpuAgreesWithItsReference) {
  Check check = check_of(CheckedDevice::cpu);
  expect_kernels_agree(check);
}

TEST_F(GpuCheck, LongTestEveryKernelOfTheCpuAgreesInTheShapesOfAGpu) {
  if (!stepforge::testing::long_tests()) GTEST_SKIP() << "STEPFORGE_LONG_TESTS=1 runs it";
  Check check = check_of(CheckedDevice::cpu);
  check.small = false;
  expect_kernels_agree(check);
}

TEST_F(GpuCheck, TheMemoryOfAStepOnTheCpuIsThatOfItsPlan) {
  Check check = check_of(CheckedDevice::cpu);
  const StageReport memory = run(check, {"memory"}).front();
  EXPECT_EQ(memory.found.outcome(), Outcome::passed) << stage_text(memory);
  EXPECT_GT(memory.found.figures()["measured_bytes"].get<double>(), 0);
}

// A device has one kernel, right or wrong.

void cap_rightly(const at::Tensor& logits, double cap) {
  logits.div_(cap).tanh_().mul_(cap);
}
void cap_wrongly(const at::Tensor& logits, double cap) {
  logits.div_(cap).tanh_().mul_(1.01 * cap);
}

TEST_F(GpuCheck, AWrongKernelOfTheDeviceIsNamed) {
  Check check = check_of(CheckedDevice::sim);
  check.compute.add_kernels = [](KernelTable& table) { table.cap_logits.device = cap_rightly; };
  const StageReport right = run(check, {"kernels"}).front();
  EXPECT_EQ(right.found.outcome(), Outcome::passed) << stage_text(right);
  EXPECT_EQ(right.found.figures()["rows"], 1);
  check.compute.add_kernels = [](KernelTable& table) { table.cap_logits.device = cap_wrongly; };
  EXPECT_CONTAINS(failures_of(check, "kernels"), "cross_entropy, cap_logits on 12 x 33 fp32",
                  "differs from the reference by");
}

void bias_unwritten(const at::Tensor&, const at::Tensor&) {}

TEST_F(GpuCheck, AKernelThatWritesNothingIsFound) {
  Check check = check_of(CheckedDevice::sim);
  check.compute.add_kernels = [](KernelTable& table) { table.bias_backward.device = bias_unwritten; };
  EXPECT_CONTAINS(failures_of(check, "kernels"), "bias_forward, bias_backward on 12 x 33", "by inf");
}

/// A row of the table, by name, that can be taken away.
struct NamedRow {
  std::string name;
  void (*remove)(KernelTable& table);
};
const std::vector<NamedRow>& named_rows() {
  static const std::vector<NamedRow> rows = {
#define STEPFORGE_ROW(name, types)           \
  NamedRow{#name, [](KernelTable& table) {   \
             table.name.reference = nullptr; \
             table.name.cpu = nullptr;       \
           }},
      STEPFORGE_KERNELS(STEPFORGE_ROW)
#undef STEPFORGE_ROW
  };
  return rows;
}

TEST_F(GpuCheck, EachRowIsCalledByTheCasesThatNameIt) {
  for (const NamedRow& row : named_rows()) {
    KernelTable without;
    row.remove(without);
    int callers = 0;
    for (const KernelCase& of : kernel_cases()) {
      if (std::ranges::find(of.rows, row.name) == of.rows.end()) continue;
      const ChargeMemory rank(make_rank_memory(without));
      EXPECT_ANY_THROW(of.run({})) << row.name;
      ++callers;
    }
    EXPECT_GT(callers, 0) << "no case names " << row.name;
  }
}

TEST_F(GpuCheck, ADeviceThatTrainsDifferentlyIsFound) {
  Check check = check_of(CheckedDevice::sim);
  check.of_device = {"optimizer.lr=0.1"};
  EXPECT_CONTAINS(failures_of(check, "families"), "llama in fp32, 2 steps: losses differ", "qwen3 in bf16",
                  "the weights at the end are not those of the CPU");
  EXPECT_CONTAINS(failures_of(check, "resume"),
                  "a run that begins on the CPU and goes on on the device: losses differ");
}

TEST_F(GpuCheck, ADeviceThatGeneratesDifferentlyIsFound) {
  Check check = check_of(CheckedDevice::sim);
  check.of_device = {"checkpoint.allow_changed=model", "model.norm_eps=1.0", "model.rope_theta=2"};
  EXPECT_CONTAINS(failures_of(check, "text"), "greedy text differs from the CPU's after");
}

TEST_F(GpuCheck, StepsThatWaitForTheDeviceAreFound) {
  Check check = check_of(CheckedDevice::sim);
  check.of_all.insert(check.of_all.end(),
                      {"model.family=mixtral", "model.n_experts=4", "model.experts_per_token=2"});
  EXPECT_CONTAINS(failures_of(check, "waits"), "steps 5 to 12:", "first in step 5");
}

TEST_F(GpuCheck, AModelThatCannotTrainIsReportedByName) {
  Check check = check_of(CheckedDevice::sim);
  check.of_device = {"model.n_heads=3"};
  EXPECT_CONTAINS(failures_of(check, "models"), "tiny: ", "n_heads");
}

TEST_F(GpuCheck, APeerIsSkippedOnADeviceThatPyTorchDoesNotHave) {
  Check check = check_of(CheckedDevice::sim);
  check.peer = "peer.py";
  EXPECT_EQ(run(check, {"peer"}).front().found.skipped(), "PyTorch has no device sim");
}

TEST_F(GpuCheck, ProcessesThatFailAreReported) {
  Check check = check_of(CheckedDevice::sim);
  check.program = "/bin/false";
  EXPECT_CONTAINS(failures_of(check, "processes"), "`launch --nproc 1` ends with code 1");
  EXPECT_CONTAINS(failures_of(check, "doctor"), "doctor ends with code 1");
}

TEST_F(GpuCheck, AStageThatThrowsFailsAndTheNextOneRuns) {
  Check check = check_of(CheckedDevice::cpu);
  const std::vector<Stage> stages = {
      {"first", "", 0, [](Check&, Findings&) { throw Error("the fault"); }},
      {"second", "", 0, [](Check&, Findings& found) { found.note("ran"); }},
      {"third", "", 0, [](Check&, Findings& found) { found.skip("no reason"); }},
  };
  Strings ended;
  const std::vector<StageReport> reports =
      run_stages(check, stages, [&](std::span<const StageReport> so_far) {
        EXPECT_EQ(so_far.size(), ended.size() + 1);
        ended.push_back(so_far.back().stage.name);
      });
  EXPECT_EQ(ended, (Strings{"first", "second", "third"}));
  EXPECT_EQ(reports[0].found.failures(), std::vector<std::string>{"the fault"});
  EXPECT_EQ(reports[1].found.outcome(), Outcome::passed);
  EXPECT_EQ(verdict(reports), "failed");
  EXPECT_EQ(verdict(std::span(reports).subspan(1)), "passed");
  EXPECT_EQ(verdict(std::span(reports).subspan(2)), "incomplete");
  const Json json = report_json("failed", "cpu", reports);
  EXPECT_EQ(json["stages"][0]["outcome"], "failed");
  EXPECT_EQ(json["stages"][0]["failures"][0], "the fault");
  EXPECT_EQ(json["stages"][2]["skipped_because"], "no reason");
}

TEST_F(GpuCheck, AnUnknownStageIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { choose_stages({"kernels", "kernel"}); }),
                  "--only kernel:", "doctor, kernels, families");
}

TEST_F(GpuCheck, AllStagesAreExpectedToTakeLessThanTenMinutes) {
  double seconds = 0;
  for (const Stage& stage : all_stages()) seconds += stage.seconds;
  EXPECT_LE(seconds, kMostSeconds);
}

/// The account is that of the CPU's kernels: states, gradients and gathered weights are those of any device.
TEST_F(GpuCheck, TheModelsFitIntoAGpuOf80Gb) {
  constexpr double kMost = 80e9;
  for (const BenchModel& model : bench_models(/*small=*/false)) {
    Config config = load_config(std::nullopt, model.options, ConfigUse::train, settings_from_model).config;
    EXPECT_EQ(config.training.seq_len, 4096) << model.name;
    const MemoryAccount memory = account(write_train_step(plan_job(config)));
    EXPECT_LT(static_cast<double>(memory.peak_bytes), kMost) << model.name;
    EXPECT_EQ(sizes_of(model)["vocab_size"], config.model.vocab_size) << model.name;
  }
}

}  // namespace
}  // namespace stepforge::gpu_check
