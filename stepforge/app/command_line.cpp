// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/command_line.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/app/cli.h"
#include "stepforge/app/commands.h"
#include "stepforge/app/torch_library.h"
#include "stepforge/base/device_name.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/registry.h"
#include "stepforge/base/version.h"
#include "stepforge/config/toml_text.h"
#include "stepforge/launch/rank_environment.h"

namespace stepforge {

namespace {

constexpr const char* kModelText = "Checkpoint (step-N), run folder or Hugging Face folder";
constexpr const char* kDeviceText = "Device, as training.device: auto, cpu, cuda or cuda:N";
constexpr const char* kComputeText = "Number format of the computation";
constexpr const char* kDocumentsText = "How a text file is divided into documents";

void add_train_options(CLI::App& command, std::string& preset, TrainOptions& train) {
  accept_config(command, preset);
  command
      .add_option("--dry-run", train.dry_run_ranks,
                  "Run one step as rank 0 of this many simulated ranks; writes nothing")
      ->check(number(1))
      ->default_str("");
  command.add_option("--trace", train.trace,
                     "Write the third step, as it ran and as predicted, for ui.perfetto.dev");
}

/// The run folder of `train` with these arguments, or "" if they only ask for help. Throws UsageError as
/// `train` does, so that a wrong configuration is refused once, before ranks start.
std::filesystem::path run_folder_of(std::vector<std::string> arguments,
                                    const std::shared_ptr<Registry>& registry) {
  take_plugins(arguments, *registry);
  CLI::App command("", "train");
  std::string preset;
  TrainOptions train;
  add_train_options(command, preset, train);
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
  try {
    command.parse(arguments);
  } catch (const CLI::ParseError&) {
    return "";
  }
  return config_args(command, preset, registry).load(ConfigUse::train).config.run_dir;
}

/// Registers the commands with their options and actions.
class CommandLine {
 public:
  /// `registry` has the plug-ins of the command line.
  explicit CommandLine(std::shared_ptr<Registry> registry)
      : registry_(std::move(registry)),
        app_("Stepforge trains large language models, from raw text to a model that generates text.",
             "stepforge") {
    app_.require_subcommand(1);
    app_.set_help_all_flag("--help-all", "Help of all commands");
    app_.set_version_flag("--version", std::string(version()));
    // For the help text: take_plugins() reads it.
    app_.add_option("--plugin", "Load a plug-in, a shared library; may be given several times")
        ->type_name("FILE");
    app_.option_defaults()->always_capture_default();
    auto formatter = std::make_shared<HelpFormatter>();
    formatter->column_width(30);
    app_.formatter(formatter);
    add_train();
    add_finetune();
    add_launch();
    add_eval();
    add_generate();
    add_chat();
    add_export();
    add_import();
    add_tokenizer();
    add_data();
    add_plan();
    add_prove();
    add_config();
    add_plot();
    on(add(app_, "version", "Version, commit, compiler, libtorch"), version_command);
    add_doctor();
    add_gpu_check();
    add(app_, "help", "Help of a command, as in `stepforge help train`");
    for (const SubCommand& command : registry_->all<SubCommand>()) add_own(command);
  }

  int run(std::vector<std::string> arguments) {
    if (!arguments.empty() && arguments.front() == "help") {
      arguments.erase(arguments.begin());
      arguments.emplace_back("--help");
    }
    check_commands(app_, arguments);
    try {
      app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::Success& asked) {
      return app_.exit(asked);
    } catch (const CLI::ParseError& error) {
      throw UsageError(explain(app_, error));
    }
    return action_();
  }

 private:
  /// A command of a plug-in, which reads its arguments itself.
  void add_own(const SubCommand& own) {
    const auto same =
        app_.get_subcommands([&](const CLI::App* other) { return other->get_name() == own.name; });
    if (!same.empty())
      throw UsageError(
          format("a plug-in registers the sub-command \"{}\", which is built in; rename it", own.name));
    CLI::App* command = add(app_, own.name.c_str(), own.summary.c_str());
    command->prefix_command();
    on(command, [this, command, run = own.run] { return run(command->remaining(), registry_); });
  }

  CLI::App* add(CLI::App& parent, const char* name, const char* text) {
    return parent.add_subcommand(name, text);
  }

  void on(CLI::App* command, std::function<int()> action) {
    command->callback([this, action = std::move(action)] { action_ = action; });
  }

  template <typename Options>
  static std::shared_ptr<Options> options() {
    return std::make_shared<Options>();
  }

  void add_train() {
    CLI::App* command = add(app_, "train", "Train a model, or continue the run in its run folder");
    auto preset = options<std::string>();
    auto train = options<TrainOptions>();
    add_train_options(*command, *preset, *train);
    on(command, [=, this] {
      train->config = config_args(*command, *preset, registry_).load(ConfigUse::train);
      return run_with_torch(*train, registry_);
    });
  }

  void add_finetune() {
    CLI::App* command =
        add(app_, "finetune", "Fine-tune a model on conversations or texts, with settings that it chooses");
    auto finetune = options<FinetuneOptions>();
    command->add_option("model", finetune->model, "Hugging Face folder, run folder or checkpoint")
        ->required();
    command->add_option("data", finetune->data, "File, folder or pattern of conversations or texts")
        ->required();
    CLI::Option* full = command->add_flag("--full", finetune->full, "Train all weights");
    command->add_flag("--lora", finetune->lora, "Train an adapter (LoRA), as without both flags")
        ->excludes(full);
    command->add_option("--validation", finetune->validation,
                        "Data to validate with [a part of the data is held out]");
    command->add_option("--memory", finetune->memory,
                        "Memory of the device, such as 80GiB [free memory of this machine]");
    command->add_flag("--write-only", finetune->write_only, "Write the configuration, and do not train");
    command->allow_extras();
    command->footer(
        "Fields, written section.key=value, win over what is chosen, for example training.epochs=1. The\n"
        "configuration is printed with the reasons, and written to finetune.toml in the run folder, which\n"
        "is runs/finetune-MODEL unless run_dir=FOLDER says another.");
    on(command, [=, this] {
      const ConfigArgs args = config_args(*command, "", registry_);
      if (args.file)
        throw UsageError(format("finetune writes its own configuration; {} is one argument too many",
                                args.file->string()));
      finetune->overrides = args.overrides;
      return finetune_command(*finetune, registry_);
    });
  }

  void add_launch() {
    CLI::App* command = add(app_, "launch", "Start the ranks of a job on this machine");
    auto launch = options<LaunchOptions>();
    command->add_option("--nproc", launch->processes, "Ranks to start on this machine")
        ->required()
        ->check(number(1));
    CLI::Option* nodes =
        command->add_option("--nnodes", launch->nodes, "Number of machines; run the same command on each")
            ->check(number(1));
    command->add_option("--node-rank", launch->node, "Index of this machine, from 0")
        ->check(number(0))
        ->needs(nodes);
    command
        ->add_option("--rendezvous", launch->rendezvous,
                     "HOST:PORT on machine 0 where rank 0 listens (MASTER_ADDR, MASTER_PORT)")
        ->needs(nodes);
    command
        ->add_option("--max-restarts", launch->max_restarts,
                     "Maximum restarts of all ranks after failures (one machine only)")
        ->check(number(0));
    command
        ->add_option("--log-dir", launch->log_folder,
                     "Folder for rank-<r>.log of each rank [RUN/logs/launch or ./launch-logs]")
        ->default_str("");
    command->add_option("--ranks", launch->shown, "Ranks whose output is shown here: 0, or 0,2,4-7, or all");
    command->prefix_command();
    command->footer(
        "Examples: stepforge launch --nproc 2 train run.toml, or your own program by its path:\n"
        "stepforge launch --nproc 2 ./loop. With several machines, each launcher watches its own ranks;\n"
        "to restart whole jobs, use torchrun, Slurm or Kubernetes.");
    on(command, [=, this] {
      launch->command = command->remaining();
      const bool trains = !launch->command.empty() && launch->command.front() == "train";
      if (trains && command->count("--log-dir") == 0) {
        launch->run_folder = run_folder_of({launch->command.begin() + 1, launch->command.end()}, registry_);
        if (!launch->run_folder.empty()) launch->log_folder = launch->run_folder / "logs" / "launch";
      }
      return launch_command(*launch, registry_->plugins());
    });
  }

  void add_eval() {
    CLI::App* command = add(app_, "eval", "Loss, perplexity and bits per byte of a trained model");
    auto eval = options<EvalOptions>();
    command->add_option("model", eval->model, kModelText)->required();
    command->add_option("--data", eval->data,
                        "Text files, .jsonl, tables, folders or patterns to evaluate on");
    add_source_options(*command, *eval);
    add_choice(*command, "--documents", eval->documents, {"file", "line", "paragraph"}, kDocumentsText);
    add_choice(*command, "--split", eval->split, {"validation", "test"},
               "Part of the run's own data, without --data");
    command->add_option("--tokens", eval->tokens,
                        "Safetensors file with int32 \"tokens\" [rows, length], instead of text");
    command->add_option("--output", eval->output, "Safetensors file for the loss of each token");
    command->add_flag("--logits", eval->logits, "Write the logits too");
    command->add_option("--gradients", eval->gradients,
                        "Safetensors file for the gradients of the loss, by Hugging Face name");
    command->add_option("--seq-len", eval->seq_len, "Tokens per row; 0 = as in training, or 512")
        ->check(number(0));
    add_choice(*command, "--compute", eval->compute, {"fp32", "bf16"}, kComputeText);
    add_device_option(*command, eval->device);
    add_adapter_option(*command, eval->adapters);
    on(command, [=, this] { return run_with_torch(*eval, registry_); });
  }

  static void add_device_option(CLI::App& command, std::string& device) {
    command.add_option("--device", device, kDeviceText)->check([](const std::string& name) {
      return parse_device_name(name) ? std::string() : std::string(kDeviceNames);
    });
  }

  static void add_adapter_option(CLI::App& command, std::vector<std::string>& adapters) {
    command.add_option("--adapter", adapters,
                       "Adapter to merge: folder of PEFT, or FOLDER=WEIGHT; may be repeated");
  }

  /// Options for the keys of an entry of data.sources.
  static void add_source_options(CLI::App& command, EvalOptions& eval) {
    for (const auto& [option, key, text] :
         {std::array{"--format", "format",
                     "Of --data, as in data.sources: auto, jsonl, messages, sharegpt ..."},
          std::array{"--field", "field", "Field or column of --data with the text [text]"},
          std::array{"--loss-on", "loss_on", "Of conversations: assistant, last or all [assistant]"},
          std::array{"--dataset", "dataset",
                     "Entry of the dataset_info.json of LLaMA-Factory that --data is"}}) {
      command.add_option_function<std::string>(
          option,
          [&eval, name = std::string(key)](const std::string& value) {
            eval.source_keys.push_back(format("{}={}", name, toml_string(value)));
          },
          text);
    }
    command
        .add_option("--sources", eval.sources,
                    "As the value of data.sources: [{path=\"a.jsonl\", field=\"t\"}, ...]")
        ->excludes("--data");
    command.add_option("--chat-template", eval.chat_template,
                       "Template of conversations, as data.chat_template [the model's own]");
  }

  void add_generate() {
    CLI::App* command = add(app_, "generate", "Generate text from a trained model");
    auto generate = options<GenerateOptions>();
    SamplingParams& sampling = generate->sampling;
    command->add_option("model", generate->model, kModelText)->required();
    CLI::Option* prompt = command->add_option("--prompt", generate->prompt, "Text to continue");
    command
        ->add_option("--prompts", generate->prompts,
                     "File of prompts, one a line or JSON lines; prints JSON lines")
        ->excludes(prompt);
    command->add_option("--max-tokens", sampling.max_tokens, "Maximum number of tokens to generate")
        ->check(number(0));
    command
        ->add_option("--temperature", generate->temperature,
                     "Sampling temperature; 0 = greedy [the model's, or 0.8]")
        ->check(number(0));
    command
        ->add_option("--top-k", generate->top_k,
                     "Sample from the k most likely tokens; 0 = all [the model's]")
        ->check(number(0));
    command
        ->add_option("--top-p", generate->top_p,
                     "Sample from the smallest set of this probability [the model's]")
        ->check(number(0, 1));
    command->add_option("--seed", sampling.seed, "Seed of the sampling")->check(number(0));
    command->add_option("--stop", sampling.stop, "Stop string; may be given several times");
    add_choice(*command, "--compute", generate->compute, {"fp32", "bf16"}, kComputeText);
    add_device_option(*command, generate->device);
    add_adapter_option(*command, generate->adapters);
    on(command, [=, this] { return run_with_torch(*generate, registry_); });
  }

  void add_chat() {
    CLI::App* command = add(app_, "chat", "Talk with a model, in the words of its chat template");
    auto chat = options<ChatOptions>();
    command->add_option("model", chat->model, kModelText)->required();
    command->add_option("--system", chat->system, "System message");
    command->add_option("--chat-template", chat->chat_template, "Jinja template [the model's own]");
    command->add_option("--context", chat->context, "Tokens of the conversation, at most the model's")
        ->check(number(2));
    command->add_option("--max-tokens", chat->max_tokens, "Maximum number of tokens of an answer")
        ->check(number(1));
    command->add_option("--temperature", chat->temperature, "Sampling temperature; 0 = greedy [the model's]")
        ->check(number(0));
    command->add_option("--top-k", chat->top_k, "Sample from the k most likely tokens; 0 = all [the model's]")
        ->check(number(0));
    command
        ->add_option("--top-p", chat->top_p, "Sample from the smallest set of this probability [the model's]")
        ->check(number(0, 1));
    command->add_option("--seed", chat->seed, "Seed of the sampling")->check(number(0));
    add_choice(*command, "--compute", chat->compute, {"fp32", "bf16"}, kComputeText);
    add_device_option(*command, chat->device);
    add_adapter_option(*command, chat->adapters);
    on(command, [=, this] { return run_with_torch(*chat, registry_); });
  }

  void add_export() {
    CLI::App* command =
        add(app_, "export", "Write a checkpoint as a Hugging Face folder; that of an adapter as one of PEFT");
    auto exported = options<ExportOptions>();
    command->add_option("model", exported->model, "Checkpoint (step-N) or run folder (its newest checkpoint)")
        ->required();
    command->add_option("output", exported->output, "Folder to create")->required();
    command->add_flag("--merge", exported->merge,
                      "Write a plain model, with the adapters merged into its weights");
    add_adapter_option(*command, exported->adapters);
    add_choice(*command, "--dtype", exported->dtype, {"fp32", "bf16", "fp16"},
               "Number format [checkpoint.export_dtype, that of the model it started from]");
    command->add_option("--max-shard-gib", exported->max_shard_gib, "Largest size of one weight file in GiB")
        ->check(number(0));
    command->add_flag("--stacked-experts", exported->stacked_experts,
                      "Write the experts of a layer in two tensors, as transformers 5 can");
    on(command, [=, this] { return run_with_torch(*exported, registry_); });
  }

  void add_import() {
    CLI::App* command = add(app_, "import", "Turn a Hugging Face folder into a run folder with a checkpoint");
    auto imported = options<ImportOptions>();
    command->add_option("model", imported->model, "Hugging Face folder")->required();
    command->add_option("output", imported->output, "Run folder to create")->required();
    on(command, [=, this] { return run_with_torch(*imported, registry_); });
  }

  void add_tokenizer() {
    CLI::App* command = add(app_, "tokenizer", "Train a tokenizer, encode, decode");
    command->require_subcommand(1);
    CLI::App* train = add(*command, "train", "Learn a byte-level BPE from text");
    auto training = options<TokenizerTrainOptions>();
    train->add_option("inputs", training->inputs, "Text files, .jsonl, tables, folders or patterns")
        ->required();
    BpeRecipe& recipe = training->recipe;
    train->add_option("--vocab-size", recipe.vocab_size, "Tokens, special ones included")->check(number(257));
    train->add_option("--special-tokens", recipe.special_tokens,
                      "They have the first ids, in this order [<|endoftext|>, which has the last id]");
    train->add_option("--eos-token", recipe.eos_token, "Which of them ends a text [<|endoftext|>]");
    train->add_option("--bos-token", recipe.bos_token, "Which of them begins every text [none]");
    train
        ->add_option("--min-frequency", recipe.min_frequency, "How often a pair must occur to become a token")
        ->check(number(1));
    train->add_option("--pattern", recipe.pattern,
                      "Words: as gpt2, llama3, qwen or o200k, or by an expression");
    train->add_option("--digits", recipe.digits, "Digits: by the pattern, one each, or up to three")
        ->check(CLI::IsMember({"pattern", "one", "three"}));
    train->add_option("--output", training->output, "Folder for tokenizer.json")->required();
    train->add_option("--field", training->field, "Field of a JSON line with the text");
    on(train, [=] { return tokenizer_train_command(*training); });
    add_codec(*command, "encode", "Text to token ids", tokenizer_encode_command, true);
    add_codec(*command, "decode", "Token ids to text", tokenizer_decode_command, false);
  }

  void add_codec(CLI::App& parent, const char* name, const char* text,
                 int (*run)(const TokenizerCodecOptions&), bool encodes) {
    CLI::App* command = add(parent, name, text);
    auto codec = options<TokenizerCodecOptions>();
    command->add_option("--tokenizer", codec->tokenizer, "tokenizer.json or its folder")->required();
    command->add_option("input", codec->input, "File; standard input without it");
    command->add_flag("--jsonl", codec->jsonl, "Read and write one JSON value per line");
    if (encodes) {
      command->add_flag("--add-special-tokens", codec->add_special_tokens,
                        "Put the special tokens of the tokenizer's post-processor around each text");
    } else {
      command->add_flag("--skip-special-tokens", codec->skip_special_tokens,
                        "Leave special tokens out of the text");
    }
    on(command, [=] { return run(*codec); });
  }

  void add_data() {
    CLI::App* command = add(app_, "data", "Tokenize text ahead of time, show the rows of a run");
    command->require_subcommand(1);
    CLI::App* build = add(*command, "build", "Tokenize into a Megatron .bin/.idx pair");
    auto data = options<DataBuildOptions>();
    build->add_option("--input", data->input, "Text files, .jsonl, tables, folders or patterns")->required();
    build->add_option("--output-prefix", data->output_prefix, "Writes <prefix>_<key>_document.{bin,idx}")
        ->required();
    build->add_option("--tokenizer", data->tokenizer, "tokenizer.json, its folder, or \"bytes\"");
    build->add_option("--json-keys", data->json_key,
                      "Field of a JSON line, or column of a table, with the text");
    build
        ->add_option("--dataset", data->dataset,
                     "Entry of the dataset_info.json of LLaMA-Factory that --input is")
        ->excludes("--json-keys");
    build->add_flag("--append-eod,!--no-append-eod", data->append_eod,
                    "End each document with the end-of-text token (default), or not");
    build->add_option("--workers", data->workers, "Threads; 0 = all cores")->check(number(0));
    build->add_flag("--bos,!--no-bos", data->bos,
                    "Begin each document with the tokens that begin a text (default), or not");
    build
        ->add_option("--format", data->format,
                     "As in data.sources: auto, text, jsonl, csv, mds, messages ...")
        ->excludes("--dataset");
    build->add_option("--loss-on", data->loss_on, "Of conversations: assistant, last or all");
    build->add_option("--chat-template", data->chat_template,
                      "Jinja template of conversations [the one beside the tokenizer]");
    build->add_option("--documents", data->documents,
                      "How a text file is divided into documents: file, line, paragraph");
    build->add_option("--validation-fraction", data->validation_fraction, "Share of documents held out");
    build
        ->add_option("--filter", data->filter,
                     "Rules of [data.filter] that documents must follow, such as max_symbols=0.3")
        ->type_name("KEY=VALUE");
    CLI::Option* too_long = build
                                ->add_option("--too-long", data->too_long,
                                             "Of documents above --seq-len: drop, error, proportional [kept]")
                                ->check(CLI::IsMember({"drop", "error", "proportional"}));
    too_long->needs(
        build->add_option("--seq-len", data->seq_len, "Tokens of the longest documents; with --too-long")
            ->default_str("")
            ->check(number(1))
            ->needs(too_long));
    build->add_flag("--deduplicate", data->deduplicate, "Drop documents whose text occurred before");
    build->add_option("--on-bad-record", data->on_bad_record, "stop, or skip malformed records")
        ->check(CLI::IsMember({"stop", "skip"}));
    build->add_option("--max-bad-records", data->max_bad_records, "So many are skipped; one more is an error")
        ->check(number(0))
        ->needs("--on-bad-record");
    build->add_flag("--overwrite", data->overwrite, "Replace a pair that exists");
    on(build, [=] { return data_build_command(*data); });

    CLI::App* show = add(*command, "show", "Print rows as training would read them");
    auto preset = options<std::string>();
    auto rows = options<DataShowOptions>();
    accept_config(*show, *preset);
    show->add_option("--row", rows->first_row, "First row")->check(number(0));
    show->add_option("--rows", rows->rows, "Number of rows")->check(number(1));
    show->add_option("--max-tokens", rows->max_tokens, "Tokens of each row in the table; 0 = all")
        ->check(number(0));
    show->add_flag("--validation", rows->validation, "Rows of the validation set");
    CLI::Option* sample =
        show->add_option("--sample", rows->sample, "Print this sample of a source, from 0, instead of rows")
            ->check(number(0));
    show->add_option("--source", rows->source, "Number, path or name of the source of the sample [0]")
        ->needs(sample);
    on(show, [=, this] { return data_show_command(config_args(*show, *preset, registry_), *rows); });

    CLI::App* pack = add(*command, "pack", "Write which documents share a row to files, for data.preset");
    auto pack_preset = options<std::string>();
    auto output = options<std::filesystem::path>();
    accept_config(*pack, *pack_preset);
    pack->add_option("--output", *output, "New folder")->required();
    on(pack, [=, this] { return data_pack_command(config_args(*pack, *pack_preset, registry_), *output); });
  }

  void add_plan() {
    CLI::App* command =
        add(app_, "plan", "Check a run, and show its parameters, memory and time without allocating");
    auto preset = options<std::string>();
    auto plan = options<PlanOptions>();
    accept_config(*command, *preset);
    command->add_flag("--program", plan->program, "Also list the operations, with repetitions folded");
    command->add_flag("--all", plan->all, "Also list the operations, every one of them");
    command->add_option("--world-size", plan->world_size, "Ranks of the job [all devices of --hosts, or 1]")
        ->check(number(1, kMaxRanks))
        ->default_str("");
    command->add_option("--rank", plan->rank, "The rank whose program is shown")->check(number(0));
    command->add_flag("--calls", plan->calls, "Also list the calls of each block: what a layer computes");
    command->add_flag("--layout", plan->layout, "Also show the rank's groups and its part of every tensor");
    command->add_option("--memory", plan->memory,
                        "Memory of each rank, such as 80GiB [that of --machine, or what is free here]");
    command->add_option("--machine", plan->machine,
                        "Machine to plan for, such as h100-sxm, or a file of your own; list prints all");
    command->add_option("--hosts", plan->hosts, "Hosts of this machine, with a rank on each device")
        ->check(number(1))
        ->default_str("");
    command->add_option("--cores", plan->cores, "Ranks of a host that can compute at the same time [all]")
        ->check(number(1, kMaxRanks));
    command->add_option("--calibrate", plan->calibrate,
                        "Take the times of operations from a trace that `train --trace` wrote");
    command->add_flag("--compare", plan->compare,
                      "Only compare the pipeline schedules: bubble, time of a step, peak memory");
    command->add_option("--trace", plan->trace, "Write the predicted step as a Chrome/Perfetto trace");
    command->add_option("--schedule", plan->schedule,
                        "Write the pipeline schedule as CSV; with --compare, the fastest within --memory");
    command->add_option("--picture", plan->picture, "Draw the predicted pipeline as SVG");
    on(command, [=, this] { return plan_command(config_args(*command, *preset, registry_), *plan); });
  }

  void add_prove() {
    CLI::App* command =
        add(app_, "prove", "Train a small exact model in a run's layout, and compare it with one rank");
    auto preset = options<std::string>();
    auto prove = options<ProveOptions>();
    accept_config(*command, *preset);
    command->add_option("--world-size", prove->world_size, "Ranks of the job")->check(number(1, kMaxRanks));
    on(command, [=, this] {
      prove->config = config_args(*command, *preset, registry_).load().config;
      return run_with_torch(*prove, registry_);
    });
  }

  void add_config() {
    CLI::App* command = add(app_, "config", "Show, describe or convert configurations");
    command->require_subcommand(1);
    CLI::App* show = add(*command, "show", "The resolved configuration, and where each value comes from");
    auto preset = options<std::string>();
    accept_config(*show, *preset);
    on(show, [=, this] { return config_show_command(config_args(*show, *preset, registry_)); });

    CLI::App* schema =
        add(*command, "schema", "Every field: meaning, default, range; as text, Markdown or JSON");
    auto format_name = std::make_shared<std::string>("text");
    auto name = options<std::string>();
    schema->add_option("name", *name, "A section or a field, such as training or training.steps");
    schema->add_option("--format", *format_name, "Form of the output")
        ->type_name("text|markdown|json")
        ->check([](const std::string& typed) {
          const bool known = typed == "text" || typed == "markdown" || typed == "json";
          return known ? "" : "\"" + typed + "\" is not one of text, markdown, json";
        });
    on(schema, [=, this] { return config_schema_command(*name, *format_name, registry_); });

    on(add(*command, "presets", "List the presets"), config_presets_command);

    CLI::App* convert = add(*command, "convert", "Convert the configuration of another trainer");
    auto args = options<ConvertArgs>();
    convert->add_option("file", args->file, "Its .toml, .yaml or .json; Megatron-LM's .sh, nanoGPT's .py")
        ->required();
    convert->add_option("--from", args->from, "Trainer, if its keys do not tell; a wrong name lists all")
        ->type_name("NAME");
    convert->add_option("--ranks", args->ranks, "Ranks of the job, if batches are given per rank")
        ->check(number(1, kMaxRanks));
    convert->add_flag("--force", args->force,
                      "Convert the rest of a file that asks for training that is not available");
    on(convert, [=] { return config_convert_command(*args); });
  }

  void add_plot() {
    CLI::App* command = add(app_, "plot", "Plot loss, gradient norm, learning rate and speed of runs as SVG");
    auto plot = options<PlotOptions>();
    command->add_option("runs", plot->runs, "Run folders")->required();
    command->add_option("--output", plot->output, "SVG file");
    command->add_flag("--log", plot->logarithmic, "Logarithmic axes of loss and gradient norm");
    command->add_option("--x", plot->x, "What the x axis counts: steps, tokens or hours of training")
        ->check(CLI::IsMember({"steps", "tokens", "hours"}));
    on(command, [=] { return plot_command(*plot); });
  }

  void add_doctor() {
    CLI::App* command = add(app_, "doctor", "Check this machine and suggest remedies");
    auto run_folder = std::make_shared<std::filesystem::path>(".");
    command->add_option("--run-dir", *run_folder, "Folder where runs will be written");
    on(command, [=] { return doctor_command(*run_folder); });
  }

  void add_gpu_check() {
    CLI::App* command = add(app_, "gpu-check", "Check and measure a GPU");
    auto check = options<GpuCheckOptions>();
    command->add_option("--out", check->output, "Folder for the report and the rates");
    command->add_option("--only", check->only, "Stages to run, with commas; --list names them")
        ->delimiter(',')
        ->default_str("");
    command->add_flag("--list", check->list, "Print the stages and how long they take");
    command->add_option("--peer", check->peer,
                        "Script of the same models in PyTorch (tools/bench/gpu_peer.py)");
    add_choice(*command, "--device", check->device, {"cuda", "sim", "cpu"},
               "A GPU, or with small sizes what stands in for one in tests");
    command->footer(
        "Exit code: 0 if stages passed and none failed, 1 if one failed or none passed, 2 if the GPU cannot\n"
        "be used (without its plug-in), 3 if there is no driver of one. It needs no network and no sources.\n"
        "Nothing of it has run on a GPU yet (docs/devices.md).");
    on(command, [=, this] { return run_with_torch(*check, registry_); });
  }

  std::shared_ptr<Registry> registry_;
  CLI::App app_;
  std::function<int()> action_;
};

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto registry = std::make_shared<Registry>();
  prepare_torch_environment();  // a plug-in may load libtorch
  take_plugins(arguments, *registry);
  return CommandLine(registry).run(std::move(arguments));
}

}  // namespace stepforge
