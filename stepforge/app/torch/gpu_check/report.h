// SPDX-License-Identifier: Apache-2.0
// Runs stages and reports what they found.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stepforge/app/torch/gpu_check/stage.h"

namespace stepforge::gpu_check {

struct StageReport {
  Stage stage;
  Findings found;
  double seconds = 0;
};

/// What all stages together may take; those that would begin later are left out.
inline constexpr double kMostSeconds = 600;

/// Called after each stage, with the reports so far; the last is that of this stage.
using StageEnded = std::function<void(std::span<const StageReport> reports)>;

/// Runs stages in order. What one throws is its failure, and the next one runs.
std::vector<StageReport> run_stages(Check& check, std::span<const Stage> stages,
                                    const StageEnded& ended = {});

/// At the end: "passed", "failed", or "incomplete" if nothing failed and nothing passed.
std::string verdict(std::span<const StageReport> reports);

/// Those of `names`, in their own order; all if it is empty. Throws UsageError for a name that no stage has.
std::vector<Stage> choose_stages(const std::vector<std::string>& names);

/// The list of stages: name, what it checks, seconds.
std::string list_text(std::span<const Stage> stages);

/// One stage: a line with its verdict, then notes and failures, each indented.
std::string stage_text(const StageReport& report);

/// All of it: verdict, device, version, and each stage with figures, notes and failures.
Json report_json(const std::string& verdict, const std::string& device, std::span<const StageReport> reports);

/// Writes report.json and report.txt.
void write_report(const std::filesystem::path& folder, const Json& json, const std::string& text);

}  // namespace stepforge::gpu_check
