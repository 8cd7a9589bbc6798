// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/function_call.h"

#include <string_view>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/records/chat_fields.h"

namespace stepforge {

namespace {

[[noreturn]] void refuse_call(const std::string& place, std::string_view why) {
  throw FormatError(format(
      "{} is no call of a tool: {}; expected {{\"name\": ..., \"arguments\": {{...}}}} or a list of such",
      place, why));
}

Json parse_call(std::string_view text, const std::string& place) {
  try {
    return parse_json(text, place);
  } catch (const Error& fault) {
    refuse_call(place, fault.what());
  }
}

Json one_call(const Json& said, const std::string& place) {
  const Json* call = &said;
  if (call->is_object() && call->contains("function")) call = &(*call)["function"];
  if (!call->is_object()) refuse_call(place, "it is not an object");
  const Json* name = find_member(*call, "name");
  if (name == nullptr || !name->is_string()) refuse_call(place, "it has no \"name\"");
  const Json* arguments = find_member(*call, "arguments");
  Json given = arguments == nullptr ? Json::object() : *arguments;
  if (given.is_string()) given = parse_call(given.get_ref<const std::string&>(), place);
  if (!given.is_object()) refuse_call(place, "its \"arguments\" are not an object");
  Json function = Json::object();
  function["name"] = *name;
  function["arguments"] = std::move(given);
  Json made = Json::object();
  made["type"] = "function";
  made["function"] = std::move(function);
  return made;
}

/// Where the call begins, after a thought.
size_t end_of_thought(std::string_view text) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || !text.substr(begin).starts_with(kOpen)) return 0;
  const size_t end = text.find(kClose);
  return end == std::string_view::npos ? 0 : end + kClose.size();
}

}  // namespace

Json read_function_call(const std::string& text, const std::string& place) {
  const size_t begin = end_of_thought(text);
  const Json said = parse_call(std::string_view(text).substr(begin), place);
  Json calls = Json::array();
  if (said.is_array()) {
    for (const Json& call : said) calls.push_back(one_call(call, place));
    if (calls.empty()) refuse_call(place, "the list is empty");
  } else {
    calls.push_back(one_call(said, place));
  }
  Json made = chat_message(kAssistantRole, text.substr(0, begin));
  made["tool_calls"] = std::move(calls);
  return made;
}

}  // namespace stepforge
