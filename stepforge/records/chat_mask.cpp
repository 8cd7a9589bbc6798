// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/chat_mask.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Stands for a message's content; its first and last characters do not begin or end usual text.
constexpr std::string_view kStandIn = "\x01 stand-in \x02";

/// Finds the spans of the messages in the text of a template without {% generation %} blocks.
class MessageFinder {
 public:
  MessageFinder(const ChatTemplate& chat_template, const Conversation& conversation, const std::string& text)
      : template_(chat_template), conversation_(conversation), text_(text) {}

  /// What the model says in a message: one span, or two around the results of tools.
  std::vector<TextSpan> spans_of(size_t message) const {
    if (const auto added = added_by(message)) return {*added};
    return content_of(message);
  }

 private:
  std::string render(const Json& messages, bool add_generation_prompt) const {
    return template_
        .render(messages, {.tools = conversation_.tools, .add_generation_prompt = add_generation_prompt})
        .text;
  }

  Json first_messages(size_t count) const {
    Json messages = Json::array();
    for (size_t i = 0; i < count; ++i) messages.push_back(conversation_.messages[i]);
    return messages;
  }

  /// What follows the generation prompt when the message is added; nullopt if the text is not made piece by piece.
  std::optional<TextSpan> added_by(size_t message) const {
    if (message == 0) return std::nullopt;
    try {
      const std::string before = render(first_messages(message), true);
      const bool is_last = message + 1 == conversation_.messages.size();
      const std::string after = is_last ? text_ : render(first_messages(message + 1), false);
      if (!text_.starts_with(after) || !after.starts_with(before)) return std::nullopt;
      return TextSpan{before.size(), after.size()};
    } catch (const Error&) {
      return std::nullopt;  // the template takes whole conversations only
    }
  }

  /// For templates that render a message in another way when others follow, such as those that remove its reasoning: from the
  /// prompt for an answer to what ends an answer, around the part of the text that changes when the message does.
  std::vector<TextSpan> content_of(size_t message) const {
    const std::optional<TextSpan> fields = fields_in_text(message);
    if (!fields)
      refuse(message, "renders it in another way when messages follow, so what it adds cannot be found");
    const size_t next = begin_of(message + 1);
    if (next <= fields->begin || next >= fields->end) return {whole_answer(message, *fields, message + 1)};
    const std::optional<TextSpan> results = results_inside(message);
    if (!results || results->begin < fields->begin || results->begin >= next || results->end > fields->end)
      refuse(message, "writes the next message inside of it");
    const TextSpan whole = whole_answer(message, *fields, after_results(message));
    return {{whole.begin, results->begin}, {results->end, whole.end}};
  }

  /// The first message after the results of the calls of `message`.
  size_t after_results(size_t message) const {
    const Json& messages = conversation_.messages;
    size_t after = message + 1;
    while (after < messages.size() && messages[after]["role"] == "tool") ++after;
    return after;
  }

  /// The results of its calls, if the template writes them between the calls of a message and its content, as Gemma 4 does: what
  /// is not there without them.
  std::optional<TextSpan> results_inside(size_t message) const {
    Json messages = conversation_.messages;
    messages[message]["content"] = kStandIn;
    try {
      const std::string with = render(messages, false);
      const auto first = messages.begin() + static_cast<std::ptrdiff_t>(message) + 1;
      messages.erase(first, messages.begin() + static_cast<std::ptrdiff_t>(after_results(message)));
      const std::string without = render(messages, false);
      const size_t content = with.find(kStandIn);
      if (content == std::string::npos || common_begin(with, text_) != content) return std::nullopt;
      return TextSpan{common_begin(with, without), content};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  static size_t common_begin(const std::string& left, const std::string& right) {
    return static_cast<size_t>(std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first -
                               left.begin());
  }

  [[noreturn]] static void refuse(size_t message, std::string_view why) {
    throw FormatError(
        format("messages[{}]: the chat template {}; set loss_on = \"last\", or use a template with {{% "
               "generation %}} blocks",
               message, why));
  }

  /// The part of the text that changes when a field of the message does; nullopt if the template writes none of them.
  std::optional<TextSpan> fields_in_text(size_t message) const {
    std::optional<TextSpan> fields;
    for (Field& field : fields_of(conversation_.messages[message])) {
      const std::optional<TextSpan> found = changed_by(message, std::move(field.changed), field.is_repeated);
      if (!found) continue;
      fields = fields ? TextSpan{std::min(fields->begin, found->begin), std::max(fields->end, found->end)}
                      : *found;
    }
    return fields;
  }

  struct Field {
    Json changed;              ///< the message with a stand-in in its place
    bool is_repeated = false;  ///< later messages may have it too: the name of a tool
  };

  static std::vector<Field> fields_of(const Json& said) {
    std::vector<Field> fields;
    for (const char* key : {"content", "reasoning_content", "reasoning", "thinking"}) {
      if (!said.contains(key) || !said[key].is_string()) continue;
      if (std::string_view(key) != "content" && said[key].get_ref<const std::string&>().empty()) continue;
      fields.push_back({.changed = said});
      fields.back().changed[key] = kStandIn;
    }
    if (!said.contains("tool_calls") || !said["tool_calls"].is_array()) return fields;
    for (size_t i = 0; i < said["tool_calls"].size(); ++i) {
      for (const char* key : {"name", "arguments"}) {
        Field field{.changed = said, .is_repeated = std::string_view(key) == "name"};
        Json& call = field.changed["tool_calls"][i];
        if (!call.is_object()) continue;
        Json& function = call.contains("function") ? call["function"] : call;
        if (!function.is_object() || !function.contains(key)) continue;
        function[key] = function[key].is_object() ? Json{{kStandIn, kStandIn}} : Json(kStandIn);
        fields.push_back(std::move(field));
      }
    }
    return fields;
  }

  /// The part of the text that is another when the message is `changed`; nullopt if the template does not write it, or not such a
  /// one. With `only_begin` the empty span where it begins to be another.
  std::optional<TextSpan> changed_by(size_t message, Json changed, bool only_begin) const {
    Json messages = conversation_.messages;
    messages[message] = std::move(changed);
    std::string other;
    try {
      other = render(messages, false);
    } catch (const Error&) {
      return std::nullopt;
    }
    if (other == text_) return std::nullopt;
    const size_t begin = common_begin(text_, other);
    if (only_begin) return TextSpan{begin, begin};
    const auto behind = std::mismatch(text_.rbegin(), text_.rend() - static_cast<std::ptrdiff_t>(begin),
                                      other.rbegin(), other.rend() - static_cast<std::ptrdiff_t>(begin));
    return TextSpan{begin, text_.size() - static_cast<size_t>(behind.first - text_.rbegin())};
  }

  /// Widens the fields of an answer to all that the model writes before message `next`.
  TextSpan whole_answer(size_t message, TextSpan fields, size_t next) const {
    TextSpan whole = fields;
    if (const std::string prompt = answer_prompt(message); !prompt.empty()) {
      const size_t at = text_.rfind(prompt, fields.begin);
      if (at != std::string::npos && at + prompt.size() <= fields.begin && at >= end_of_previous(message))
        whole.begin = at + prompt.size();
    }
    if (const std::string end = answer_end(); !end.empty()) {
      const size_t at = text_.find(end, fields.end);
      if (at != std::string::npos && at <= begin_of(next)) whole.end = at + end.size();
    }
    return whole;
  }

  /// Where what the message before says ends: an answer begins behind it. The end of the text if it cannot be told.
  size_t end_of_previous(size_t message) const {
    if (message == 0) return 0;
    const std::optional<TextSpan> previous = fields_in_text(message - 1);
    return previous ? previous->end : text_.size();
  }

  /// Where the content of a message begins: the answer before it ends before. 0 if it cannot be told.
  size_t begin_of(size_t message) const {
    if (message == conversation_.messages.size()) return text_.size();
    Json changed = conversation_.messages[message];
    if (!changed.contains("content") || !changed["content"].is_string()) return 0;
    changed["content"] = kStandIn;
    const auto content = changed_by(message, std::move(changed), /*only_begin=*/true);
    return content ? content->begin : 0;
  }

  /// What the template writes before an answer; empty if it cannot be told.
  std::string answer_prompt(size_t message) const {
    try {
      const Json before = first_messages(message);
      const std::string without = render(before, false);
      const std::string with = render(before, true);
      return message > 0 && with.starts_with(without) ? with.substr(without.size()) : "";
    } catch (const Error&) {
      return "";  // the template takes whole conversations only
    }
  }

  /// What the template writes after an answer, without white space; empty if it cannot be told.
  std::string answer_end() const {
    try {
      const Json messages = {{{"role", "user"}, {"content", "?"}},
                             {{"role", "assistant"}, {"content", kStandIn}}};
      const std::string text = render(messages, false);
      const size_t at = text.find(kStandIn);
      if (at == std::string::npos) return "";
      const std::string end = text.substr(at + kStandIn.size());
      const size_t first = end.find_first_not_of(" \t\r\n");
      return first == std::string::npos ? "" : end.substr(first, end.find_last_not_of(" \t\r\n") + 1 - first);
    } catch (const Error&) {
      return "";
    }
  }

  const ChatTemplate& template_;
  const Conversation& conversation_;
  const std::string& text_;
};

/// The spans of {% generation %} blocks that belong to messages that count.
std::vector<TextSpan> generation_spans(const std::vector<jinja::Span>& blocks,
                                       const Conversation& conversation) {
  std::vector<bool> wanted;  // by message of the assistant
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    if (conversation.messages[i]["role"] == "assistant") wanted.push_back(conversation.counted[i]);
  const bool all = std::find(wanted.begin(), wanted.end(), false) == wanted.end();
  if (!all && blocks.size() != wanted.size()) {
    throw FormatError(format(
        "the chat template has {} {{% generation %}} blocks for {} messages of the assistant, so it is not "
        "clear which of them belong to the messages that count",
        blocks.size(), wanted.size()));
  }
  std::vector<TextSpan> spans;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (all || wanted[i])
      spans.push_back({static_cast<size_t>(blocks[i].begin), static_cast<size_t>(blocks[i].end)});
  return spans;
}

/// Finds the tokens of an encoded text by byte.
class TokenFinder {
 public:
  TokenFinder(const Tokenizer& tokenizer, Encoder& encoder, std::span<const int32_t> tokens,
              std::string_view text)
      : encoder_(encoder), tokens_(tokens), text_(text), ends_(ends_of(tokenizer)) {}

  /// The token that holds the byte at `place`; the number of tokens at the end of the text.
  size_t token_at(size_t place) const {
    if (ends_)
      return static_cast<size_t>(std::upper_bound(ends_->begin(), ends_->end(), place) - ends_->begin());
    return common_start(place).tokens;
  }

  /// One more than the token that holds the byte before `place` > 0.
  size_t end_at(size_t place) const {
    if (ends_)
      return static_cast<size_t>(std::lower_bound(ends_->begin(), ends_->end(), place) - ends_->begin()) + 1;
    const CommonStart start = common_start(place);
    return std::min(start.tokens + (start.is_border ? 0 : 1), tokens_.size());
  }

 private:
  struct CommonStart {
    size_t tokens = 0;
    bool is_border = false;  ///< a token ends there
  };

  /// The tokens that are the same when only the first `size` bytes are encoded.
  CommonStart common_start(size_t size) const {
    std::vector<int32_t> shorter;
    encoder_.append(text_.substr(0, size), shorter);
    const auto differ = std::mismatch(shorter.begin(), shorter.end(), tokens_.begin(), tokens_.end());
    return {static_cast<size_t>(differ.first - shorter.begin()), differ.first == shorter.end()};
  }

  /// Where each token ends in the text; nullopt if a normalizer changed it, so that they do not spell it byte by byte.
  std::optional<std::vector<size_t>> ends_of(const Tokenizer& tokenizer) const {
    std::vector<size_t> ends;
    ends.reserve(tokens_.size());
    size_t end = 0;
    for (const int32_t token : tokens_) {
      const std::string_view bytes = tokenizer.token_bytes(token);
      if (text_.substr(end, bytes.size()) != bytes) return std::nullopt;
      end += bytes.size();
      ends.push_back(end);
    }
    if (end != text_.size()) return std::nullopt;
    return ends;
  }

  Encoder& encoder_;
  std::span<const int32_t> tokens_;
  std::string_view text_;
  std::optional<std::vector<size_t>> ends_;
};

/// Whether a token is white space, which some tokenizers spell as U+2581.
bool is_white_space(std::string_view token) {
  constexpr std::string_view kMark = "\u2581";
  while (token.starts_with(kMark)) token.remove_prefix(kMark.size());
  return token.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// Makes the flags [begin, end) of a message end with the special token that ends it: takes away blank text
/// after it, or adds it if it comes next.
void fit_to_end_token(const Tokenizer& tokenizer, std::span<const int32_t> tokens, size_t begin, size_t end,
                      std::span<uint8_t> flags) {
  size_t last = end;
  while (last > begin && !tokenizer.is_special(tokens[last - 1]) &&
         is_white_space(tokenizer.token_bytes(tokens[last - 1])))
    --last;
  if (last > begin && tokenizer.is_special(tokens[last - 1])) {
    std::fill(flags.begin() + static_cast<std::ptrdiff_t>(last),
              flags.begin() + static_cast<std::ptrdiff_t>(end), 0);
  } else if (end < tokens.size() && tokenizer.is_special(tokens[end])) {
    flags[end] = 1;
  }
}

}  // namespace

RenderedConversation render_for_loss(const ChatTemplate& chat_template, const Conversation& conversation) {
  const jinja::Rendered whole = chat_template.render(conversation.messages, {.tools = conversation.tools});
  const auto& wanted = conversation.counted;
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end())
    return {.text = whole.text, .counted = {}, .with_end_token = false};
  if (!whole.generation.empty())
    return {whole.text, generation_spans(whole.generation, conversation), /*with_end_token=*/false};
  RenderedConversation rendered{.text = whole.text, .counted = {}, .with_end_token = true};
  const MessageFinder finder(chat_template, conversation, whole.text);
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    if (conversation.counted[i])
      for (const TextSpan& span : finder.spans_of(i)) rendered.counted.push_back(span);
  return rendered;
}

void encode_with_mask(const RenderedConversation& rendered, const Tokenizer& tokenizer, Encoder& encoder,
                      std::vector<int32_t>& tokens, std::vector<uint8_t>& counted) {
  const size_t first = tokens.size();
  encoder.append(rendered.text, tokens);
  const auto added = std::span<const int32_t>(tokens).subspan(first);
  counted.resize(tokens.size(), 0);
  const auto flags = std::span(counted).subspan(first);
  const TokenFinder find(tokenizer, encoder, added, rendered.text);
  for (const TextSpan& span : rendered.counted) {
    const size_t begin = find.token_at(span.begin);
    // The answer may be empty but for the token that ends it.
    const size_t end = span.begin == span.end ? begin : find.end_at(span.end);
    std::fill(flags.begin() + static_cast<std::ptrdiff_t>(begin),
              flags.begin() + static_cast<std::ptrdiff_t>(end), 1);
    if (rendered.with_end_token) fit_to_end_token(tokenizer, added, begin, end, flags);
  }
}

}  // namespace stepforge
