// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/gpu_check/gpu_check.h"

#include <iostream>

#include "stepforge/app/torch/commands.h"
#include "stepforge/app/torch/gpu_check/report.h"
#include "stepforge/base/error.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/temporary_folder.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace gpu_check {

namespace {

/// Says that nothing was checked, and what would have been.
int report_no_gpu(const GpuCheckOptions& options, const std::vector<Stage>& stages,
                  const std::string& reason) {
  const std::string why = has_gpu_driver() ? reason : "no driver of NVIDIA's GPUs is here";
  const std::string text =
      format("no GPU: {}\nNothing was checked. On a GPU these stages would run:\n{}", why, list_text(stages));
  std::cout << printable(text);
  Json json = report_json("no GPU", "none", {});
  json["reason"] = why;
  for (const Stage& stage : stages) json["would_run"].push_back(stage.name);
  write_report(options.output, json, text);
  return kNoGpuExitCode;
}

int run_check(Check& check, const std::vector<Stage>& stages) {
  std::string text = format("Device: {}{}\n", check.compute.device.str(),
                            check.small ? ", which is no GPU: small sizes, as in tests" : "");
  std::cout << text << std::flush;
  const std::vector<StageReport> reports = run_stages(check, stages, [&](const StageReport& report) {
    const std::string lines = stage_text(report);
    std::cout << printable(lines) << std::flush;
    text += lines;
  });
  const std::string result = verdict(reports);
  const std::string end = format("{}: the report is in {}\n", result, check.output.string());
  std::cout << printable(end);
  write_report(check.output, report_json(result, check.compute.device.str(), reports), text + end);
  return result == "passed" ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace

Check make_check(const GpuCheckOptions& options, const std::filesystem::path& program,
                 const std::filesystem::path& scratch) {
  Check check;
  check.device = choice_name(options.device);
  check.compute = compute_device(check.device, 0);
  check.small = options.device != CheckedDevice::cuda;
  check.exact = check.small;
  check.program = program;
  check.scratch = scratch;
  check.output = options.output;
  check.peer = options.peer;
  // A simulated device has no kernels of its own: it is compared with the references, in one thread.
  if (options.device == CheckedDevice::sim) check.of_all = {"kernels.reference=true"};
  if (check.small) check.of_all.emplace_back("training.threads=1");
  return check;
}

}  // namespace gpu_check

int run(const GpuCheckOptions& options, const CommandContext&) {
  const std::vector<gpu_check::Stage> stages = gpu_check::choose_stages(options.only);
  if (options.list) {
    std::cout << gpu_check::list_text(stages);
    return 0;
  }
  std::filesystem::create_directories(options.output);
  const TemporaryFolder scratch("gpu-check");
  gpu_check::Check check;
  try {
    check = gpu_check::make_check(options, std::filesystem::read_symlink("/proc/self/exe"), scratch.path());
  } catch (const UsageError& failure) {
    if (options.device != CheckedDevice::cuda) throw;
    return gpu_check::report_no_gpu(options, stages, failure.what());
  }
  return gpu_check::run_check(check, stages);
}

}  // namespace stepforge
