// SPDX-License-Identifier: Apache-2.0
// The stages of `stepforge gpu-check`: what each gets, and what it finds.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/step/machine.h"

namespace stepforge::gpu_check {

/// What all stages share.
struct Check {
  std::string device;                       ///< as training.device: "cuda", "sim", "cpu"
  ComputeDevice compute;                    ///< the same, opened
  bool small = false;                       ///< sizes for tests, on what stands in for a GPU
  std::filesystem::path program;            ///< stepforge, for stages that start processes
  std::filesystem::path scratch;            ///< folder for runs, deleted at the end
  std::filesystem::path output;             ///< folder of the report
  std::filesystem::path peer;               ///< script of the same models in PyTorch; empty: none
  std::vector<std::string> of_all = {};     ///< overrides of all runs
  std::vector<std::string> of_device = {};  ///< and of those on the device alone
  /// Measured by the stage "rates".
  std::optional<MachineModel> machine = {};

  /// What stands in for a GPU computes with the CPU's kernels, so results must be equal.
  bool exact() const { return small; }
  /// The CPU has them in the table of kernels; other devices add theirs.
  bool has_kernels() const { return compute.device.is_cpu() || compute.add_kernels != nullptr; }
};

enum class Outcome { passed, failed, skipped };

/// What a stage has found. Without a failure it has passed, unless it says that it was skipped.
class Findings {
 public:
  /// A number, text or list for the report.
  void figure(const std::string& name, Json value) { figures_[name] = std::move(value); }
  /// A line for the report in text.
  template <typename... Args>
  void note(std::string_view pattern, const Args&... arguments) {
    notes_.push_back(format(pattern, arguments...));
  }
  /// A part was left out, for this reason; the others count.
  template <typename... Args>
  void left_out(std::string_view pattern, const Args&... arguments) {
    notes_.push_back("left out: " + format(pattern, arguments...));
  }
  template <typename... Args>
  void fail(std::string_view pattern, const Args&... arguments) {
    failures_.push_back(format(pattern, arguments...));
  }
  /// The whole stage was left out.
  template <typename... Args>
  void skip(std::string_view pattern, const Args&... arguments) {
    skipped_ = format(pattern, arguments...);
  }

  Outcome outcome() const {
    if (!failures_.empty()) return Outcome::failed;
    return skipped_.empty() ? Outcome::passed : Outcome::skipped;
  }
  const Json& figures() const { return figures_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& failures() const { return failures_; }
  const std::string& skipped() const { return skipped_; }

 private:
  Json figures_ = Json::object();
  std::vector<std::string> notes_;
  std::vector<std::string> failures_;
  std::string skipped_;
};

struct Stage {
  std::string name;
  std::string text;    ///< what it checks
  double seconds = 0;  ///< expected on one H100
  void (*run)(Check& check, Findings& found) = nullptr;
};

/// What an error says, without libtorch's stack.
std::string reason_of(const std::exception& failure);

/// The name of the first GPU, from its driver; "" if that is not known.
std::string gpu_name();

/// In the order in which they run.
std::span<const Stage> all_stages();

// The functions of the stages.
void check_doctor(Check& check, Findings& found);
void check_kernels(Check& check, Findings& found);
void check_families(Check& check, Findings& found);
void check_resume(Check& check, Findings& found);
void check_text(Check& check, Findings& found);
void check_waits(Check& check, Findings& found);
void check_memory(Check& check, Findings& found);
void check_processes(Check& check, Findings& found);
void check_rates(Check& check, Findings& found);
void check_models(Check& check, Findings& found);
void check_peer(Check& check, Findings& found);
void check_sanitizer(Check& check, Findings& found);

}  // namespace stepforge::gpu_check
