#include "stepforge/text/line_codec.h"

#include <charconv>
#include <functional>
#include <istream>
#include <iterator>
#include <ostream>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"

namespace stepforge {

namespace {

std::string read_all(std::istream& input) {
  return {std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
}

void require_written(std::ostream& output) {
  output.flush();
  if (!output) throw Error("cannot write the output; is the disk full or the pipe closed?");
}

/// Calls `convert` with each line and its place, "source:number".
void for_each_line(std::istream& input, const std::string& source,
                   const std::function<void(const std::string& line, const std::string& place)>& convert) {
  std::string line;
  for (int64_t number = 1; std::getline(input, line); ++number)
    convert(line, format("{}:{}", source, number));
}

std::string ids_text(const std::vector<int32_t>& ids, char separator) {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty()) text += separator;
    text += std::to_string(id);
  }
  return text;
}

int32_t parse_id(std::string_view word, const std::string& place) {
  int32_t id = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (fault != std::errc() || end != word.data() + word.size()) {
    throw FormatError(format("{}: \"{}\" is no token id", place, word.substr(0, 40)));
  }
  return id;
}

/// Names the place in errors that do not know it.
template <typename Action>
auto at_place(const std::string& place, const Action& action) {
  try {
    return action();
  } catch (const FormatError& error) {
    throw FormatError(format("{}: {}", place, error.what()));
  } catch (const Error& error) {
    throw Error(format("{}: {}", place, error.what()));
  }
}

std::vector<int32_t> parse_id_array(const std::string& line, const std::string& place) {
  const Json array = parse_json(line, place);
  if (!array.is_array()) throw FormatError(format("{}: expected a JSON array of token ids", place));
  std::vector<int32_t> ids;
  for (const Json& element : array) ids.push_back(parse_id(element.dump(), place));
  return ids;
}

}  // namespace

void encode_plain(const Tokenizer& tokenizer, std::istream& input, std::ostream& output,
                  const std::string& source) {
  const std::string text = read_all(input);
  const std::vector<int32_t> ids = at_place(source, [&] { return tokenizer.encode(text); });
  output << ids_text(ids, ' ') << '\n';
  require_written(output);
}

void encode_jsonl(const Tokenizer& tokenizer, std::istream& input, std::ostream& output,
                  const std::string& source) {
  const std::unique_ptr<Encoder> encoder = tokenizer.encoder();
  std::vector<int32_t> ids;
  for_each_line(input, source, [&](const std::string& line, const std::string& place) {
    const Json text = parse_json(line, place);
    if (!text.is_string()) throw FormatError(format("{}: expected a JSON string", place));
    ids.clear();
    encoder->append(text.get_ref<const std::string&>(), ids);
    output << '[' << ids_text(ids, ',') << "]\n";
  });
  require_written(output);
}

void decode_plain(const Tokenizer& tokenizer, std::istream& input, std::ostream& output,
                  const std::string& source) {
  std::string word;
  for (int64_t number = 1; input >> word; ++number) {
    const std::string place = format("{}: word {}", source, number);
    const int32_t id = parse_id(word, place);
    output << at_place(place, [&] { return tokenizer.token_bytes(id); });
  }
  require_written(output);
}

void decode_jsonl(const Tokenizer& tokenizer, std::istream& input, std::ostream& output,
                  const std::string& source) {
  for_each_line(input, source, [&](const std::string& line, const std::string& place) {
    const std::vector<int32_t> ids = parse_id_array(line, place);
    const std::string text = at_place(place, [&] { return tokenizer.decode(ids); });
    output << Json(text).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  });
  require_written(output);
}

}  // namespace stepforge
