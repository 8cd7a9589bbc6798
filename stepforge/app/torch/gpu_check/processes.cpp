// SPDX-License-Identifier: Apache-2.0
// The stages that start other processes: "doctor", "processes", "peer" and "sanitizer".
#include <sstream>
#include <string>

#include "stepforge/app/torch/gpu_check/child.h"
#include "stepforge/app/torch/gpu_check/models.h"
#include "stepforge/app/torch/gpu_check/trained.h"
#include "stepforge/base/error.h"
#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/metrics/jsonl.h"

namespace stepforge::gpu_check {

namespace {

/// The losses that a run logged.
std::vector<double> logged_losses(const std::filesystem::path& metrics) {
  std::vector<double> losses;
  for (const MetricsRecord& record : read_jsonl(metrics))
    if (const auto loss = record.find(metric::loss); record.kind == "train" && loss) losses.push_back(*loss);
  return losses;
}

/// `recipe` by so many processes that share the device.
std::vector<double> train_in_processes(const Check& check, const Recipe& recipe, int processes) {
  // Not launch() of launch/launcher.h, which belongs into a process without other threads.
  Strings words = {"launch",
                   "--nproc",
                   std::to_string(processes),
                   "--log-dir",
                   (check.scratch / (recipe.name + "-logs")).string(),
                   "train"};
  const Strings overrides = overrides_of(check, recipe);
  words.insert(words.end(), overrides.begin(), overrides.end());
  const ChildResult launched = run_child(check.program, words, check.scratch / "launch.txt");
  if (launched.exit_code != 0)
    throw Error(format("`launch --nproc {}` ends with code {}: {}", processes, launched.exit_code,
                       last_line(launched.output)));
  return logged_losses(check.scratch / recipe.name / "metrics.jsonl");
}

}  // namespace

void check_doctor(Check& check, Findings& found) {
  const std::string gpu = gpu_name();
  found.figure("device", check.compute.device.str());
  found.figure("gpu", gpu.empty() ? "unknown" : gpu);
  const ChildResult doctor =
      run_child(check.program, {"doctor", "--run-dir", check.scratch.string()}, check.scratch / "doctor.txt");
  std::istringstream lines(doctor.output);
  Json text = Json::array();
  for (std::string line; std::getline(lines, line);) {
    found.note("{}", line);
    text.push_back(line);
  }
  found.figure("doctor", text);
  if (doctor.exit_code != 0) found.fail("doctor ends with code {}", doctor.exit_code);
}

void check_processes(Check& check, Findings& found) {
  constexpr double kTolerance = 1e-5;
  Recipe recipe{.name = "ranks", .on = On::device, .options = small_model()};
  recipe.options.insert(recipe.options.end(), {"training.steps=6", "training.local_batch_size=1",
                                               "training.reduction=ordered", "metrics.log_freq=1"});
  // Both processes have the same device.
  if (!check.compute.device.is_cpu()) {
    recipe.options.push_back(format("training.device={}:{}", check.device, check.compute.device.index()));
  }
  std::vector<double> losses[2];
  for (const int processes : {1, 2}) {
    forget(check, recipe.name);
    losses[processes - 1] = train_in_processes(check, recipe, processes);
  }
  forget(check, recipe.name);
  const double difference =
      compare(check, found, "two processes against one", losses[1], losses[0], kTolerance);
  found.figure("largest_difference", difference);
  found.note("{} steps of two processes against one: largest difference of losses {:.2g}", losses[0].size(),
             difference);
}

void check_peer(Check& check, Findings& found) {
  if (check.peer.empty())
    return found.skip("no script was given: --peer tools/bench/gpu_peer.py of the sources");
  if (!check.compute.device.is_cpu() && !check.compute.device.is_cuda())
    return found.skip("PyTorch has no device {}", check.device);
  const std::filesystem::path python = find_program("python3");
  if (python.empty()) return found.skip("no PyTorch: there is no python3");
  const ChildResult torch = run_child(python, {"-c", "import torch"}, check.scratch / "import.txt");
  if (torch.exit_code != 0) return found.skip("no PyTorch: {}", last_line(torch.output));
  Json rows = Json::array();
  for (const BenchModel& model : bench_models(check.small)) {
    if (!model.with_peer) continue;
    const std::filesystem::path sizes = check.scratch / "peer.json";
    write_file_atomic(sizes, sizes_of(model).dump());
    const std::filesystem::path log = check.output / "peer.txt";
    const ChildResult peer =
        run_child(python, {"-B", check.peer.string(), sizes.string(), check.device}, log);
    const std::string line = last_line(peer.output);
    if (peer.exit_code != 0) {
      found.fail("{}: {} ends with code {}: {}; all of it is in {}", model.name, check.peer.string(),
                 peer.exit_code, line, log.string());
      continue;
    }
    const Json row = parse_json(line, check.peer.string());
    found.note("{}: {:.0f} tokens/s", model.name, row.at("tokens_per_second").get<double>());
    rows.push_back({{"model", model.name}, {"result", row}});
  }
  found.figure("models", rows);
}

void check_sanitizer(Check& check, Findings& found) {
  if (!check.has_kernels()) return found.skip("this device has no kernels of its own");
  const std::filesystem::path tool = find_program("compute-sanitizer");
  if (tool.empty()) return found.skip("there is no compute-sanitizer in PATH");
  const std::filesystem::path report = check.scratch / "sanitizer";
  const std::filesystem::path log = check.output / "sanitizer.txt";
  const ChildResult run = run_child(tool,
                                    {"--error-exitcode", "9", check.program.string(), "gpu-check", "--device",
                                     check.device, "--only", "kernels", "--out", report.string()},
                                    log);
  if (run.exit_code != 0)
    found.fail("compute-sanitizer ends with code {}: {}; all of it is in {}", run.exit_code,
               last_line(run.output), log.string());
  else
    found.note("{}", last_line(run.output));
}

}  // namespace stepforge::gpu_check
