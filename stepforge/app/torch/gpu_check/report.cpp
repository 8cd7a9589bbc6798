// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/gpu_check/report.h"

#include <algorithm>
#include <chrono>
#include <ranges>

#include "stepforge/base/error.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/version.h"

namespace stepforge::gpu_check {

namespace {

const char* word(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed:
      return "passed";
    case Outcome::failed:
      return "FAILED";
    case Outcome::skipped:
      return "skipped";
  }
  return "";
}

}  // namespace

std::vector<StageReport> run_stages(Check& check, std::span<const Stage> stages, const StageEnded& ended) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point first = Clock::now();
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::vector<StageReport> reports;
  for (const Stage& stage : stages) {
    StageReport& report = reports.emplace_back(stage);
    const Clock::time_point begin = Clock::now();
    try {
      if (seconds_since(first) > kMostSeconds)
        report.found.skip("{:.0f} s are over; --only {} runs it alone", kMostSeconds, stage.name);
      else
        stage.run(check, report.found);
    } catch (const std::exception& failure) {
      report.found.fail("{}", reason_of(failure));
    }
    report.seconds = seconds_since(begin);
    if (ended) ended(reports);
  }
  return reports;
}

std::string verdict(std::span<const StageReport> reports) {
  const auto any = [&](Outcome outcome) {
    return std::ranges::any_of(reports,
                               [&](const auto& report) { return report.found.outcome() == outcome; });
  };
  if (any(Outcome::failed)) return "failed";
  return any(Outcome::passed) ? "passed" : "incomplete";
}

std::vector<Stage> choose_stages(const std::vector<std::string>& names) {
  std::vector<Stage> chosen;
  std::vector<std::string> known;
  for (const Stage& stage : all_stages()) {
    known.push_back(stage.name);
    if (names.empty() || std::ranges::find(names, stage.name) != names.end()) chosen.push_back(stage);
  }
  for (const std::string& name : names)
    if (std::ranges::find(known, name) == known.end())
      throw UsageError(format("--only {}: there is no such stage; there are {}", name, join(known, ", ")));
  return chosen;
}

std::string list_text(std::span<const Stage> stages) {
  std::string text;
  double all = 0;
  for (const Stage& stage : stages) {
    text += format("  {:<10} {:>4.0f} s  {}\n", stage.name, stage.seconds, stage.text);
    all += stage.seconds;
  }
  return text + format("  {:<10} {:>4.0f} s  expected on one H100; nobody has measured it yet\n", "all", all);
}

std::string stage_text(const StageReport& report) {
  const Findings& found = report.found;
  std::string text = format("{:<7}  {:<10} {:>6.1f} s  {}\n", word(found.outcome()), report.stage.name,
                            report.seconds, found.skipped());
  for (const std::string& note : found.notes()) text += format("           {}\n", note);
  for (const std::string& failure : found.failures()) text += format("        -> {}\n", failure);
  return text;
}

Json report_json(const std::string& verdict, const std::string& device,
                 std::span<const StageReport> reports) {
  Json stages = Json::array();
  for (const StageReport& report : reports) {
    Json stage = {
        {"name", report.stage.name},
        {"checks", report.stage.text},
        {"outcome", report.found.outcome() == Outcome::failed ? "failed" : word(report.found.outcome())},
        {"seconds", report.seconds},
        {"figures", report.found.figures()},
        {"notes", report.found.notes()},
        {"failures", report.found.failures()}};
    if (!report.found.skipped().empty()) stage["skipped_because"] = report.found.skipped();
    stages.push_back(std::move(stage));
  }
  return {{"verdict", verdict},
          {"device", device},
          {"version", std::string(version())},
          {"commit", std::string(commit())},
          {"stages", stages}};
}

void write_report(const std::filesystem::path& folder, const Json& json, const std::string& text) {
  write_file_atomic(folder / "report.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  write_file_atomic(folder / "report.txt", text);
}

}  // namespace stepforge::gpu_check
