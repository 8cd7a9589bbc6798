// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/text_ends.h"

#include <algorithm>
#include <optional>
#include <string>

#include "stepforge/base/error.h"

namespace stepforge {

namespace {

constexpr std::string_view kAnswer = "stand-in-of-an-answer";

void add_once(std::vector<int32_t>& ids, int32_t id) {
  if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

/// Whether a token is white space, which some tokenizers spell as U+2581.
bool is_blank(std::string_view token) {
  constexpr std::string_view kMark = "\u2581";
  while (token.starts_with(kMark)) token.remove_prefix(kMark.size());
  return token.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::optional<int32_t> first_token(const Tokenizer& tokenizer, std::string_view text) {
  for (const int32_t id : tokenizer.encode(text))
    if (tokenizer.is_added(id) || !is_blank(tokenizer.token_bytes(id))) return id;
  return std::nullopt;
}

std::optional<int32_t> last_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id)
    if (tokenizer.is_added(*id) || !is_blank(tokenizer.token_bytes(*id))) return *id;
  return std::nullopt;
}

Json user_message() {
  return {{"role", "user"}, {"content", "stand-in-of-a-question"}};
}

std::optional<int32_t> end_of_answer(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const Json chat =
      Json::array({user_message(), Json{{"role", "assistant"}, {"content", std::string(kAnswer)}}});
  const std::string text = chat_template.render(chat).text;
  const size_t answer = text.rfind(kAnswer);
  if (answer == std::string::npos) return std::nullopt;
  return first_token(tokenizer, std::string_view(text).substr(answer + kAnswer.size()));
}

/// The token that ends a call, if the template writes calls.
std::optional<int32_t> end_of_call(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  constexpr const char* kName = "stand_in_of_a_tool";
  const Json function = {{"name", kName}, {"arguments", {{"place", "Oslo"}}}};
  const Json call = {{"id", "call00001"}, {"type", "function"}, {"function", function}};
  const Json chat =
      Json::array({user_message(), Json{{"role", "assistant"}, {"tool_calls", Json::array({call})}}});
  const std::string text = chat_template.render(chat).text;
  if (text.find(kName) == std::string::npos) return std::nullopt;
  return last_token(tokenizer, text);
}

}  // namespace

std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const Json& generation) {
  std::vector<int32_t> ids;
  if (generation.is_object() && generation.contains("eos_token_id")) {
    const Json& listed = generation["eos_token_id"];
    for (const Json& id : listed.is_array() ? listed : Json::array({listed}))
      if (id.is_number_integer()) add_once(ids, id.get<int32_t>());
  }
  if (const auto eos = tokenizer.eos_id()) add_once(ids, *eos);
  return ids;
}

std::vector<int32_t> answer_ends(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const auto& end_of : {end_of_answer, end_of_call}) {
    try {
      const std::optional<int32_t> id = end_of(chat_template, tokenizer);
      if (id && tokenizer.is_added(*id)) add_once(ids, *id);
    } catch (const Error&) {
      continue;  // the template refuses such a conversation
    }
  }
  return ids;
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text, bool bos) {
  std::vector<int32_t> ids;
  if (bos) ids = tokenizer.special_tokens().before;
  tokenizer.encoder()->append(text, ids);
  if (const auto eos = tokenizer.eos_id(); ids.empty() && eos) ids.push_back(*eos);
  return ids;
}

}  // namespace stepforge
