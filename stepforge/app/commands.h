// SPDX-License-Identifier: Apache-2.0
// The commands that need no tensors, and their options. Each returns the exit code and throws Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/app/finetune_choices.h"
#include "stepforge/config/load.h"
#include "stepforge/launch/launcher.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/plan/unread_options.h"
#include "stepforge/text/bpe_trainer.h"

namespace stepforge {

/// The arguments that make a configuration, as typed.
struct ConfigArgs {
  std::optional<std::filesystem::path> file;
  std::vector<std::string> overrides;
  std::shared_ptr<Registry> registry;  ///< of the plug-ins

  LoadedConfig load(ConfigUse use = ConfigUse::inspect) const {
    LoadedConfig loaded = load_config(file, overrides, use, settings_from_model, registry);
    refuse_unread_options(loaded);
    return loaded;
  }
};

struct PlanOptions {
  bool program = false;  ///< also the operations, with repetitions folded
  bool all = false;      ///< also the operations, every one
  int world_size = 0;    ///< 0: the devices of --hosts, or 1
  int rank = 0;
  bool calls = false;              ///< also the calls of each block
  bool layout = false;             ///< also what the rank holds of each tensor
  bool compare = false;            ///< only a table of all pipeline schedules
  std::filesystem::path trace;     ///< file for the trace of the predicted step, "" for none
  std::filesystem::path schedule;  ///< file for the pipeline schedule as CSV, "" for none
  std::filesystem::path picture;   ///< file for its picture, "" for none
  std::string memory;   ///< of each rank: "80GiB"; "" for that of the machine, or what is free here
  std::string machine;  ///< machine.name, or "list" to print those that are shipped
  int hosts = 0;        ///< machine.hosts
  int cores = 0;        ///< ranks of a host that compute at the same time; 0: all
  std::filesystem::path calibrate;  ///< trace with measured times, "" for none
};
/// Prints parameters, memory and operations of a run, without allocating a tensor, and writes the files that
/// `options` names.
int plan_command(const ConfigArgs& args, const PlanOptions& options);

/// Chooses settings for a model and data, prints them with their reasons, writes them to finetune.toml in the run folder, and
/// trains as `train` does with this file.
int finetune_command(const FinetuneOptions& options, const std::shared_ptr<Registry>& registry);

int config_show_command(const ConfigArgs& args);
/// `name`: a section, a field, or "" for everything; `format_name`: "text", "markdown" or "json".
int config_schema_command(const std::string& name, const std::string& format_name,
                          const std::shared_ptr<Registry>& registry);
int config_presets_command();

struct ConvertArgs {
  std::filesystem::path file;
  std::string from;   ///< the trainer, or "" to find it by the keys
  int64_t ranks = 0;  ///< of the job, or 0 if the file says it
  bool force = false;
};
/// Converts the configuration of another trainer and prints it; settings without a translation become
/// comments. Returns 3 if the file asks for training that is not available, unless `force`.
int config_convert_command(const ConvertArgs& args);

/// The names are those of Megatron's preprocess_data.py.
struct DataBuildOptions {
  std::vector<std::filesystem::path> input;  ///< text files, JSON Lines, tables, folders, patterns
  std::string tokenizer = "bytes";           ///< or a tokenizer.json, or its folder
  std::string format = "auto";               ///< of records (records/records.h)
  std::string dataset;                       ///< entry of the dataset_info.json that `input` is; "": none
  std::string documents = "file";            ///< "file", "line" or "paragraph"
  std::string json_key = "text";
  bool append_eod = true;
  bool bos = true;                      ///< begin documents as the tokenizer's post-processor does
  std::string loss_on = "assistant";    ///< of chat data: "assistant", "last" or "all"
  std::filesystem::path chat_template;  ///< empty: the one beside the tokenizer
  std::filesystem::path output_prefix;  ///< writes <output_prefix>_<json_key>_document.{bin,idx,json}
  int workers = 0;                      ///< 0 = all cores
  double validation_fraction = 0.0;     ///< above 0: also <output_prefix>_validation_<json_key>_document
  std::vector<std::string> filter;      ///< "key=value", as in [data.filter]
  std::string too_long;  ///< "drop", "error", "proportional" (records/document_limit.h); "": whole documents
  int64_t seq_len = 0;   ///< tokens of a document that is not too long
  bool deduplicate = false;
  std::string on_bad_record = "stop";  ///< or "skip"
  int64_t max_bad_records = 100;
  bool overwrite = false;  ///< replace pairs that exist
};
/// Prints a progress bar on standard error if that is a terminal, and the totals and a report on standard output.
/// Continues an interrupted build.
int data_build_command(const DataBuildOptions& options);

struct DataShowOptions {
  int64_t first_row = 0;
  int64_t rows = 1;
  int64_t max_tokens = 64;   ///< of each row in the table; 0 = all
  bool validation = false;   ///< the validation set instead of the training set
  int64_t sample = -1;       ///< print this sample of a source instead of rows; -1 = rows
  std::string source = "0";  ///< number or name of the source of the sample
};
/// Prints rows of the stream that training would read, or one sample of a source.
int data_show_command(const ConfigArgs& args, const DataShowOptions& options);

/// Writes which documents share the rows of the training data to a new folder, for data.preset.
int data_pack_command(const ConfigArgs& args, const std::filesystem::path& output);

struct TokenizerTrainOptions {
  std::vector<std::filesystem::path> inputs;  ///< text files, .jsonl files, folders of them
  BpeRecipe recipe;
  std::filesystem::path output;  ///< folder for tokenizer.json and its companions; made if missing
  std::string field = "text";    ///< of a JSON line
};
/// Learns a byte-level BPE, saves it, and reports to standard error.
int tokenizer_train_command(const TokenizerTrainOptions& options);

struct TokenizerCodecOptions {
  std::filesystem::path tokenizer;  ///< a tokenizer.json or its folder
  std::filesystem::path input;      ///< "" or "-": standard input
  bool jsonl = false;
  bool add_special_tokens = false;   ///< only for encoding
  bool skip_special_tokens = false;  ///< only for decoding
};
/// From text to ids on standard output; see text/line_codec.h for the forms.
int tokenizer_encode_command(const TokenizerCodecOptions& options);
/// From ids to text on standard output.
int tokenizer_decode_command(const TokenizerCodecOptions& options);

struct PlotOptions {
  std::vector<std::filesystem::path> runs;  ///< run folders, or metrics.jsonl files
  /// Empty: "plot.svg" in the run folder of a single run, else in the current folder.
  std::filesystem::path output;
  bool logarithmic = false;  ///< axes of loss and gradient norm
  std::string x = "steps";   ///< or "tokens", "hours"
};
/// Writes the curves of one or more runs as one SVG and prints where it is.
int plot_command(const PlotOptions& options);

/// `options.command`: "train" and its arguments, or a program's path and its arguments. `plugins` are loaded by every
/// rank of `train`.
int launch_command(LaunchOptions options, const std::vector<std::filesystem::path>& plugins);

/// Prints a table of checks of this machine with remedies. Returns 1 if a check failed.
/// `run_folder`: where runs are written.
int doctor_command(const std::filesystem::path& run_folder);

/// Prints version, commit, compiler and the libtorch that the program was built for.
int version_command();

}  // namespace stepforge
