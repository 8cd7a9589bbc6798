#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"

namespace stepforge {

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    throw FormatError(format("{}: {} bytes of JSON; at most {} are accepted", source, text.size(), limits.max_bytes));
  }
  std::vector<std::set<std::string>> open_objects;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > limits.max_depth) {
      throw FormatError(format("{}: JSON nested deeper than {} levels", source, limits.max_depth));
    }
    if (event == Json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw FormatError(format("{}: key \"{}\" appears twice in one JSON object", source, key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::parse_error& error) {
    throw FormatError(format("{}: bad JSON at byte {}: {}", source, error.byte, error.what()));
  } catch (const Json::exception& error) {
    throw FormatError(format("{}: bad JSON: {}", source, error.what()));
  }
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

}  // namespace stepforge
