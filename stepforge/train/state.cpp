// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/state.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/diff.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema_docs.h"

namespace stepforge {

namespace {

/// A global batch left to the local one becomes a number, so that changing the local one or the number of ranks
/// shows.
Config with_open_fields_closed(Config config, int64_t rows_per_step) {
  config.training.global_batch_size = rows_per_step;
  return config;
}

}  // namespace

Json state_to_json(const TrainerState& state, const Config& config, int64_t rows_per_step) {
  Json json;
  json["step"] = state.step;
  json["tokens"] = state.tokens;
  json["labels"] = state.labels;
  json["skipped"] = state.skipped;
  json["unlabelled"] = state.unlabelled;
  json["rows_consumed"] = state.loader.rows_consumed;
  json["data_fingerprint"] = state.loader.fingerprint;
  json["smoothed_loss"] = {{"sum", state.smoothed_loss.sum}, {"weight", state.smoothed_loss.weight}};
  json["validation_pending"] = state.validation_pending;
  json["schedule_begin"] = state.schedule_begin;
  json["schedule_steps"] = state.schedule_steps;
  json["arithmetic"] = state.arithmetic;
  json["data_content"] = state.data_content;
  json["tokenizer"] = state.tokenizer;
  json["config"] = config_toml(with_open_fields_closed(config, rows_per_step));
  return json;
}

TrainerState state_from_json(const Json& json, const std::string& source) {
  // The file's hash fits whatever was written into it, so every number is checked.
  const JsonReader reader(json, source);
  TrainerState state;
  state.step = reader["step"].count();
  state.tokens = reader["tokens"].count();
  state.skipped = reader["skipped"].count();
  state.data_content = reader.text_or("data_content", "");
  state.tokenizer = reader.text_or("tokenizer", "");
  state.labels = reader.integer_or("labels", 0, 0);
  state.unlabelled = reader.integer_or("unlabelled", 0, 0);
  state.loader.rows_consumed = reader["rows_consumed"].count();
  state.loader.fingerprint = reader["data_fingerprint"].text();
  const JsonReader smoothed = reader["smoothed_loss"];
  state.smoothed_loss = {smoothed["sum"].number(), smoothed["weight"].number()};
  if (reader.has("arithmetic")) {
    state.validation_pending = reader["validation_pending"].boolean();
    state.schedule_steps = reader["schedule_steps"].count();
    state.arithmetic = reader["arithmetic"].text();
  }
  if (reader.has("schedule_begin")) state.schedule_begin = reader["schedule_begin"].count();
  return state;
}

ConfigChanges compare_with_checkpoint(const Json& json, const Config& config, int64_t rows_per_step,
                                      const std::string& source, bool own) {
  const auto& shape = config.extensions.shape();
  const Config before = parse_stored_config(JsonReader(json, source)["config"].text(), source,
                                            shape != nullptr ? shape->registry : nullptr);
  ConfigChanges changes;
  if (!own || before.checkpoint.load != config.checkpoint.load) changes.load = config.checkpoint.load;
  std::vector<Guard> allowed = config.checkpoint.allow_changed;
  if (!changes.load.data) allowed.insert(allowed.end(), {Guard::data, Guard::batch});
  for (const FieldDifference& change : diff(before, with_open_fields_closed(config, rows_per_step))) {
    const OnResume& on_resume = change.on_resume;
    if (!on_resume.reported) continue;
    const std::string text =
        format("{}: {} in the checkpoint, {} now", change.name, change.before, change.after);
    if (on_resume.guard && std::find(allowed.begin(), allowed.end(), *on_resume.guard) == allowed.end()) {
      changes.refused.push_back(
          format("{} (checkpoint.allow_changed = [\"{}\"] accepts it)", text, choice_name(*on_resume.guard)));
      continue;
    }
    changes.accepted.push_back(text);
    if (on_resume.guard == Guard::data || change.name == "data.seed") changes.other_rows = true;
  }
  return changes;
}

}  // namespace stepforge
