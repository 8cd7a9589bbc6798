// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/state.h"

#include <algorithm>
#include <map>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/plan/job_plan.h"

namespace stepforge {

namespace {

/// Fields of each group that decides what is trained on what. Changing one would make a silent break in the
/// run.
const std::map<std::string, std::vector<std::string>>& guarded_groups() {
  static const std::map<std::string, std::vector<std::string>> groups = {
      {"model", {"model."}},
      {"seed", {"training.seed", "data.seed"}},
      {"data",
       {"data.sources", "data.validation_fraction", "data.document", "data.shuffle", "data.synthetic",
        "training.seq_len"}},
      {"batch", {"training.global_batch_size"}},
  };
  return groups;
}

/// "section.key" -> value as TOML, one entry per line of the written-out configuration.
std::map<std::string, std::string> flatten(const std::string& toml) {
  std::map<std::string, std::string> fields;
  std::string section;
  size_t begin = 0;
  while (begin < toml.size()) {
    const size_t end = std::min(toml.find('\n', begin), toml.size());
    const std::string line = toml.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("[[")) {
      section = line.substr(2, line.find(']') - 2) + "[].";
    } else if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1) + ".";
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      fields[section + line.substr(0, equals)] += line.substr(equals + 3);
    }
  }
  return fields;
}

std::string group_of(const std::string& field) {
  for (const auto& [group, prefixes] : guarded_groups()) {
    for (const auto& prefix : prefixes) {
      if (field.starts_with(prefix)) return group;
    }
  }
  return "";
}

/// Where a run writes and what it prints may differ freely.
bool is_bookkeeping(const std::string& field) {
  for (const char* prefix : {"run_dir", "preset", "metrics.", "checkpoint.", "debug.", "sampling.",
                             "data.cache_dir", "data.prefetch", "training.threads"}) {
    if (field.starts_with(prefix)) return true;
  }
  return false;
}

/// A global batch left to the local one becomes a number, so that changing the local one shows.
Config with_open_fields_closed(Config config) {
  config.training.global_batch_size = plan_batch(config.training).rows_per_step;
  return config;
}

}  // namespace

Json state_to_json(const TrainerState& state, const Config& config) {
  Json json;
  json["step"] = state.step;
  json["tokens"] = state.tokens;
  json["skipped"] = state.skipped;
  json["rows_consumed"] = state.loader.rows_consumed;
  json["data_fingerprint"] = state.loader.fingerprint;
  json["smoothed_loss"] = {{"sum", state.smoothed_loss.sum}, {"weight", state.smoothed_loss.weight}};
  json["validation_pending"] = state.validation_pending;
  json["schedule_steps"] = state.schedule_steps;
  json["arithmetic"] = state.arithmetic;
  json["config"] = config_toml(with_open_fields_closed(config));
  return json;
}

TrainerState state_from_json(const Json& json, const std::string& source) {
  // The file's hash fits whatever was written into it, so every number is checked.
  const JsonReader reader(json, source);
  TrainerState state;
  state.step = reader["step"].count();
  state.tokens = reader["tokens"].count();
  state.skipped = reader["skipped"].count();
  state.loader.rows_consumed = reader["rows_consumed"].count();
  state.loader.fingerprint = reader["data_fingerprint"].text();
  const JsonReader smoothed = reader["smoothed_loss"];
  state.smoothed_loss = {smoothed["sum"].number(), smoothed["weight"].number()};
  if (reader.has("arithmetic")) {
    state.validation_pending = reader["validation_pending"].boolean();
    state.schedule_steps = reader["schedule_steps"].count();
    state.arithmetic = reader["arithmetic"].text();
  }
  return state;
}

ConfigChanges compare_with_checkpoint(const Json& json, const Config& config) {
  const auto& allowed = config.checkpoint.allow_changed;
  std::map<std::string, std::string> before = flatten(json.value("config", std::string()));
  const std::map<std::string, std::string> now = flatten(config_toml(with_open_fields_closed(config)));
  ConfigChanges changes;
  for (const auto& [name, value] : now) {
    const std::string old = before[name];
    if (old == value || is_bookkeeping(name)) continue;
    const std::string group = group_of(name);
    const bool refused = !group.empty() && std::none_of(allowed.begin(), allowed.end(), [&](Guard guard) {
      return choice_name(guard) == group;
    });
    const std::string text =
        format("{}: {} in the checkpoint, {} now", name, old.empty() ? "unset" : old, value);
    if (refused) {
      changes.refused.push_back(text + format(" (checkpoint.allow_changed = [\"{}\"] accepts it)", group));
    } else {
      changes.accepted.push_back(text);
      if (group == "data" || name == "data.seed") changes.other_rows = true;
    }
  }
  return changes;
}

}  // namespace stepforge
