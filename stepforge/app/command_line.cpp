// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/app/data_command.h"
#include "stepforge/app/doctor_command.h"
#include "stepforge/app/job_commands.h"
#include "stepforge/app/launch_command.h"
#include "stepforge/app/plot_command.h"
#include "stepforge/app/tokenizer_command.h"
#include "stepforge/app/torch_library.h"
#include "stepforge/app/version_command.h"
#include "stepforge/base/error.h"
#include "stepforge/base/version.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"

namespace stepforge {

namespace {

/// What the chosen sub-command will do once all words are parsed.
using Action = std::function<int()>;

/// The config file and overrides of commands that take a run.
struct RunWords {
  std::string preset;

  void add_to(CLI::App& command) {
    command.add_option("--preset", preset, "Preset to start from, for example llama3-8b");
    command.allow_extras();
    command.footer(
        "Further words: a TOML file, and fields of the configuration as section.key=value or --section.key "
        "value,\n"
        "for example: run.toml training.steps=10. They win over the file, the file over the preset, the "
        "preset over\n"
        "the defaults. `stepforge config schema` lists all fields.");
  }

  /// The file is the one word that neither is an override nor belongs to the one before. Throws UsageError if
  /// there are more.
  JobWords words(const CLI::App& command) const {
    JobWords result;
    if (!preset.empty()) result.overrides.push_back("preset=" + preset);
    bool value_follows = false;
    for (const std::string& word : command.remaining()) {
      const bool assigns = word.find('=') != std::string::npos;
      if (value_follows || assigns || word.starts_with("-")) {
        result.overrides.push_back(word);
        value_follows = !value_follows && !assigns;
      } else if (result.file) {
        throw UsageError(
            format("two configuration files, {} and {}: one of them can be given; the fields of the other as "
                   "section.key=value",
                   result.file->string(), word));
      } else {
        result.file = word;
      }
    }
    return result;
  }
};

void add_train_options(CLI::App& command, RunWords& words, TrainWords& what) {
  words.add_to(command);
  command
      .add_option("--dry-run", what.dry_run_ranks,
                  "Run one step as rank 0 of N simulated ranks; writes nothing")
      ->check(CLI::PositiveNumber);
  command.add_option("--trace", what.trace,
                     "Write the third step, as it ran and as predicted, for ui.perfetto.dev");
}

/// The run folder of `train` with these arguments, or "" if they only ask for help. Throws UsageError as `train`
/// does, so that a wrong configuration is refused once, before ranks start.
std::filesystem::path run_folder_of(std::vector<std::string> arguments) {
  CLI::App command;
  RunWords words;
  TrainWords what;
  add_train_options(command, words, what);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    command.parse(arguments);
  } catch (const CLI::ParseError&) {
    return "";
  }
  const JobWords job = words.words(command);
  return load_config(job.file, job.overrides, ConfigUse::train).config.run_dir;
}

/// Collects sub-commands; each registers its options and its action.
class CommandLine {
 public:
  CommandLine()
      : app_("Stepforge trains large language models: raw text in, a talking model out.", "stepforge") {
    app_.require_subcommand(1);
    app_.set_help_all_flag("--help-all", "Help of all commands");
    app_.set_version_flag("--version", std::string(version()));
    app_.get_formatter()->column_width(30);
    add_train();
    add_launch();
    add_eval();
    add_generate();
    add_export();
    add_import();
    add_tokenizer();
    add_data();
    add_plan();
    add_config();
    add_plot();
    add_doctor();
    CLI::App* command = app_.add_subcommand("version", "Version, commit, compiler, libtorch");
    command->callback([this] { action_ = [] { return version_command(); }; });
  }

  int run(int argc, const char* const* argv) {
    check_commands(argc, argv);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      const int code = app_.exit(error);
      return code == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    return action_();
  }

 private:
  /// CLI11 says of a wrong command only that one is required.
  void check_commands(int argc, const char* const* argv) const {
    const CLI::App* parent = &app_;
    for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
      const auto children = parent->get_subcommands([](const CLI::App*) { return true; });
      if (children.empty()) return;
      std::vector<std::string> names;
      for (const CLI::App* child : children) names.push_back(child->get_name());
      const auto found = std::find(names.begin(), names.end(), argv[i]);
      if (found == names.end()) {
        const std::string near = did_you_mean(argv[i], names);
        throw UsageError(format("no such command: \"{}\"{}; `{} --help` lists them", argv[i],
                                near.empty() ? "" : format("; did you mean \"{}\"?", near),
                                parent == &app_ ? "stepforge" : "stepforge " + parent->get_name()));
      }
      parent = children[static_cast<size_t>(found - names.begin())];
    }
  }

  CLI::App* add(CLI::App& parent, const char* name, const char* text) {
    return parent.add_subcommand(name, text);
  }

  template <typename Options>
  std::shared_ptr<Options> options() {
    return std::make_shared<Options>();
  }

  void on(CLI::App* command, Action action) {
    command->callback([this, action = std::move(action)] { action_ = action; });
  }

  template <typename Choice>
  static void add_choice(CLI::App& command, const char* name, Choice& value,
                         std::vector<std::string> accepted, const char* text) {
    command
        .add_option_function<std::string>(
            name, [&value](const std::string& typed) { value = choice_from_name<Choice>(typed); }, text)
        ->check(CLI::IsMember(std::move(accepted)));
  }

  void add_train() {
    CLI::App* command =
        add(app_, "train", "Train a model; continues by itself where an earlier start of the run ended");
    auto words = options<RunWords>();
    auto what = options<TrainWords>();
    add_train_options(*command, *words, *what);
    on(command, [=] { return train_command(words->words(*command), *what); });
  }

  void add_launch() {
    CLI::App* command =
        add(app_, "launch", "Start and watch the ranks of this machine: train on several ranks");
    auto what = options<LaunchOptions>();
    command->add_option("--nproc", what->processes, "Ranks to start on this machine")
        ->required()
        ->check(CLI::PositiveNumber);
    CLI::Option* nodes =
        command->add_option("--nnodes", what->nodes, "Number of machines; run the same command on each")
            ->check(CLI::PositiveNumber);
    command->add_option("--node-rank", what->node, "Number of this machine, counted from 0")
        ->check(CLI::NonNegativeNumber)
        ->needs(nodes);
    command
        ->add_option("--rendezvous", what->rendezvous,
                     "HOST:PORT on machine 0 where rank 0 listens (MASTER_ADDR, MASTER_PORT)")
        ->needs(nodes);
    command
        ->add_option("--max-restarts", what->max_restarts,
                     "Restart all ranks up to N times after a failure (one machine only)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--log-dir", what->log_folder,
                        "Folder for the output of each rank, rank-<r>.log [RUN/logs/launch, ./launch-logs]");
    command->add_option("--ranks", what->shown, "Ranks to show here: 0, or 0,2,4-7, or all");
    command->prefix_command();
    command->footer(
        "Usage: stepforge launch --nproc 2 train run.toml, or a program of your own by its path:\n"
        "stepforge launch --nproc 2 ./loop. With several machines each launcher watches its own ranks;\n"
        "to restart whole jobs, use torchrun, Slurm or Kubernetes.");
    on(command, [=] {
      what->command = command->remaining();
      const bool trains = !what->command.empty() && what->command.front() == "train";
      if (trains && command->count("--log-dir") == 0) {
        const auto run_folder = run_folder_of({what->command.begin() + 1, what->command.end()});
        if (!run_folder.empty()) what->log_folder = run_folder / "logs" / "launch";
      }
      return launch_command(*what);
    });
  }

  void add_eval() {
    CLI::App* command = add(app_, "eval", "Loss, perplexity and bits per byte of a trained model");
    auto eval = options<EvalOptions>();
    command->add_option("model", eval->model, "Checkpoint (step-N), run folder or Hugging Face folder")
        ->required();
    command->add_option("--data", eval->data, "Text files, folders or .jsonl to evaluate on");
    add_choice(*command, "--documents", eval->documents, {"file", "line", "paragraph"},
               "What a document of a text file is");
    command->add_option("--tokens", eval->tokens,
                        "Safetensors file with int32 \"tokens\" [rows, length], instead of text");
    command->add_option("--output", eval->output, "Safetensors file for the loss of each token");
    command->add_flag("--logits", eval->logits, "Write the logits too");
    command->add_option("--seq-len", eval->seq_len, "Tokens in a row (0: as the model was trained, or 512)")
        ->check(CLI::NonNegativeNumber);
    add_choice(*command, "--compute", eval->compute, {"fp32", "bf16"}, "Format of the computation");
    on(command, [=] { return eval_command(*eval); });
  }

  void add_generate() {
    CLI::App* command = add(app_, "generate", "Let a trained model write");
    auto generate = options<GenerateOptions>();
    command->add_option("model", generate->model, "Checkpoint (step-N), run folder or Hugging Face folder")
        ->required();
    command->add_option("--prompt", generate->prompt, "Text to continue");
    command->add_option("--max-tokens", generate->max_tokens, "Tokens to write")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--temperature", generate->temperature, "0 = greedy")->check(CLI::NonNegativeNumber);
    command->add_option("--top-k", generate->top_k, "Only the k likeliest tokens (0 = all)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--top-p", generate->top_p, "Only the likeliest tokens of this probability together")
        ->check(CLI::Range(0.0, 1.0));
    command->add_option("--seed", generate->seed, "Seed of the draws");
    command->add_option("--stop", generate->stop, "Text that ends the output; may be given several times");
    add_choice(*command, "--compute", generate->compute, {"fp32", "bf16"}, "Format of the computation");
    on(command, [=] { return generate_command(*generate); });
  }

  void add_export() {
    CLI::App* command = add(app_, "export", "Write a checkpoint as a Hugging Face folder");
    auto what = options<ExportOptions>();
    command->add_option("model", what->model, "Checkpoint (step-N) or run folder (its newest checkpoint)")
        ->required();
    command->add_option("output", what->output, "Folder to create")->required();
    add_choice(*command, "--dtype", what->dtype, {"fp32", "bf16", "fp16"}, "Format of the weights");
    command->add_option("--max-shard-gib", what->max_shard_gib, "Largest size of one weight file")
        ->check(CLI::PositiveNumber);
    on(command, [=] { return export_command(*what); });
  }

  void add_import() {
    CLI::App* command = add(app_, "import", "Turn a Hugging Face folder into a checkpoint");
    auto what = options<ImportOptions>();
    command->add_option("model", what->model, "Hugging Face folder")->required();
    command->add_option("output", what->output, "Run folder to create")->required();
    on(command, [=] { return import_command(*what); });
  }

  void add_tokenizer() {
    CLI::App* command = add(app_, "tokenizer", "Train a tokenizer, encode, decode");
    command->require_subcommand(1);
    CLI::App* train = add(*command, "train", "Learn a byte-level BPE from text");
    auto training = options<TokenizerTrainOptions>();
    train->add_option("inputs", training->inputs, "Text files, .jsonl files or folders")->required();
    train->add_option("--vocab-size", training->vocab_size, "Tokens wanted");
    train->add_option("--output", training->output, "Folder for tokenizer.json")->required();
    train->add_option("--field", training->field, "Field of a JSON line that holds the text");
    on(train, [=] { return tokenizer_train(*training); });
    add_codec(*command, "encode", "Text to token ids", tokenizer_encode);
    add_codec(*command, "decode", "Token ids to text", tokenizer_decode);
  }

  void add_codec(CLI::App& parent, const char* name, const char* text,
                 int (*run)(const TokenizerCodecOptions&)) {
    CLI::App* command = add(parent, name, text);
    auto codec = options<TokenizerCodecOptions>();
    command->add_option("--tokenizer", codec->tokenizer, "tokenizer.json or its folder")->required();
    command->add_option("input", codec->input, "File; standard input without it");
    command->add_flag("--jsonl", codec->jsonl, "One JSON value a line, in and out");
    on(command, [=] { return run(*codec); });
  }

  void add_data() {
    CLI::App* command = add(app_, "data", "Tokenize text ahead of time, look at what a run is fed");
    command->require_subcommand(1);
    CLI::App* build = add(*command, "build", "Tokenize into a Megatron .bin/.idx pair");
    auto what = options<DataBuildOptions>();
    auto tokenizer = std::make_shared<std::string>("bytes");
    build->add_option("--input", what->input, "Text files, .jsonl files or folders")->required();
    build->add_option("--output-prefix", what->output_prefix, "Writes <prefix>_<key>_document.{bin,idx}")
        ->required();
    build->add_option("--tokenizer", *tokenizer, "tokenizer.json, its folder, or \"bytes\"");
    build->add_option("--json-keys", what->json_key, "Field of a JSON line that holds the text");
    build->add_flag("--append-eod,!--no-append-eod", what->append_eod,
                    "End each document with the end-of-text token");
    build->add_option("--workers", what->workers, "Threads (0 = all cores)");
    build->add_option("--format", what->format, "auto, text or jsonl");
    build->add_option("--documents", what->documents,
                      "What a document of a text file is: file, line or paragraph");
    build->add_option("--validation-fraction", what->validation_fraction, "Share of documents held out");
    on(build, [=] { return data_build_command(*what, *tokenizer); });

    CLI::App* show = add(*command, "show", "Print rows as training would see them");
    auto words = options<RunWords>();
    auto rows = options<DataShowWords>();
    words->add_to(*show);
    show->add_option("--row", rows->first_row, "First row");
    show->add_option("--rows", rows->rows, "Number of rows");
    show->add_option("--max-tokens", rows->max_tokens, "Tokens of each row (0 = all)");
    show->add_flag("--validation", rows->validation, "Rows of the validation set");
    on(show, [=] { return data_show_command(words->words(*show), *rows); });
  }

  void add_plan() {
    CLI::App* command =
        add(app_, "plan", "What a run will hold and do: parameters, bytes, operations; allocates nothing");
    auto words = options<RunWords>();
    auto what = options<PlanWords>();
    words->add_to(*command);
    command->add_flag("--all", what->all, "Every operation, nothing folded");
    command->add_option("--world-size", what->world_size, "Ranks of the job")->check(CLI::Range(1, 1 << 20));
    command->add_option("--rank", what->rank, "The rank whose program is shown")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--memory", what->memory,
                        "Memory of each rank, such as 80GiB (default: what is free on this machine)");
    command->add_option("--machine", what->machine,
                        "Rates of each rank for the predicted time: GFLOP/s[,memory GB/s[,network GB/s]]");
    command->add_option("--trace", what->trace, "Write the predicted step as a Chrome/Perfetto trace");
    on(command, [=] { return plan_run_command(words->words(*command), *what); });
  }

  void add_config() {
    CLI::App* command = add(app_, "config", "Show a resolved configuration, or describe all fields");
    command->require_subcommand(1);
    CLI::App* show = add(*command, "show", "The resolved configuration, and where each value comes from");
    auto words = options<RunWords>();
    words->add_to(*show);
    on(show, [=] { return config_show_command(words->words(*show)); });
    CLI::App* schema = add(*command, "schema", "All fields: as help, Markdown or JSON schema");
    auto format_name = std::make_shared<std::string>("text");
    auto section = std::make_shared<std::string>();
    schema->add_option("section", *section, "Section to describe; all of them without it");
    schema->add_option("--format", *format_name, "text, markdown or json")
        ->check(CLI::IsMember({"text", "markdown", "json"}));
    on(schema, [=] { return config_schema_command(*section, *format_name); });
  }

  void add_plot() {
    CLI::App* command = add(app_, "plot", "Draw loss, gradient norm, rate and speed of runs as one SVG");
    auto what = options<PlotOptions>();
    command->add_option("runs", what->runs, "Run folders")->required();
    command->add_option("--output", what->output, "SVG file");
    on(command, [=] { return plot_command(*what); });
  }

  void add_doctor() {
    CLI::App* command = add(app_, "doctor", "Check this machine and say what to do");
    auto what = options<DoctorOptions>();
    command->add_option("--run-dir", what->run_folder, "Where runs will be written");
    what->load_torch_half = try_torch_half;
    on(command, [=] { return doctor_command(*what); });
  }

  CLI::App app_;
  Action action_;
};

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  return CommandLine().run(argc, argv);
}

}  // namespace stepforge
