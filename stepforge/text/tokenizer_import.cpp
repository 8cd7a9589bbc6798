// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer_import.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/base64.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/splitter.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/text/tokenizer_json.h"
#include "stepforge/text/vocabulary.h"

namespace stepforge {

namespace {

/// Calls `use(line, number)` with each line that is not empty.
template <typename Use>
void for_each_text_line(std::string_view text, const Use& use) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) use(line, number);
  }
}

Json read_config(std::string_view config, const std::string& source) {
  if (config.empty()) return Json::object();
  Json json = parse_json(config, source);
  if (!json.is_object()) throw FormatError(format("{}: expected a JSON object", source));
  return json;
}

/// "eos_token": "text" or {"content": "text", ...}.
std::string token_text(const JsonReader& config, std::string_view key, std::string_view fallback) {
  if (!config.has(key)) return std::string(fallback);
  const JsonReader value = config[key];
  return value.json().is_object() ? value["content"].text() : value.text();
}

/// The added tokens of a tokenizer_config.json: all it lists, or else the tokens with a role.
Json gpt2_added_tokens(const JsonReader& config, const JsonReader& vocab) {
  Json tokens = Json::array();
  if (config.has("added_tokens_decoder")) {
    std::vector<std::pair<int64_t, Json>> listed;
    for (const auto& [key, value] : config["added_tokens_decoder"].object().json().items()) {
      int64_t id = -1;
      const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (fault != std::errc() || end != key.data() + key.size() || id < 0 || !value.is_object())
        config["added_tokens_decoder"].fail(
            format("{} is not an id with its token", json_excerpt(Json(key))));
      Json token = value;
      token["id"] = id;
      listed.emplace_back(id, std::move(token));
    }
    std::sort(listed.begin(), listed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [id, token] : listed) tokens.push_back(std::move(token));
    return tokens;
  }
  std::set<std::string> seen;
  auto next = static_cast<int64_t>(vocab.json().size());
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) {
    const std::string content = token_text(config, key, kEndOfText);
    if (!seen.insert(content).second) continue;
    tokens.push_back(special_token_json(
        content, vocab.has(content) ? vocab[content].integer(0, kMaxVocabulary - 1) : next++));
  }
  return tokens;
}

}  // namespace

std::string tokenizer_json_of_gpt2(std::string_view vocab, std::string_view merges, std::string_view config,
                                   const std::string& folder) {
  const Json options = read_config(config, folder + "/tokenizer_config.json");
  const JsonReader reader(options, folder + "/tokenizer_config.json");
  const std::string kind = reader.text_or("tokenizer_class", "GPT2Tokenizer");
  if (kind != "GPT2Tokenizer" && kind != "GPT2TokenizerFast") {
    reader["tokenizer_class"].refuse(
        "a folder with vocab.json and merges.txt but no tokenizer.json is read only if it belongs to "
        "GPT2Tokenizer; save the tokenizer with transformers, which writes a tokenizer.json");
  }
  Json pieces = parse_json(vocab, folder + "/vocab.json");
  const JsonReader vocab_reader = JsonReader(pieces, folder + "/vocab.json").object();
  require_utf8(merges, folder + "/merges.txt");
  Json merge_list = Json::array();
  for_each_text_line(merges, [&](std::string_view line, int64_t number) {
    if (line.starts_with("#version")) return;
    if (std::count(line.begin(), line.end(), ' ') != 1)
      throw FormatError(
          format("{}/merges.txt:{}: a merge has two parts with one space between them", folder, number));
    merge_list.push_back(line);
  });
  Json added = gpt2_added_tokens(reader, vocab_reader);
  return byte_level_json(std::move(pieces), std::move(merge_list), std::move(added),
                         {.pattern = kGpt2Pattern},
                         {.add_prefix_space = reader.boolean_or("add_prefix_space", false)})
      .dump();
}

namespace {

/// A named encoding of the tiktoken library.
struct Encoding {
  std::string_view name;
  std::string_view pattern;
  std::vector<std::pair<std::string_view, int64_t>> special;
};

/// The pattern of GPT-4 with tiktoken's rule for white space at the end of a text. (?!.|\n) holds only there.
constexpr std::string_view kGpt4Pattern =
    R"((?i:'s|'d|'m|'t|'ll|'ve|'re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|)"
    R"(\s++(?!.|\n)|\s*[\r\n]|\s+(?!\S)|\s)";

std::vector<Encoding> known_encodings() {
  return {{"r50k_base", kGpt2Pattern, {{kEndOfText, 50256}}},
          {"p50k_base", kGpt2Pattern, {{kEndOfText, 50256}}},
          {"cl100k_base",
           kGpt4Pattern,
           {{kEndOfText, 100257},
            {"<|fim_prefix|>", 100258},
            {"<|fim_middle|>", 100259},
            {"<|fim_suffix|>", 100260},
            {"<|endofprompt|>", 100276}}},
          {"o200k_base", kGpt4oPattern, {{kEndOfText, 199999}, {"<|endofprompt|>", 200018}}}};
}

using Ranks = std::unordered_map<std::string, int64_t>;

Ranks read_ranks(std::string_view text, const std::string& path) {
  Ranks ranks;
  std::set<int64_t> seen;
  for_each_text_line(text, [&](std::string_view line, int64_t number) {
    const size_t space = line.find(' ');
    const auto bytes = decode_base64(line.substr(0, space));
    int64_t rank = -1;
    if (space != std::string_view::npos) {
      const auto [end, fault] = std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
      if (fault != std::errc() || end != line.data() + line.size()) rank = -1;
    }
    if (!bytes || bytes->empty() || rank < 0 || rank >= kMaxVocabulary)
      throw FormatError(format("{}:{}: expected a token in base64, a space and its rank below {}", path,
                               number, kMaxVocabulary));
    if (!ranks.emplace(*bytes, rank).second || !seen.insert(rank).second)
      throw FormatError(
          format("{}:{}: this token or its rank {} is earlier in the file", path, number, rank));
  });
  for (int byte = 0; byte < 256; ++byte) {
    if (!ranks.contains(std::string(1, static_cast<char>(byte))))
      throw FormatError(format("{}: the byte 0x{:02X} is not a token; is the file cut off?", path, byte));
  }
  return ranks;
}

/// All pairs of tokens that make a token, ordered by the rank of that token, then of its parts.
Json merges_of(const Ranks& ranks, const std::string& path) {
  constexpr size_t kMaxTokenBytes = 4096;
  std::vector<std::tuple<int64_t, int64_t, int64_t, const std::string*, size_t>> merges;
  for (const auto& [token, rank] : ranks) {
    if (token.size() > kMaxTokenBytes)
      throw FormatError(
          format("{}: a token of {} bytes; at most {} are accepted", path, token.size(), kMaxTokenBytes));
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(token.substr(cut));
      if (right != ranks.end()) merges.emplace_back(rank, left->second, right->second, &token, cut);
    }
  }
  std::sort(merges.begin(), merges.end());
  Json list = Json::array();
  for (const auto& [rank, left, right, token, cut] : merges)
    list.push_back(to_byte_alphabet(token->substr(0, cut)) + " " + to_byte_alphabet(token->substr(cut)));
  return list;
}

Encoding encoding_of(const JsonReader& config, const std::string& path) {
  Encoding encoding;
  const std::string file = path.substr(path.find_last_of('/') + 1);
  for (const Encoding& known : known_encodings()) {
    if (file == std::string(known.name) + ".tiktoken") encoding = known;
  }
  if (config.has("pat_str")) encoding = {"", config["pat_str"].text(), {}};
  if (encoding.pattern.empty()) {
    throw FormatError(format(
        "{}: a .tiktoken file does not say how text is split; name it r50k_base, p50k_base, cl100k_base or "
        "o200k_base, or put \"pat_str\" into the tokenizer_config.json beside it",
        path));
  }
  if (config.has("special_tokens")) {
    encoding.special.clear();
    for (const auto& [content, id] : config["special_tokens"].object().json().items())
      encoding.special.emplace_back(content,
                                    config["special_tokens"][content].integer(0, kMaxVocabulary - 1));
  }
  return encoding;
}

}  // namespace

std::string tokenizer_json_of_tiktoken(std::string_view text, std::string_view config,
                                       const std::string& path) {
  const std::string source = path + ": tokenizer_config.json";
  const Json options = read_config(config, source);
  const JsonReader reader(options, source);
  const Encoding encoding = encoding_of(reader, path);
  const Ranks ranks = read_ranks(text, path);
  Json vocab = Json::object();
  for (const auto& [token, rank] : ranks) append_member(vocab, to_byte_alphabet(token), rank);
  Json added = Json::array();
  // The ids of special tokens may leave holes, so they are in the vocabulary too.
  for (const auto& [content, id] : encoding.special) {
    append_member(vocab, std::string(content), id);
    added.push_back(special_token_json(content, id));
  }
  return byte_level_json(std::move(vocab), merges_of(ranks, path), std::move(added),
                         {.pattern = encoding.pattern}, {.ignore_merges = true})
      .dump();
}

}  // namespace stepforge
