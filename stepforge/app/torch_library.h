// SPDX-License-Identifier: Apache-2.0
// The border between the program, which links no torch, and libstepforge_torch.so, which it loads when a
// command needs tensors. Both are built together; the library exports one function.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "stepforge/app/gpu_check_options.h"
#include "stepforge/base/interrupt.h"
#include "stepforge/base/log.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/sampling_params.h"

namespace stepforge {

struct TrainOptions {
  LoadedConfig config;
  int dry_run_ranks = 0;        ///< if positive, one step as rank 0 of this many simulated ranks
  std::filesystem::path trace;  ///< file for the trace of a step, "" for none
};

struct ProveOptions {
  Config config;
  int world_size = 1;  ///< ranks of the job
};

enum class HeldOutPart : uint8_t { validation, test };
constexpr ChoiceNames<2> choice_names(HeldOutPart) {
  return {"validation", "test"};
}

struct EvalOptions {
  std::filesystem::path model;  ///< checkpoint step, run folder or Hugging Face folder
  /// safetensors with int32 "tokens" [rows, length]; instead of the config's data
  std::filesystem::path tokens;
  HeldOutPart split = HeldOutPart::validation;  ///< of the data of a run, without other data
  std::filesystem::path output;  ///< safetensors: "token_loss" [rows, length] and, if asked, "logits"
  bool logits = false;
  std::filesystem::path gradients;  ///< safetensors: the gradient of each tensor of the model; empty: none
  std::vector<std::filesystem::path> data;      ///< text or conversations to evaluate on
  std::string sources;                          ///< the same as the value of data.sources; "": none
  std::vector<std::string> source_keys;         ///< "key=value" for each of `data`, as in data.sources
  std::filesystem::path chat_template;          ///< empty: the model's own
  DocumentUnit documents = DocumentUnit::file;  ///< how text files of `data` are divided into documents
  int64_t seq_len = 0;                          ///< 0 = as trained, or 512
  DType compute = DType::f32;
  std::string device = "auto";        ///< as training.device
  std::vector<std::string> adapters;  ///< "FOLDER" or "FOLDER=WEIGHT", merged into the weights
};

struct GenerateOptions {
  std::filesystem::path model;
  std::vector<std::string> adapters;  ///< as in EvalOptions
  std::string prompt;
  std::filesystem::path prompts;  ///< file of prompts, one a line; instead of `prompt`
  SamplingParams sampling;        ///< but for these three: empty = those of generation_config.json
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  DType compute = DType::f32;
  std::string device = "auto";  ///< as training.device
};

struct ChatOptions {
  std::filesystem::path model;
  std::vector<std::string> adapters;    ///< as in EvalOptions
  std::filesystem::path chat_template;  ///< empty: the model's own
  std::string system;
  int64_t context = 4096;
  int64_t max_tokens = 1024;
  std::optional<double> temperature;  ///< these three: empty = those of generation_config.json
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  uint64_t seed = 42;
  DType compute = DType::f32;
  std::string device = "auto";  ///< as training.device
};

struct ExportOptions {
  std::filesystem::path model;  ///< checkpoint step, run or Hugging Face folder
  std::filesystem::path output;
  std::optional<DType> dtype{};  ///< absent: checkpoint.export_dtype of the run, the type of the folder
  double max_shard_gib = 5.0;
  bool stacked_experts = false;
  std::vector<std::string> adapters;  ///< as in EvalOptions; only with `merge`
  bool merge = false;                 ///< writes a plain model instead of an adapter
};

struct ImportOptions {
  std::filesystem::path model;   ///< Hugging Face folder
  std::filesystem::path output;  ///< run folder; its checkpoint folder gets step-0
};

using TorchRequest = std::variant<TrainOptions, ProveOptions, EvalOptions, GenerateOptions, ChatOptions,
                                  ExportOptions, ImportOptions, GpuCheckOptions>;

/// Passed to every command; both must outlive it.
struct CommandContext {
  Logger& log;
  InterruptWatcher* interrupts = nullptr;     ///< train only
  std::shared_ptr<const Registry> plugins{};  ///< of the command line
};

/// The exported function: runs the command and returns the exit code. Exceptions pass through to the program.
using TorchEntry = int (*)(const TorchRequest& request, const CommandContext& context);
inline constexpr const char* kTorchEntryName = "stepforge_torch_entry";

/// Sets the environment variables that libtorch reads when it is loaded.
void prepare_torch_environment();

/// Loads the library (once) and runs the command. Throws Error with the loader's message and the remedy.
int run_with_torch(const TorchRequest& request, std::shared_ptr<const Registry> plugins);

/// Where the library is expected: beside libstepforge_core.so.
std::filesystem::path torch_library_path();

/// Loads `library`; returns the loader's message, "" on success.
std::string try_torch_library(const std::filesystem::path& library);

}  // namespace stepforge
