// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/known_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/hub_name.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/catalog/peft_config.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/tensorfile/other_weights.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// A trained model needs a far smaller learning rate than a new one, and no long warm-up: these are common
/// values for full fine-tuning.
constexpr double kFineTuneRate = 2e-5;
constexpr int64_t kFineTuneWarmup = 20;
constexpr std::string_view kFineTuneKeys[] = {"optimizer.lr", "lr_scheduler.warmup_steps"};

/// Keys of [model] that are not part of a trained model.
bool is_own_choice(const std::string& key) {
  return key == "from" || key == "dropout" || key == "mtp_loss_weight";
}

std::string setting(std::string_view key, std::string_view text) {
  return format("{}={}", key, toml_string(text));
}

void add_architecture(Config config, std::vector<std::string>& settings) {
  const Field& model = *config_schema().find("model");
  void* owner = std::get<TableSlot>(model.slot(&config)).object;
  for (const Field& field : model.table->fields()) {
    if (is_own_choice(field.name)) continue;
    settings.push_back(format("model.{}={}", field.name, toml_value(field, field.slot(owner))));
  }
  const int64_t context = config.model.max_position;
  if (context < Config{}.training.seq_len) settings.push_back(format("training.seq_len={}", context));
}

void add_tokenizer(const KnownModel& known, std::vector<std::string>& settings) {
  if (holds_tokenizer(known.tokenizer_folder)) {
    settings.emplace_back("tokenizer.type=hf");
    settings.push_back(setting("tokenizer.path", known.tokenizer_folder.string()));
    return;
  }
  const bool is_bytes = known.config.tokenizer.type == TokenizerType::bytes;
  settings.emplace_back(is_bytes ? "tokenizer.type=bytes" : "tokenizer.type=hf");
  const fs::path chat_template = known.tokenizer_folder / kChatTemplateFile;
  if (fs::exists(chat_template)) settings.push_back(setting("data.chat_template", chat_template.string()));
}

std::string steps_text(const std::vector<CheckpointFolder>& checkpoints) {
  constexpr size_t kShown = 8;
  std::vector<std::string> steps;
  for (const CheckpointFolder& folder : checkpoints) {
    if (steps.size() < kShown) steps.push_back(std::to_string(folder.step));
  }
  if (steps.empty()) return "none";
  std::reverse(steps.begin(), steps.end());
  const size_t more = checkpoints.size() - steps.size();
  return (more > 0 ? format("{} earlier, ", more) : "") + join(steps, ", ");
}

/// The last step that a start of run.json has finished or saved.
int64_t reached_by(const Json& start) {
  return std::max(start.at("end_step").get<int64_t>(), start.value("saved_step", int64_t{0}));
}

/// Where the last start of a run has ended, if it went back behind `step`, which an earlier start had reached.
std::optional<int64_t> end_after_going_back(const fs::path& run, int64_t step) {
  try {
    const Json json = read_json_file(run / "run.json");
    const Json& starts = json.at("starts");
    if (starts.empty()) return std::nullopt;
    const size_t last = starts.size() - 1;
    bool had_reached = false;
    for (size_t i = 0; i < last; ++i) had_reached = had_reached || reached_by(starts[i]) >= step;
    const int64_t end = reached_by(starts.at(last));
    return had_reached && end < step ? std::optional(end) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // from an import, or damaged, which training reports
  }
}

/// Those of [adapter] that the adapter decides.
std::vector<std::string> settings_from_adapter(const fs::path& peft) {
  Config config;
  config.adapter = read_peft_config(read_json_file(peft), peft.string());
  const Field& adapter = *config_schema().find("adapter");
  void* owner = std::get<TableSlot>(adapter.slot(&config)).object;
  std::vector<std::string> settings;
  for (const Field& field : adapter.table->fields())
    if (field.name != "from" && field.name != "init" && field.name != "svd_iterations" &&
        field.name != "b_lr_ratio" && field.name != "experts")
      settings.push_back(format("adapter.{}={}", field.name, toml_value(field, field.slot(owner))));
  return settings;
}

/// How many of the multi-token prediction layers in config.json have weights: transformers keeps the number and leaves out
/// the weights.
int64_t stored_mtp_layers(const fs::path& folder, const ModelConfig& model) {
  if (!holds_hf_weights(folder)) return model.n_mtp_layers;
  const TensorFolder weights = open_hf_weights(folder);
  int64_t stored = 0;
  while (stored < model.n_mtp_layers &&
         weights.find(format("model.layers.{}.eh_proj.weight", model.n_layers + stored)) != nullptr)
    ++stored;
  return stored;
}

/// The type in which a model is published, as transformers finds it for dtype = "auto"; f32 if config.json does not say.
DType published_type(const fs::path& folder) {
  const Json config = read_json_file(folder / "config.json");
  for (const Json& section : {config, config.value("text_config", Json::object())}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (!section.is_object() || !section.contains(key) || !section[key].is_string()) continue;
      for (const DType dtype : {DType::bf16, DType::f16})
        if (section[key].get<std::string>().ends_with(torch_dtype_name(dtype))) return dtype;
      return DType::f32;
    }
  }
  return DType::f32;
}

}  // namespace

ModelKind model_kind(const fs::path& path) {
  if (has_manifest(path)) return ModelKind::checkpoint;
  if (fs::exists(path / "config.json")) return ModelKind::hf_folder;
  if (fs::exists(path / "config.toml")) return ModelKind::run;
  refuse_as_model(path);
}

void refuse_as_model(const fs::path& path) {
  const std::string advice = hub_advice(path, HubKind::model);
  if (!advice.empty()) throw UsageError(format("{} is not a model: {}", path.string(), advice));
  std::error_code failure;
  const bool is_folder = fs::is_directory(path, failure);
  if (const std::string other = other_weights_in(path); fs::exists(path, failure) && !other.empty())
    throw UsageError(format("{} {}", path.string(), other));
  if (const auto step = checkpoint_step(path.filename().string()); step && !fs::exists(path, failure)) {
    throw UsageError(format("there is no checkpoint of step {} in {}; available steps: {}", *step,
                            path.parent_path().string(), steps_text(list_checkpoints(path.parent_path()))));
  }
  if (is_folder && holds_hf_weights(path)) {
    throw UsageError(
        format("{} is not a model: it has weights, but no config.json; copy the model's config.json into it",
               path.string()));
  }
  const char* file = fs::exists(path, failure) && !is_folder ? "it is a file; name its folder; " : "";
  throw UsageError(format(
      "{} is not a model: {}expected a checkpoint (manifest.json), a run folder (config.toml) or a Hugging "
      "Face folder (config.json)",
      path.string(), file));
}

std::unique_ptr<Tokenizer> KnownModel::load_tokenizer() const {
  std::unique_ptr<Tokenizer> tokenizer;
  if (holds_tokenizer(tokenizer_folder))
    tokenizer = stepforge::load_tokenizer(tokenizer_folder);
  else if (config.tokenizer.type == TokenizerType::bytes)
    tokenizer = make_byte_tokenizer();
  if (tokenizer == nullptr || tokenizer_fingerprint.empty()) return tokenizer;
  if (tokenizer->fingerprint() != tokenizer_fingerprint) {
    throw UsageError(format(
        "the tokenizer in {} is not the one that {} was trained with (hash {}, there {}): its files were "
        "changed since; restore them",
        tokenizer_folder.string(), weights.string(), tokenizer->fingerprint(), tokenizer_fingerprint));
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> KnownModel::require_tokenizer() const {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer();
  if (tokenizer == nullptr) {
    throw UsageError(format("{} has no tokenizer: copy tokenizer.json or tokenizer.model into {}",
                            folder.string(), tokenizer_folder.string()));
  }
  const int64_t rows = config.model.vocab_size;
  if (rows > 0 && tokenizer->vocab_size() > rows) {
    throw UsageError(
        format("the tokenizer in {} has {} tokens, and the model an embedding of {}: it belongs to another "
               "model; copy the right one there, or grow the model with model.from and model.vocab_size={}",
               tokenizer_folder.string(), tokenizer->vocab_size(), rows, tokenizer->vocab_size()));
  }
  return tokenizer;
}

KnownModel known_checkpoint(const fs::path& step_folder, std::shared_ptr<const Registry> plugins) {
  const fs::path path = step_folder / kStateFileName;
  const Json state = read_json_file(path);
  KnownModel known;
  const JsonReader reader(state, path.string());
  known.config = parse_stored_config(reader["config"].text(), path.string(), std::move(plugins));
  known.tokenizer_fingerprint = reader.text_or("tokenizer", "");
  known.weights = step_folder;
  // The run folder may have been moved, so its files are found relative to the checkpoint.
  known.folder = fs::absolute(step_folder).lexically_normal().parent_path().parent_path();
  known.config.run_dir = known.folder.string();
  known.tokenizer_folder = run_tokenizer_folder(known.config);
  return known;
}

KnownModel known_hf_folder(const fs::path& folder, const std::shared_ptr<const Registry>& plugins) {
  if (!fs::exists(folder / "config.json")) {
    if (model_kind(folder) == ModelKind::run) {
      throw UsageError(format("{} is a run folder: name one of its checkpoints, {}/step-N, or use model.from",
                              folder.string(), checkpoint_folder_of_run(folder).string()));
    }
  }
  KnownModel known;
  if (plugins != nullptr) {
    use_plugins(known.config, make_config_shape(plugins));
    list_plugins(known.config);
  }
  known.config.model = hf_model_config(folder, plugins);
  if (known.config.model.n_mtp_layers > 0)
    known.config.model.n_mtp_layers = stored_mtp_layers(folder, known.config.model);
  known.config.tokenizer.type = TokenizerType::hf;
  known.config.checkpoint.export_dtype = published_type(folder);
  known.weights = known.folder = known.tokenizer_folder = folder;
  return known;
}

KnownModel known_model(const fs::path& path, const std::shared_ptr<const Registry>& plugins) {
  switch (model_kind(path)) {
    case ModelKind::checkpoint:
      return known_checkpoint(path, plugins);
    case ModelKind::hf_folder:
      return known_hf_folder(path, plugins);
    case ModelKind::run:
      break;
  }
  const std::vector<CheckpointFolder> found = list_checkpoints(checkpoint_folder_of_run(path));
  if (found.empty()) throw UsageError(format("the run {} has no complete checkpoint yet", path.string()));
  return known_checkpoint(found.front().path, plugins);
}

fs::path best_checkpoint(const fs::path& run) {
  const std::vector<CheckpointFolder> found = list_checkpoints(checkpoint_folder_of_run(run));
  if (found.empty()) throw UsageError(format("the run {} has no complete checkpoint yet", run.string()));
  const fs::path file = found.front().path / kStateFileName;
  const Json state = read_json_file(file);
  const auto ranks = state.find("callbacks");
  if (ranks == state.end() || !ranks->is_array() || ranks->empty()) return found.front().path;
  const JsonReader rank(ranks->front(), file.string(), "callbacks[0]");
  const int64_t step = rank.has("best") ? rank["best"]["step"].integer(-1) : -1;
  const auto best = std::ranges::find(found, step, &CheckpointFolder::step);
  return best == found.end() ? found.front().path : best->path;
}

std::string why_step(const fs::path& run, int64_t step) {
  const std::vector<CheckpointFolder> there = list_checkpoints(checkpoint_folder_of_run(run));
  std::string text = there.size() == 1 ? format("step {}, the only checkpoint", step)
                                       : format("step {}, the newest of {}", step, steps_text(there));
  const std::optional<int64_t> end = end_after_going_back(run, step);
  if (!end) return text;
  text += format("; the run has gone back since then, and its last start ended at step {}", *end);
  const auto own = std::find_if(there.begin(), there.end(),
                                [&](const CheckpointFolder& folder) { return folder.step <= *end; });
  if (own != there.end()) text += format(": for its weights, name {}", own->path.string());
  return text;
}

fs::path checkpoint_folder_of_run(const fs::path& folder) {
  constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;
  const fs::path file = folder / "config.toml";
  return folder / parse_stored_config(read_file(file, kMaxConfigBytes), file.string()).checkpoint.folder;
}

std::string model_summary(const ModelConfig& model) {
  std::string text =
      format("{}, {} layers, dim {}, {} heads ({} of keys), ffn_dim {}, vocabulary {}, context {}",
             model.family, model.n_layers, model.dim, model.n_heads, model.n_kv_heads, model.ffn_dim,
             with_thousands(model.vocab_size), with_thousands(model.max_position));
  if (model.n_experts > 0) text += format(", {} of {} experts", model.experts_per_token, model.n_experts);
  return text;
}

bool is_fine_tune_default(std::string_view setting) {
  return std::any_of(std::begin(kFineTuneKeys), std::end(kFineTuneKeys),
                     [&](std::string_view key) { return setting.starts_with(key); });
}

void use_fine_tune_defaults(Config& config) {
  config.optimizer.lr = kFineTuneRate;
  config.lr_scheduler.warmup_steps = kFineTuneWarmup;
}

std::vector<std::string> settings_from_model(const std::string& path,
                                             const std::shared_ptr<const Registry>& plugins) {
  if (fs::path(path).filename() == kPeftConfigFile) return settings_from_adapter(path);
  const KnownModel known = known_model(path, plugins);
  family_of(known.config.model);
  std::vector<std::string> settings;
  add_architecture(known.config, settings);
  add_tokenizer(known, settings);
  settings.push_back(setting("checkpoint.initial_load_path", known.weights.string()));
  if (const DType dtype = known.config.checkpoint.export_dtype; dtype != DType::f32)
    settings.push_back(format("checkpoint.export_dtype={}", choice_name(dtype)));
  settings.push_back(format("{}={}", kFineTuneKeys[0], kFineTuneRate));
  settings.push_back(format("{}={}", kFineTuneKeys[1], kFineTuneWarmup));
  return settings;
}

}  // namespace stepforge
