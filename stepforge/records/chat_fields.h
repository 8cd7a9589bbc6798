// SPDX-License-Identifier: Apache-2.0
// The fields that the layouts of chat data share. All functions throw FormatError that names the key and the fault.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"

namespace stepforge {

inline constexpr std::string_view kAssistantRole = "assistant";
/// An answer whose text holds calls of tools as JSON.
inline constexpr std::string_view kCallRole = "function_call";

/// The value of the first of `keys` that the record has; null if it has none, or null. Empty keys are not looked for.
const Json* find_member(const Json& record, const std::vector<std::string>& keys);
const Json* find_member(const Json& record, const std::string& key);
/// The same; throws if there is none.
const Json& member_of(const Json& record, const std::string& key);

/// The keys of an object for a message: "role", "content".
std::string keys_of(const Json& record);

const std::string& text_of(const Json& record, const std::string& key);
/// "" if the record does not have the key.
std::string text_or_empty(const Json& record, const std::string& key);

/// The list of tools, given as JSON or as a string that holds JSON; null if there are none.
Json tools_of(const Json& record, const std::string& key);

/// Puts the text of the column `key` before a list of messages, unless that begins with a system message, which then takes its place
/// as in LLaMA-Factory. Whether it was added.
bool add_system(const Json& record, const std::string& key, Json& messages);

/// {"role": ..., "content": ...}
Json chat_message(std::string_view role, std::string content);

}  // namespace stepforge
