// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/state.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/diff.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace {

/// A global batch left to the local one becomes a number, so that changing the local one or the number of ranks
/// shows.
Config with_open_fields_closed(Config config, int64_t rows_per_step) {
  config.training.global_batch_size = rows_per_step;
  return config;
}

int64_t expected_rows(const TrainerState& state, int64_t rows_per_step) {
  return state.step * rows_per_step;
}
int64_t expected_updates(const TrainerState& state) {
  return state.step - state.skipped - state.unlabelled;
}

/// Two such numbers can be added.
constexpr int64_t kFar = int64_t{1} << 61;

/// Checks the numbers of a state against each other. For example, a schedule that begins later gives no learning rate.
class StateCheck {
 public:
  StateCheck(const JsonReader& reader, const TrainerState& state) : reader_(reader), state_(state) {}

  void run() const {
    const int64_t step = state_.step;
    require(step <= kMaxSteps, "step", format("at most {}", kMaxSteps));
    require(state_.skipped <= step, "skipped", format("at most the {} steps", step));
    require(state_.unlabelled <= step - state_.skipped, "unlabelled",
            format("at most {} of the {} steps", step - state_.skipped, step));
    require(state_.tokens >= step, "tokens", format("at least one for each of the {} steps", step));
    require(state_.labels <= state_.tokens, "labels", format("at most the {} tokens", state_.tokens));
    require(state_.schedule_begin <= step, "schedule_begin", format("at most the step, {}", step));
    require(state_.schedule_steps <= kMaxSteps, "schedule_steps", format("at most {}", kMaxSteps));
    const Smoothed& loss = state_.smoothed_loss;
    constexpr double kRounded = 1.001;
    require(loss.weight >= 0.0 && loss.weight <= kRounded, "smoothed_loss", "a weight from 0 to 1");
    if (!reader_.has("rows_per_step")) return;  // an older checkpoint
    const int64_t rows = reader_["rows_per_step"].integer(1, kFar);
    require(step <= kFar / rows, "step", format("at most {}", kFar / rows));
    require_sum("rows_consumed", expected_rows(state_, rows), "rows_offset",
                format("{} steps of {} rows", step, rows));
    if (reader_.has(kOptimizerSteps)) {
      require_sum(kOptimizerSteps, expected_updates(state_), "updates_offset",
                  format("{} steps less {} without an update", step, state_.skipped + state_.unlabelled));
    }
  }

 private:
  void require(bool holds, std::string_view field, const std::string& rule) const {
    if (holds) return;
    reader_.refuse(field, format("it must be {}; somebody has changed the file: restore it, or go on from an "
                                 "earlier step with checkpoint.load_step=N",
                                 rule));
  }

  void require_sum(std::string_view field, int64_t expected, std::string_view offset,
                   const std::string& terms) const {
    const int64_t sum = expected + reader_[offset].integer(-kFar, kFar);
    require(reader_[field].count() == sum, field, format("{}, from {} and {}", sum, terms, offset));
  }

  const JsonReader& reader_;
  const TrainerState& state_;
};

}  // namespace

Json state_to_json(const TrainerState& state, const Config& config, int64_t rows_per_step, int64_t updates) {
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
  json["rows_per_step"] = rows_per_step;
  json["rows_offset"] = state.loader.rows_consumed - expected_rows(state, rows_per_step);
  json["updates_offset"] = updates - expected_updates(state);
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
  StateCheck(reader, state).run();
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
