// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/gpu_check/stage.h"

#include <array>
#include <fstream>

#include <c10/util/Exception.h>

namespace stepforge::gpu_check {

std::string reason_of(const std::exception& failure) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&failure);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : failure.what();
}

std::string gpu_name() {
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    std::ifstream lines(gpu.path() / "information");
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("Model:")) return line.substr(line.find_first_not_of(" \t", sizeof "Model:" - 1));
  }
  return "";
}

std::span<const Stage> all_stages() {
  static const std::array kStages = {
      Stage{"doctor", "the machine, the driver, the plug-in and its libraries", 10, check_doctor},
      Stage{"kernels",
            "each kernel of the device against its reference on the CPU, in fp64 where it allows that", 60,
            check_kernels},
      Stage{"families", "1 and 20 steps of each family, fp32 and bf16, against the CPU", 90, check_families},
      Stage{"resume", "resumed runs, bit for bit; checkpoints between CPU and device", 20, check_resume},
      Stage{"text", "greedy text of one checkpoint, against the CPU", 10, check_text},
      Stage{"waits", "steps 5 to 50: no wait of the host but for the numbers of the step, no new memory", 15,
            check_waits},
      Stage{"memory", "peak memory of a step, within 1.5 % of the plan", 15, check_memory},
      Stage{"processes", "two processes on the device, through pinned memory, against one", 20,
            check_processes},
      Stage{"rates", "rates of products, copies and launches; writes machine.json and machine.toml", 40,
            check_rates},
      Stage{"models", "speed and memory of models with 0.5 to 8 billion parameters, 4,096 tokens a row", 150,
            check_models},
      Stage{"peer", "the model with 1 billion parameters in PyTorch with torch.compile", 90, check_peer},
      Stage{"sanitizer", "the stage kernels once more, under compute-sanitizer", 60, check_sanitizer},
  };
  return kStages;
}

}  // namespace stepforge::gpu_check
