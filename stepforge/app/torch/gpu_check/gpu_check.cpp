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

/// Nothing was checked, which is neither a success (0) nor a failure (1).
constexpr int kNoGpuExitCode = 3;

void remove_earlier_report(const std::filesystem::path& folder) {
  for (const char* name :
       {"report.json", "report.txt", "machine.json", "machine.toml", "peer.txt", "sanitizer.txt"})
    std::filesystem::remove(folder / name);
}

/// Says that nothing was checked, and what would have been.
int report_no_gpu(const GpuCheckOptions& options, const std::vector<Stage>& stages) {
  const std::string why = "no driver of NVIDIA's GPUs is here";
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
  const auto print = [&text](const std::string& more) {
    std::cout << printable(more) << std::flush;
    text += more;
  };
  const auto write = [&](const std::string& result, std::span<const StageReport> reports) {
    write_report(check.output, report_json(result, check.compute.device.str(), reports), text);
  };
  std::cout << text << std::flush;
  // A stage may hang or end the process: what there is by then is written.
  write("running", {});
  const std::vector<StageReport> all = run_stages(check, stages, [&](std::span<const StageReport> reports) {
    print(stage_text(reports.back()));
    write("running", reports);
  });
  const std::string result = verdict(all);
  print(format("{}: the report is in {}\n", result, check.output.string()));
  write(result, all);
  return result == "passed" ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace

Check make_check(const GpuCheckOptions& options, const std::filesystem::path& program,
                 const std::filesystem::path& scratch) {
  Check check;
  check.device = choice_name(options.device);
  check.compute = compute_device(check.device, 0);
  check.small = options.device != CheckedDevice::cuda;
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
  gpu_check::remove_earlier_report(options.output);
  const TemporaryFolder scratch("gpu-check");
  gpu_check::Check check;
  try {
    check = gpu_check::make_check(options, std::filesystem::read_symlink("/proc/self/exe"), scratch.path());
  } catch (const UsageError&) {
    // With a driver it is the program that lacks something, such as its plug-in: an error like any other.
    if (options.device != CheckedDevice::cuda || has_gpu_driver()) throw;
    return gpu_check::report_no_gpu(options, stages);
  }
  return gpu_check::run_check(check, stages);
}

}  // namespace stepforge
