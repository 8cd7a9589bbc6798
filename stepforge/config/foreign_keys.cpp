// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_keys.h"

#include <algorithm>
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/schema.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr auto kCommonWords = std::to_array<ForeignKey>({
    {"data.path", "data.sources", kOneTablePerSource, read},
    {"tokenizer.name", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.path", "model.from", kModelFolder, model},
    {"load_from", "model.from", kModelFolder, model},
    {"precision.dtype", "precision.compute"},
    {"training.dtype", "precision.compute", "weights are always kept in fp32", lost},
    {"training.compile", "", kFusedKernels, needless},
    {"lr", "optimizer.lr"},
    {"betas", "optimizer.beta1", "and optimizer.beta2", read},
    {"batch_size", "training.local_batch_size", "rows per micro-batch and rank"},
    {"max_seq_len", "training.seq_len"},
    {"sequence_length", "training.seq_len"},
    {"grad_clip", "training.max_norm"},
    {"dtype", "precision.compute"},
    {"compile", "", kFusedKernels, needless},
    {"tp", "parallelism.tensor_parallel_degree"},
    {"pp", "parallelism.pipeline_parallel_degree"},
    {"cp", "parallelism.context_parallel_degree"},
    {"ep", "parallelism.expert_parallel_degree"},
    {"dp", "parallelism.data_parallel_shard_degree"},
    {"world_size", "", "not a configuration key: use `stepforge launch --nproc N`", lost},
    {"use_lora", "adapter.type", "\"lora\"", when_true, "\"lora\""},
    {"lora.rank", "adapter.rank"},
    {"save_best", "checkpoint.keep_best"},
    {"early_stopping_patience", "training.early_stopping.patience"},
    {"wandb_project", "", kCurvesElsewhere, lost},
    {"activation_checkpoint.enable", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"debug.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     lost},
    // config.json of Hugging Face
    {"hidden_size", "model.dim"},
    {"num_hidden_layers", "model.n_layers"},
    {"num_nextn_predict_layers", "model.n_mtp_layers"},
    {"num_attention_heads", "model.n_heads"},
    {"num_key_value_heads", "model.n_kv_heads"},
    {"intermediate_size", "model.ffn_dim"},
    {"num_experts", "model.n_experts"},
    {"num_local_experts", "model.n_experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_intermediate_size", "model.moe_ffn_dim"},
    {"shared_expert_intermediate_size", "model.shared_expert_dim"},
    {"rms_norm_eps", "model.norm_eps"},
    {"max_position_embeddings", "model.max_position"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"model_type", "model.family"},
});

const ForeignKey* find_in(std::span<const ForeignKey> keys, std::string_view name) {
  const auto found = std::ranges::find_if(keys, [&](const ForeignKey& entry) {
    if (!entry.name.ends_with('*')) return entry.name == name;
    return name.starts_with(entry.name.substr(0, entry.name.size() - 1));
  });
  return found == keys.end() ? nullptr : &*found;
}

/// Our own suggestion is better for a key that only lacks its section.
bool is_field_of_a_section(std::string_view key) {
  return std::ranges::any_of(config_schema().fields(), [&](const Field& field) {
    return field.type == FieldType::table && field.table->find(key) != nullptr;
  });
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

const ForeignKey* ForeignTrainer::find(std::string_view key) const {
  const ForeignKey* found = find_in(keys, key);
  return found != nullptr ? found : find_in(inherited, key);
}

std::span<const ForeignTrainer* const> foreign_trainers() {
  static const auto all = std::to_array<const ForeignTrainer*>(
      {&torchtitan_trainer(), &hugging_face_trainer(), &trl_trainer(), &llama_factory_trainer(),
       &axolotl_trainer(), &mindspeed_trainer(), &veomni_trainer(), &litgpt_trainer(), &nanogpt_trainer(),
       &megatron_trainer(), &xtuner_trainer()});
  return all;
}

const ForeignTrainer* find_foreign_trainer(std::string_view name) {
  for (const ForeignTrainer* trainer : foreign_trainers())
    if (trainer->name == name) return trainer;
  return nullptr;
}

std::span<const ForeignKey> common_foreign_words() {
  return kCommonWords;
}

const ForeignKey* find_foreign_key(std::string_view name) {
  std::string key(name.starts_with("--") ? name.substr(2) : name);
  std::ranges::replace(key, '-', '_');
  const auto find_anywhere = [](std::string_view wanted) -> const ForeignKey* {
    if (const ForeignKey* found = find_in(kCommonWords, wanted)) return found;
    for (const ForeignTrainer* trainer : foreign_trainers())
      if (const ForeignKey* found = trainer->find(wanted)) return found;
    return nullptr;
  };
  if (const ForeignKey* found = find_anywhere(key)) return found;
  const std::string_view last = last_part(key);
  if (const ForeignKey* found = find_anywhere(last)) return found;
  // Words such as "type" and "path" mean too much.
  if (key != last || key.size() <= 4 || is_field_of_a_section(key)) return nullptr;
  for (const ForeignTrainer* trainer : foreign_trainers())
    for (const std::span<const ForeignKey> keys : {trainer->keys, trainer->inherited})
      for (const ForeignKey& entry : keys)
        if (entry.name.size() > last.size() && last_part(entry.name) == last) return &entry;
  return nullptr;
}

std::string foreign_remedy(const ForeignKey& key) {
  if (key.ours.empty()) return std::string(key.note);
  return format("use {}{}", key.ours, key.note.empty() ? "" : format(" ({})", key.note));
}

std::string foreign_hint(std::string_view name) {
  const ForeignKey* key = find_foreign_key(name);
  return key == nullptr ? "" : foreign_remedy(*key);
}

}  // namespace stepforge
