// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/known_model.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// A trained model needs a far smaller learning rate than a new one, and no long warm-up: these are common
/// values for full fine-tuning.
constexpr const char* kFineTuneSettings[] = {"optimizer.lr=2e-5", "lr_scheduler.warmup_steps=20"};

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

/// Of the layers of multi-token prediction in config.json, those whose weights are there: transformers keeps the number and
/// leaves out the weights.
int64_t stored_mtp_layers(const fs::path& folder, const ModelConfig& model) {
  if (!fs::exists(folder / kIndexFileName) && !fs::exists(folder / kSingleFileName))
    return model.n_mtp_layers;
  const TensorFolder weights = open_hf_weights(folder);
  int64_t stored = 0;
  while (stored < model.n_mtp_layers &&
         weights.find(format("model.layers.{}.eh_proj.weight", model.n_layers + stored)) != nullptr)
    ++stored;
  return stored;
}

}  // namespace

ModelKind model_kind(const fs::path& path) {
  if (fs::exists(path / kManifestFileName)) return ModelKind::checkpoint;
  if (fs::exists(path / "config.json")) return ModelKind::hf_folder;
  if (fs::exists(path / "config.toml")) return ModelKind::run;
  throw UsageError(format(
      "{} is not a model: expected a checkpoint (manifest.json), a run folder (config.toml) or a Hugging "
      "Face folder (config.json)",
      path.string()));
}

std::unique_ptr<Tokenizer> KnownModel::load_tokenizer() const {
  if (holds_tokenizer(tokenizer_folder)) return stepforge::load_tokenizer(tokenizer_folder);
  return config.tokenizer.type == TokenizerType::bytes ? make_byte_tokenizer() : nullptr;
}

std::unique_ptr<Tokenizer> KnownModel::require_tokenizer() const {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer();
  if (tokenizer == nullptr) {
    throw UsageError(format("{} has no tokenizer: copy tokenizer.json or tokenizer.model into {}",
                            folder.string(), tokenizer_folder.string()));
  }
  return tokenizer;
}

KnownModel known_checkpoint(const fs::path& step_folder, std::shared_ptr<const Registry> plugins) {
  const fs::path path = step_folder / kStateFileName;
  const Json state = read_json_file(path);
  KnownModel known;
  known.config = parse_stored_config(JsonReader(state, path.string())["config"].text(), path.string(),
                                     std::move(plugins));
  known.weights = step_folder;
  // The run folder may have been moved, so its files are found relative to the checkpoint.
  known.folder = fs::absolute(step_folder).lexically_normal().parent_path().parent_path();
  known.config.run_dir = known.folder.string();
  known.tokenizer_folder = run_tokenizer_folder(known.config);
  return known;
}

KnownModel known_hf_folder(const fs::path& folder, const std::shared_ptr<const Registry>& plugins) {
  KnownModel known;
  if (plugins != nullptr) {
    use_plugins(known.config, make_config_shape(plugins));
    list_plugins(known.config);
  }
  known.config.model = hf_model_config(folder, plugins);
  if (known.config.model.n_mtp_layers > 0)
    known.config.model.n_mtp_layers = stored_mtp_layers(folder, known.config.model);
  known.config.tokenizer.type = TokenizerType::hf;
  known.weights = known.folder = known.tokenizer_folder = folder;
  return known;
}

fs::path checkpoint_folder_of_run(const fs::path& folder) {
  constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;
  const fs::path file = folder / "config.toml";
  return folder / parse_stored_config(read_file(file, kMaxConfigBytes), file.string()).checkpoint.folder;
}

bool is_fine_tune_default(std::string_view setting) {
  return std::any_of(std::begin(kFineTuneSettings), std::end(kFineTuneSettings), [&](std::string_view known) {
    return setting.starts_with(known.substr(0, known.find('=')));
  });
}

std::vector<std::string> settings_from_model(const std::string& path,
                                             const std::shared_ptr<const Registry>& plugins) {
  const KnownModel known = known_model(path, plugins);
  family_of(known.config.model);
  std::vector<std::string> settings;
  add_architecture(known.config, settings);
  add_tokenizer(known, settings);
  settings.push_back(setting("checkpoint.initial_load_path", known.weights.string()));
  settings.insert(settings.end(), std::begin(kFineTuneSettings), std::end(kFineTuneSettings));
  return settings;
}

}  // namespace stepforge
