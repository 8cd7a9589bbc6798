// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/line_codec.h"

#include <charconv>
#include <functional>
#include <istream>
#include <ostream>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/text/utf8_repair.h"

namespace stepforge {

namespace {

/// Appends bytes to `text` up to one of `ends`, which is consumed, or to the end of the input (then returns
/// false). Throws FormatError that begins with `location` if there are too many.
bool read_until(const CodecInput& input, std::string_view ends, std::string& text,
                const std::string& location) {
  constexpr int kEndOfInput = std::char_traits<char>::eof();
  std::streambuf& buffer = *input.stream.rdbuf();
  for (int c = buffer.sbumpc(); c != kEndOfInput; c = buffer.sbumpc()) {
    if (ends.find(static_cast<char>(c)) != std::string_view::npos) return true;
    if (static_cast<int64_t>(text.size()) == input.max_bytes) {
      throw FormatError(
          format("{}: more than {} bytes; cut the input into shorter lines (--jsonl), or use "
                 "`stepforge data build`",
                 location, input.max_bytes));
    }
    text.push_back(static_cast<char>(c));
  }
  return false;
}

void require_written(std::ostream& output) {
  output.flush();
  if (!output) throw Error("cannot write the output; is the disk full or the pipe closed?");
}

/// Calls `convert` with each line and its location, "source:number".
void for_each_line(const CodecInput& input,
                   const std::function<void(const std::string& line, const std::string& location)>& convert) {
  std::string line;
  bool more = true;
  for (int64_t number = 1; more; ++number) {
    const std::string location = format("{}:{}", input.name, number);
    line.clear();
    more = read_until(input, "\n", line, location);
    if (more || !line.empty()) convert(line, location);
  }
}

std::string ids_text(const std::vector<int32_t>& ids, char separator) {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty()) text += separator;
    text += std::to_string(id);
  }
  return text;
}

/// The ids of a text, between special tokens.
void append_text(Encoder& encoder, const std::string& text, const SpecialTokens& special,
                 std::vector<int32_t>& ids) {
  ids.insert(ids.end(), special.before.begin(), special.before.end());
  encoder.append(text, ids);
  ids.insert(ids.end(), special.after.begin(), special.after.end());
}

int32_t parse_id(std::string_view word, const std::string& location) {
  int32_t id = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (fault != std::errc() || end != word.data() + word.size()) {
    throw FormatError(format("{}: \"{}\" is not a token id", location, word.substr(0, 40)));
  }
  return id;
}

/// Puts the location in front of the errors of `action`.
template <typename Action>
auto with_location(const std::string& location, const Action& action) {
  try {
    return action();
  } catch (const FormatError& error) {
    throw FormatError(format("{}: {}", location, error.what()));
  } catch (const Error& error) {
    throw Error(format("{}: {}", location, error.what()));
  }
}

std::vector<int32_t> parse_id_array(const std::string& line, const std::string& location) {
  const Json array = parse_json(line, location);
  if (!array.is_array()) throw FormatError(format("{}: expected a JSON array of token ids", location));
  std::vector<int32_t> ids;
  for (const Json& element : array) ids.push_back(parse_id(element.dump(), location));
  return ids;
}

}  // namespace

void encode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output) {
  std::string text;
  read_until(input, "", text, input.name);
  std::vector<int32_t> ids;
  const SpecialTokens special = input.add_special_tokens ? tokenizer.special_tokens() : SpecialTokens();
  with_location(input.name, [&] { append_text(*tokenizer.encoder(), text, special, ids); });
  output << ids_text(ids, ' ') << '\n';
  require_written(output);
}

void encode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output) {
  const std::unique_ptr<Encoder> encoder = tokenizer.encoder();
  const SpecialTokens special = input.add_special_tokens ? tokenizer.special_tokens() : SpecialTokens();
  std::vector<int32_t> ids;
  for_each_line(input, [&](const std::string& line, const std::string& location) {
    const Json text = parse_json(line, location);
    if (!text.is_string()) throw FormatError(format("{}: expected a JSON string", location));
    ids.clear();
    append_text(*encoder, text.get_ref<const std::string&>(), special, ids);
    output << '[' << ids_text(ids, ',') << "]\n";
  });
  require_written(output);
}

void decode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output) {
  const std::unique_ptr<TokenDecoder> decoder = tokenizer.decoder(input.skip_special_tokens);
  std::string word;
  std::string bytes;
  bool more = true;
  for (int64_t number = 1; more;) {
    const std::string location = format("{}: word {}", input.name, number);
    word.clear();
    more = read_until(input, " \t\r\n\v\f", word, location);
    if (word.empty()) continue;
    ++number;
    const int32_t id = parse_id(word, location);
    bytes.clear();
    with_location(location, [&] { decoder->push(id, bytes); });
    output << bytes;
  }
  bytes.clear();
  decoder->finish(bytes);
  output << bytes;
  require_written(output);
}

void decode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output) {
  for_each_line(input, [&](const std::string& line, const std::string& location) {
    const std::vector<int32_t> ids = parse_id_array(line, location);
    std::string text =
        with_location(location, [&] { return tokenizer.decode(ids, input.skip_special_tokens); });
    output << Json(repaired_utf8(std::move(text))).dump() << '\n';
  });
  require_written(output);
}

}  // namespace stepforge
