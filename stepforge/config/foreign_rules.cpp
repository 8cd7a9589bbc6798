// SPDX-License-Identifier: Apache-2.0
// Translation rules that several trainers share, many of them about several keys.
#include <algorithm>
#include <array>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_preference.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

std::string whole(double number) {
  return format("{}", std::llround(number));
}

}  // namespace

void convert_length(ForeignConversion& conversion, std::string_view steps, std::string_view epochs,
                    int default_epochs) {
  const auto n_steps = conversion.number(steps);
  const auto n_epochs = conversion.number(epochs);
  if (n_steps.value_or(0) > 0) {
    conversion.set(steps, "training.steps", whole(*n_steps));
    if (n_epochs) conversion.need_nothing(epochs, format("{} is set, and wins there too", steps));
    return;
  }
  if (n_steps) conversion.need_nothing(steps, format("{} sets the length of the run", epochs));
  if (!n_epochs) {
    if (default_epochs > 0) conversion.set_default("training.epochs", format("{}", default_epochs));
  } else if (*n_epochs != std::floor(*n_epochs)) {
    conversion.lose(epochs, "training.epochs is a whole number; set training.steps instead");
  } else {
    conversion.set(epochs, "training.epochs", whole(*n_epochs));
  }
}

void convert_warmup(ForeignConversion& conversion, std::string_view steps, std::string_view ratio) {
  const auto n_steps = conversion.number(steps);
  const auto share = conversion.number(ratio);
  if (conversion.is_set("lr_scheduler.warmup_steps")) {
    for (const std::string_view key : {steps, ratio})
      if (conversion.has(key)) conversion.need_nothing(key, "a constant schedule has no warm-up there");
    return;
  }
  if (n_steps && *n_steps > 0 && *n_steps < 1)
    return conversion.set(steps, "lr_scheduler.warmup_ratio", toml_float(*n_steps));
  if (n_steps && (*n_steps > 0 || !share)) {
    conversion.set(steps, "lr_scheduler.warmup_steps", whole(*n_steps));
    if (share) conversion.need_nothing(ratio, format("{} is set, and wins there too", steps));
    return;
  }
  if (!share) return conversion.set_default("lr_scheduler.warmup_steps", "0");
  if (*share == 0) return conversion.set(ratio, "lr_scheduler.warmup_steps", "0");
  conversion.set(ratio, "lr_scheduler.warmup_ratio", toml_float(*share));
}

void convert_batch(ForeignConversion& conversion, std::string_view rows, int64_t default_rows,
                   std::string_view accumulation, int64_t default_accumulation) {
  const auto n_rows = conversion.number(rows);
  if (n_rows) {
    conversion.set(rows, "training.local_batch_size", whole(*n_rows));
  } else {
    conversion.set_default("training.local_batch_size", format("{}", default_rows));
  }
  const auto given = conversion.number(accumulation);
  const int64_t micro_batches = given ? std::llround(*given) : default_accumulation;
  // Without accumulation our default is the same: one micro-batch of each rank.
  if (micro_batches <= 1) return;
  const int64_t ranks = conversion.data_ranks();
  const std::string about =
      conversion.ranks() > 0
          ? format("{} rows x {} micro-batches x {} data-parallel ranks",
                   conversion.config().training.local_batch_size, micro_batches, ranks)
          : format("{} rows x {} micro-batches, for 1 data-parallel rank; convert with --ranks N for N",
                   conversion.config().training.local_batch_size, micro_batches);
  conversion.set(accumulation, "training.global_batch_size",
                 format("{}", conversion.config().training.local_batch_size * micro_batches * ranks), about);
}

void convert_min_lr(ForeignConversion& conversion, std::string_view min_lr) {
  const auto rate = conversion.number(min_lr);
  if (!rate) return;
  const Config& ours = conversion.config();
  if (ours.lr_scheduler.decay_type == "constant")
    return conversion.need_nothing(min_lr, "a constant rate has no end");
  if (!conversion.is_set("optimizer.lr") || ours.optimizer.lr <= 0)
    return conversion.lose(min_lr, "set lr_scheduler.min_lr_factor to the fraction of the peak rate");
  // 1e-6 / 1e-5 is a tenth, in spite of rounding.
  constexpr double kDigits = 1e12;
  conversion.set(min_lr, "lr_scheduler.min_lr_factor",
                 toml_float(std::round(*rate / ours.optimizer.lr * kDigits) / kDigits));
}

void convert_betas(ForeignConversion& conversion, std::string_view betas) {
  const ConfigValue* value = conversion.find(betas);
  if (value == nullptr) return;
  if (value->list.size() != 2)
    return conversion.lose(betas, "expected two numbers; set optimizer.beta1 and beta2");
  conversion.set(betas, "optimizer.beta1", toml_value(value->list[0]));
  conversion.set(betas, "optimizer.beta2", toml_value(value->list[1]));
}

void convert_kept(ForeignConversion& conversion, std::string_view kept) {
  const auto number = conversion.number(kept);
  if (!number) return;
  if (*number == 1) return conversion.set(kept, "checkpoint.keep_latest_k", "2", "at least 2 are kept");
  conversion.set(kept, "checkpoint.keep_latest_k", whole(std::max(*number, 0.0)));
}

void convert_strategies(ForeignConversion& conversion) {
  const ConfigValue* save = conversion.find("save_strategy");
  const std::string saves = save == nullptr ? "steps" : save->text.empty() ? "no" : lower_text(*save);
  if (saves == "no") {
    conversion.set("save_strategy", "checkpoint.enable", "false");
    if (conversion.has("save_steps")) conversion.need_nothing("save_steps", "save_strategy is no");
  } else if (saves == "steps") {
    const auto steps = conversion.number("save_steps");
    if (steps && *steps < 1) {
      conversion.lose("save_steps", "a share of the run; set checkpoint.interval to a number of steps");
    } else if (steps) {
      conversion.set("save_steps", "checkpoint.interval", whole(*steps));
    }
  } else {
    conversion.lose("save_strategy", "only \"steps\" and \"no\" are available; set checkpoint.interval");
    if (conversion.has("save_steps")) conversion.need_nothing("save_steps", "save_strategy is not steps");
  }
  const std::string_view key = conversion.has("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
  const ConfigValue* value = conversion.find(key);
  const std::string evaluates =
      value == nullptr || (value->kind == ConfigValue::Kind::boolean && !value->boolean) ? "no"
                                                                                         : lower_text(*value);
  if (evaluates != "steps") {
    if (conversion.has("eval_steps"))
      conversion.need_nothing("eval_steps", format("{} is {}", key, evaluates));
    if (evaluates != "no")
      conversion.lose(key,
                      "only \"steps\" and \"no\" are available; set validation.freq to a number of steps");
    return;
  }
  const auto steps = conversion.number("eval_steps");
  if (steps && *steps < 1)
    return conversion.lose("eval_steps", "a share of the run; set validation.freq to a number of steps");
  const double freq = steps.value_or(static_cast<double>(conversion.config().metrics.log_freq));
  conversion.set(steps ? "eval_steps" : key, "validation.freq", whole(freq));
}

void convert_paths(ForeignConversion& conversion, std::string_view key, std::string_view ours,
                   std::string_view options) {
  const ConfigValue* value = conversion.find(key);
  if (value == nullptr) return;
  std::vector<std::string> sources;
  for (const std::string& path : names_in(*value))
    sources.push_back(format("path = {}{}", toml_string(path), options));
  conversion.set_sources(key, ours, sources, /*are_joined=*/true);
}

void convert_datasets(ForeignConversion& conversion, std::string_view prefix, bool are_pairs) {
  const auto key = [&](std::string_view name) { return format("{}{}", prefix, name); };
  const std::string folder = conversion.text(key("dataset_dir"));
  const std::string file = (folder.empty() ? "data" : folder) + "/dataset_info.json";
  std::string_view loss_on;
  if (are_pairs) {
    need_none_of(conversion, {key("mask_history"), key("train_on_prompt")}, kAnswersCount);
  } else {
    if (conversion.is_true(key("mask_history"))) loss_on = ", loss_on = \"last\"";
    if (conversion.is_true(key("train_on_prompt"))) loss_on = ", loss_on = \"all\"";
  }
  const std::string strategy = conversion.text(key("mix_strategy"));
  const bool are_joined = strategy.empty() || strategy == "concat";
  const ConfigValue* shares = conversion.find(key("interleave_probs"));
  const std::vector<std::string> weights = shares == nullptr || shares->kind == ConfigValue::Kind::list
                                               ? std::vector<std::string>()
                                               : names_in(*shares);
  for (const std::string_view name : {"dataset", "eval_dataset"}) {
    const ConfigValue* value = conversion.find(key(name));
    if (value == nullptr) continue;
    std::vector<std::string> sources;
    const std::vector<std::string> names = names_in(*value);
    for (size_t i = 0; i < names.size(); ++i) {
      std::string source =
          format("path = {}, dataset = {}{}", toml_string(file), toml_string(names[i]), loss_on);
      if (!are_joined && shares != nullptr && name == "dataset") {
        if (i < shares->list.size()) source += format(", weight = {}", toml_value(shares->list[i]));
        if (i < weights.size()) source += format(", weight = {}", weights[i]);
      }
      sources.push_back(source);
    }
    conversion.set_sources(key(name), name == "dataset" ? "data.sources" : "data.validation", sources,
                           are_joined);
  }
}

void convert_template(ForeignConversion& conversion, std::string_view key) {
  const std::string name = conversion.text(key);
  if (name.empty()) return;
  if (name == "default" || name == "tokenizer_default" || name == "empty")
    return conversion.need_nothing(key, "the template beside the tokenizer is used");
  for (const std::string_view ours : {"chatml", "llama3", "gemma", "mistral", "qwen", "deepseek", "alpaca"})
    if (name == ours) return conversion.set(key, "data.chat_template", toml_string(ours));
  conversion.lose(key,
                  "the template beside the tokenizer is used; data.chat_template names another one, such as "
                  "\"chatml\" or a Jinja file");
}

}  // namespace stepforge
