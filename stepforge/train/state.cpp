#include "stepforge/train/state.h"

#include <algorithm>
#include <map>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
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

template <typename T>
T field(const Json& json, const char* key, const std::string& source) {
  try {
    return json.at(key).get<T>();
  } catch (const Json::exception& error) {
    throw FormatError(format("{}: \"{}\": {}", source, key, error.what()));
  }
}

/// A number of steps, tokens or rows. The file's hash fits whatever somebody has written into it.
int64_t count(const Json& json, const char* key, const std::string& source) {
  const Json value = field<Json>(json, key, source);
  // An unsigned number beyond int64_t is negative here.
  if (!value.is_number_integer() || value.get<int64_t>() < 0) {
    throw FormatError(format("{}: \"{}\" is {}, not an integer of at least 0", source, key, value.dump()));
  }
  return value.get<int64_t>();
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
  TrainerState state;
  state.step = count(json, "step", source);
  state.tokens = count(json, "tokens", source);
  state.skipped = count(json, "skipped", source);
  state.loader.rows_consumed = count(json, "rows_consumed", source);
  state.loader.fingerprint = field<std::string>(json, "data_fingerprint", source);
  const Json smoothed = field<Json>(json, "smoothed_loss", source);
  state.smoothed_loss = {field<double>(smoothed, "sum", source), field<double>(smoothed, "weight", source)};
  if (json.contains("arithmetic")) {
    state.validation_pending = field<bool>(json, "validation_pending", source);
    state.schedule_steps = count(json, "schedule_steps", source);
    state.arithmetic = field<std::string>(json, "arithmetic", source);
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
