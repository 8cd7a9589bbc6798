// SPDX-License-Identifier: Apache-2.0
// Commands about a run: from config file and overrides to what the rooms below do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/app/data_command.h"
#include "stepforge/app/torch_library.h"

namespace stepforge {

/// A config file and the overrides behind it, as typed.
struct JobWords {
  std::optional<std::filesystem::path> file;
  std::vector<std::string> overrides;
};

struct DataShowWords {
  int64_t first_row = 0;
  int64_t rows = 1;
  int64_t max_tokens = 64;
  bool validation = false;
};

struct TrainWords {
  int dry_run_ranks = 0;        ///< 0: a real run
  std::filesystem::path trace;  ///< file for the trace of a step, "" for none
};

struct PlanWords {
  bool all = false;
  int world_size = 1;
  int rank = 0;
  std::filesystem::path trace;
  std::string memory;   ///< of each rank: "80GiB"; "" for what is free on this machine
  std::string machine;  ///< of each rank: "GFLOP/s[,memory GB/s[,network GB/s]]"; "" for the model machine
};

// Each returns the exit code and throws Error.
int train_command(const JobWords& words, const TrainWords& what);
int eval_command(const EvalOptions& options);
int generate_command(const GenerateOptions& options);
int export_command(const ExportOptions& options);
int import_command(const ImportOptions& options);
int data_build_command(const DataBuildOptions& options, const std::string& tokenizer);
int data_show_command(const JobWords& words, const DataShowWords& rows);
int plan_run_command(const JobWords& words, const PlanWords& what);
int config_show_command(const JobWords& words);
int config_schema_command(const std::string& section, const std::string& format_name);

}  // namespace stepforge
