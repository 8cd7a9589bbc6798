// SPDX-License-Identifier: Apache-2.0
// `stepforge data`: build indexed datasets, show what a job would be fed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/data/data_plan.h"

namespace stepforge {

/// The words are those of Megatron's preprocess_data.py.
struct DataBuildOptions {
  std::vector<std::filesystem::path> input;  ///< text files, JSON Lines, folders
  std::string format = "auto";               ///< "auto", "text" or "jsonl"
  std::string documents = "file";            ///< "file", "line" or "paragraph"
  std::string json_key = "text";
  bool append_eod = true;
  std::filesystem::path output_prefix;  ///< writes <output_prefix>_<json_key>_document.{bin,idx,json}
  int workers = 0;                      ///< 0 = all cores
  double validation_fraction = 0.0;     ///< above 0: also <output_prefix>_validation_<json_key>_document
  uint64_t seed = 0;                    ///< of the choice of held-out documents
};

/// Prints a progress bar on standard error if that is a terminal, and the totals on standard output. Returns
/// the exit code.
int data_build(const DataBuildOptions& options, const Tokenizer& tokenizer);

struct DataShowOptions {
  DataPlan plan;
  bool validation = false;  ///< the validation set instead of the training set
  int64_t first_row = 0;
  int64_t rows = 1;
  int64_t max_tokens = 64;  ///< of each row in the table; 0 = all
  bool colour = false;
};

/// Prints rows of the stream that training would see. Returns the exit code.
int data_show(const DataShowOptions& options, const Tokenizer& tokenizer);

/// Draws tokenization as one line on standard error, if that is a terminal; else does nothing.
TokenizeProgressFunction terminal_progress();

}  // namespace stepforge
