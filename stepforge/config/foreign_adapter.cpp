// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_adapter.h"

#include <algorithm>
#include <array>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

std::string texts(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  quoted.reserve(names.size());
  for (const std::string& name : names) quoted.push_back(toml_string(name));
  return format("[{}]", join(quoted, ", "));
}

/// Names of modules. A text with signs of a regular expression is one.
std::vector<std::string> modules_in(const ConfigValue& value) {
  const bool is_expression =
      value.kind == ConfigValue::Kind::text && value.text.find_first_of("()[]|\\*+?{") != std::string::npos;
  std::vector<std::string> names = is_expression ? std::vector<std::string>{value.text} : names_in(value);
  for (std::string& name : names)
    if (name == "all" || name == "all-linear") name = "all-linear";
  return names;
}

void convert_number(ForeignConversion& conversion, std::string_view key, std::string_view ours,
                    double fallback, std::string_view usual) {
  if (const auto value = key.empty() ? std::nullopt : conversion.number(key))
    return conversion.set(key, ours, number_text(*value));
  const std::string text = number_text(fallback);
  if (text != usual) conversion.set_default(ours, text);
}

void convert_targets(ForeignConversion& conversion, const ForeignAdapter& adapter) {
  std::vector<std::string> names;
  std::string_view from;
  if (!adapter.all_linear.empty() && conversion.is_true(adapter.all_linear)) {
    names.emplace_back("all-linear");
    from = adapter.all_linear;
  }
  if (!adapter.targets.empty() && conversion.has(adapter.targets)) {
    for (std::string& name : modules_in(*conversion.find(adapter.targets))) names.push_back(std::move(name));
    from = adapter.targets;
  }
  if (names.empty()) return conversion.set_default("adapter.targets", adapter.default_targets);
  const bool all = names.front() == "all-linear";
  conversion.set(from, "adapter.targets", texts(names), all ? "without experts and routers" : "");
}

void convert_pissa(ForeignConversion& conversion, const ForeignAdapter& adapter) {
  if (adapter.pissa.empty()) return;
  if (!conversion.is_true(adapter.pissa)) {
    if (conversion.has(adapter.pissa_iterations))
      conversion.need_nothing(adapter.pissa_iterations, kOnlyWithPissa);
    return;
  }
  conversion.set(adapter.pissa, "adapter.init", "\"pissa\"");
  const auto iterations = conversion.number(adapter.pissa_iterations);
  const double count = iterations.value_or(static_cast<double>(adapter.default_pissa_iterations));
  conversion.set(iterations ? adapter.pissa_iterations : "", "adapter.svd_iterations",
                 number_text(std::max(count, 0.0)));
}

/// init_lora_weights: true, "gaussian", "pissa", "pissa_niter_16".
void convert_init(ForeignConversion& conversion, std::string_view key) {
  constexpr std::string_view kIterations = "pissa_niter_";
  if (key.empty() || !conversion.has(key)) return;
  const ConfigValue& value = *conversion.find(key);
  const std::string init = lower_text(value);
  if (init == "gaussian") return conversion.set(key, "adapter.init", "\"gaussian\"");
  if (init == "pissa") return conversion.set(key, "adapter.init", "\"pissa\"");
  if (init.starts_with(kIterations)) {
    conversion.set(key, "adapter.init", "\"pissa\"");
    return conversion.set(key, "adapter.svd_iterations", init.substr(kIterations.size()));
  }
  if (!is_off(value, "true")) conversion.lose(key, kOnlyInitOfLora);
}

}  // namespace

void convert_lora(ForeignConversion& conversion, std::string_view key, const ForeignAdapter& adapter) {
  conversion.set(key, "adapter.type", "\"lora\"");
  if (!adapter.dora.empty() && conversion.is_true(adapter.dora))
    conversion.set(adapter.dora, "adapter.type", "\"dora\"");
  const std::string from = adapter.from.empty() ? "" : conversion.text(adapter.from);
  if (!from.empty()) {
    conversion.set(adapter.from, "adapter.from", toml_string(from), "a folder of PEFT on this machine");
    for (const std::string_view of_folder :
         {adapter.rank, adapter.alpha, adapter.dropout, adapter.targets, adapter.all_linear,
          adapter.also_train, adapter.rslora, adapter.pissa, adapter.pissa_iterations, adapter.init})
      if (!of_folder.empty() && conversion.has(of_folder))
        conversion.need_nothing(of_folder, "the folder of the adapter says it");
  } else {
    const double rank = static_cast<double>(adapter.default_rank);
    convert_number(conversion, adapter.rank, "adapter.rank", rank, "16");
    const double alpha = adapter.default_alpha > 0
                             ? adapter.default_alpha
                             : 2.0 * static_cast<double>(conversion.config().adapter.rank);
    convert_number(conversion, adapter.alpha, "adapter.alpha", alpha, "32");
    convert_number(conversion, adapter.dropout, "adapter.dropout", adapter.default_dropout, "0");
    convert_targets(conversion, adapter);
    if (!adapter.also_train.empty() && conversion.has(adapter.also_train))
      conversion.set(adapter.also_train, "adapter.also_train",
                     texts(modules_in(*conversion.find(adapter.also_train))));
    if (!adapter.rslora.empty() && conversion.is_true(adapter.rslora))
      conversion.set(adapter.rslora, "adapter.rslora", "true");
    convert_pissa(conversion, adapter);
    convert_init(conversion, adapter.init);
  }
  if (!adapter.layers.empty() && conversion.has(adapter.layers))
    conversion.set(adapter.layers, "adapter.layers", toml_value(*conversion.find(adapter.layers)));
  if (!adapter.b_lr_ratio.empty())
    if (const auto ratio = conversion.number(adapter.b_lr_ratio))
      conversion.set(adapter.b_lr_ratio, "adapter.b_lr_ratio", toml_float(*ratio));
}

void need_no_lora(ForeignConversion& conversion, const ForeignAdapter& adapter, std::string_view why) {
  for (const std::string_view key :
       {adapter.rank, adapter.alpha, adapter.dropout, adapter.targets, adapter.all_linear, adapter.also_train,
        adapter.layers, adapter.rslora, adapter.dora, adapter.pissa, adapter.pissa_iterations, adapter.init,
        adapter.b_lr_ratio})
    if (!key.empty() && conversion.has(key)) conversion.need_nothing(key, why);
}

void convert_quantization(ForeignConversion& conversion, std::string_view key, int64_t bits) {
  const bool has_adapter = conversion.config().adapter.enabled();
  if (bits == 0) {
    if (has_adapter && conversion.config().precision.compute == DType::bf16)
      conversion.set("", "model.frozen_dtype", "\"bf16\"", "their products are computed in bf16 anyway");
    return;
  }
  if (!has_adapter) return conversion.refuse(key, kNoQuantization);
  if (bits == 4) return conversion.set(key, "model.frozen_dtype", "\"nf4\"");
  if (bits == 8) return conversion.set(key, "model.frozen_dtype", "\"int8\"", kOtherEightBits);
  conversion.refuse(key, "model.frozen_dtype has \"nf4\", of 4 bits, and \"int8\" for frozen weights");
}

void convert_double_quantization(ForeignConversion& conversion, std::string_view key, bool fallback) {
  const bool is_nf4 = storage_of(conversion.config().model.frozen_dtype).code == WeightCode::nf4;
  if (!conversion.has(key)) {
    if (is_nf4 && fallback) conversion.set_default("model.double_quantization", "true");
  } else if (!is_nf4) {
    conversion.need_nothing(key, "read only with weights of 4 bits");
  } else if (conversion.is_true(key)) {
    conversion.set(key, "model.double_quantization", "true");
  }
}

void convert_quantization_type(ForeignConversion& conversion, std::string_view key) {
  const std::string type = conversion.text(key);
  if (type.empty() || type == "nf4") return;
  conversion.lose(key, "4-bit numbers of frozen weights are nf4");
}

}  // namespace stepforge
