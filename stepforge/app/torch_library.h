// SPDX-License-Identifier: Apache-2.0
// The border between the program, which links no torch, and libstepforge_torch.so, which it loads when a
// command needs tensors. Both are built together; the library exports one function.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/base/interrupt.h"
#include "stepforge/base/log.h"
#include "stepforge/config/load.h"

namespace stepforge {

struct EvalOptions {
  std::filesystem::path model;  ///< checkpoint step, run folder or Hugging Face folder
  std::filesystem::path
      tokens;  ///< safetensors with int32 "tokens" [rows, length]; instead of the config's data
  std::filesystem::path output;  ///< safetensors: "token_loss" [rows, length] and, if asked, "logits"
  bool logits = false;
  std::vector<std::filesystem::path> data;      ///< text to evaluate on
  DocumentUnit documents = DocumentUnit::file;  ///< what a document of a text file of `data` is
  int64_t seq_len = 0;                          ///< 0 = as trained, or 512
  DType compute = DType::f32;
};

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt;
  int64_t max_tokens = 128;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  uint64_t seed = 42;
  std::vector<std::string> stop;
  DType compute = DType::f32;
};

struct ExportOptions {
  std::filesystem::path model;  ///< checkpoint step or run folder
  std::filesystem::path output;
  DType dtype = DType::f32;
  double max_shard_gib = 5.0;
};

struct ImportOptions {
  std::filesystem::path model;   ///< Hugging Face folder
  std::filesystem::path output;  ///< run folder; its checkpoint folder gets step-0
};

struct TorchCommand {
  enum class Kind : uint8_t { check, train, evaluate, generate, export_model, import_model };
  Kind kind = Kind::check;
  LoadedConfig config;          ///< train
  int dry_run_ranks = 0;        ///< train: if positive, one step as rank 0 of so many, without the others
  std::filesystem::path trace;  ///< train: file for the trace of a step, "" for none
  EvalOptions evaluate;
  GenerateOptions generate;
  ExportOptions export_options;
  ImportOptions import_options;
  Logger* log = nullptr;
  const InterruptWatcher* interrupts = nullptr;
};

/// The exported function: runs the command, returns the exit code, throws what the program's main catches.
using TorchEntry = int (*)(const TorchCommand& command);
inline constexpr const char* torch_entry_name = "stepforge_torch_entry";

/// Where the library is expected: beside libstepforge_core.so.
std::filesystem::path torch_half_path();

/// Loads the library (once) and runs the command. Throws Error with the loader's message
/// and the remedy.
int run_with_torch(const TorchCommand& command);

/// Loads `library`; "" or the loader's message.
std::string try_torch_half(const std::filesystem::path& library);

}  // namespace stepforge
