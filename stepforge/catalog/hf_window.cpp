// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_window.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/hf_fields.h"

namespace stepforge {

namespace {

constexpr std::string_view kLayerTypes = "layer_types";

/// Whether "use_sliding_window" decides if there is a window.
bool is_switchable(const ModelFamily& family) {
  return find_hf_field(hf_fields(family), "use_sliding_window")->accepted.empty();
}

/// The type of attention of each layer, if the model has a window.
std::vector<AttentionKind> layer_kinds(const JsonReader& reader, const ModelFamily& family,
                                       const ModelConfig& model) {
  std::vector<AttentionKind> kinds;
  const auto add = [&](bool slides) {
    kinds.push_back(slides ? AttentionKind::sliding_attention : AttentionKind::full_attention);
  };
  if (reader.has(kLayerTypes) && has_setting(family, kLayerTypes)) {
    const JsonReader list = reader[kLayerTypes];
    if (static_cast<int64_t>(list.size()) != model.n_layers)
      list.refuse(format("must have num_hidden_layers = {} elements", model.n_layers));
    for (size_t layer = 0; layer < list.size(); ++layer) {
      const std::string kind = list.at(layer).text();
      const bool slides = kind == choice_name(AttentionKind::sliding_attention);
      if (!slides && kind != choice_name(AttentionKind::full_attention))
        list.at(layer).refuse("only \"full_attention\" and \"sliding_attention\" are supported");
      add(slides);
    }
    return kinds;
  }
  const int64_t every = reader.has("sliding_window_pattern") ? reader["sliding_window_pattern"].integer(1)
                                                             : family.hf_full_every;
  const int64_t first = is_switchable(family) ? reader.integer_or("max_window_layers", 0, 0) : 0;
  for (int64_t layer = 0; layer < model.n_layers; ++layer)
    add(every > 0 ? (layer + 1) % every != 0 : layer >= first);
  return kinds;
}

/// The shortest list that gives `kinds` if it is repeated; empty if all layers slide.
std::vector<AttentionKind> repeated_part(const std::vector<AttentionKind>& kinds) {
  if (std::ranges::count(kinds, AttentionKind::full_attention) == 0) return {};
  for (size_t period = 1;; ++period) {
    bool repeats = true;
    for (size_t i = period; i < kinds.size(); ++i) repeats = repeats && kinds[i] == kinds[i - period];
    if (repeats) return {kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(period)};
  }
}

}  // namespace

void read_window(const JsonReader& reader, const ModelFamily& family, ModelConfig& model) {
  if (!has_setting(family, "sliding_window")) return;
  const std::vector<AttentionKind> kinds = layer_kinds(reader, family, model);
  const bool slides = std::ranges::count(kinds, AttentionKind::sliding_attention) > 0;
  if (is_switchable(family) && !reader.boolean_or("use_sliding_window", false)) {
    if (slides && reader.has(kLayerTypes))
      reader.refuse(kLayerTypes, "layers with a window need use_sliding_window = true");
    model.sliding_window = 0;
  } else if (slides && model.sliding_window == 0 && has_setting(family, kLayerTypes)) {
    reader.refuse("sliding_window", "layers of the type sliding_attention need one");
  }
  if (!slides) model.sliding_window = 0;
  model.layer_types = model.sliding_window > 0 ? repeated_part(kinds) : std::vector<AttentionKind>();
  if (model.sliding_window == 0) model.rope_local_theta = 0.0;
}

void write_window(const ModelConfig& model, const ModelFamily& family, Json& config) {
  const std::vector<AttentionKind> kinds = attention_kinds(model);
  if (has_setting(family, kLayerTypes)) {
    Json list = Json::array();
    for (const AttentionKind kind : kinds) list.push_back(choice_name(kind));
    config[std::string(kLayerTypes)] = std::move(list);
  }
  // transformers needs a window in such models, whether a layer has it or not.
  if (const Json defaults = Json::parse(family.hf_defaults);
      model.sliding_window == 0 && has_setting(family, kLayerTypes) && !is_switchable(family))
    config["sliding_window"] = defaults.at("sliding_window");
  if (!is_switchable(family)) return;
  // Versions of transformers without layer_types read this: layers have a window from one layer on.
  config["use_sliding_window"] = model.sliding_window > 0;
  config["max_window_layers"] = std::ranges::find(kinds, AttentionKind::sliding_attention) - kinds.begin();
}

}  // namespace stepforge
