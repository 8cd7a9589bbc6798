// SPDX-License-Identifier: Apache-2.0
// Times the parts of preparing text, each in a process of its own: `make bench-data` compares them with others.
//
//   bench_text encode TOKENIZER CORPUS THREADS    the texts of a JSON Lines file, already in memory
//   bench_text read CORPUS                        reading them, on one thread
//   bench_text runs TOKENIZER_JSON                one and two megabytes of texts that are hard for it, or for others like it
//
// Prints JSON: {"seconds": ..., ...}, or a list of these.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/records/text_source.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/tokenizer_json.h"

namespace stepforge {
namespace {

template <typename Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Document>
void for_each_text(const std::string& path, const Document& document) {
  const TextSource source({.paths = {path}});
  const auto chunks = source.chunks(0, int64_t{1} << 20);
  while (const auto chunk = chunks->next()) source.read(*chunk, document);
}

void encode(const std::string& tokenizer_path, const std::string& corpus, int threads) {
  std::vector<std::string> texts;
  for_each_text(corpus, [&](std::string_view text) { texts.emplace_back(text); });
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path);
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> tokens = 0;
  const auto work = [&] {
    constexpr size_t kBatch = 64;
    const std::unique_ptr<Encoder> encoder = tokenizer->encoder();
    std::vector<int32_t> ids;
    for (size_t begin = next.fetch_add(kBatch); begin < texts.size(); begin = next.fetch_add(kBatch)) {
      ids.clear();
      for (size_t i = begin; i < std::min(begin + kBatch, texts.size()); ++i) encoder->append(texts[i], ids);
      tokens += static_cast<int64_t>(ids.size());
    }
  };
  const double seconds = seconds_of([&] {
    std::vector<std::jthread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back(work);
    work();
  });
  std::printf("{\"seconds\": %.6f, \"tokens\": %ld}\n", seconds, static_cast<long>(tokens));
}

void read(const std::string& corpus) {
  int64_t bytes = 0;
  const double seconds = seconds_of([&] {
    for_each_text(corpus, [&](std::string_view text) { bytes += static_cast<int64_t>(text.size()); });
  });
  std::printf("{\"seconds\": %.6f, \"bytes\": %ld}\n", seconds, static_cast<long>(bytes));
}

/// Text that is hard for some part of a tokenizer.
struct Hostile {
  std::string name;
  std::string unit;  ///< repeated
  /// What differs from the tokenizer on the command line, as in a tokenizer.json; {} for nothing.
  Json change = Json::object();
};

Json word_piece(int64_t max_characters) {
  return {{"type", "WordPiece"},
          {"unk_token", "[UNK]"},
          {"continuing_subword_prefix", "##"},
          {"max_input_chars_per_word", max_characters},
          {"vocab", {{"[UNK]", 0}, {"a", 1}, {"##a", 2}, {"##aaaaaaaaaaaaaaab", 3}}}};
}

Json unigram() {
  Json vocab = Json::array({Json::array({"?", 0.0})});
  for (size_t length = 1; length <= 16; ++length)
    vocab.push_back({std::string(length, 'a'), -static_cast<double>(length)});
  return {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
}

/// A tokenizer of the model alone: the text is one word.
Json one_word(Json model) {
  return {{"model", std::move(model)},
          {"added_tokens", Json::array()},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr}};
}

Json normalized(const char* form) {
  return {{"normalizer", {{"type", form}}}};
}

/// Whose beginnings are everywhere in a text of "x".
Json added_tokens(int64_t first) {
  Json tokens = Json::array();
  for (int64_t i = 0; i < 200; ++i)
    tokens.push_back(special_token_json(std::string(static_cast<size_t>(i) + 1, 'x') + "!", first + i));
  return {{"added_tokens", std::move(tokens)}};
}

std::vector<Hostile> hostile_texts(const Json& definition) {
  return {{"a", "a"},
          {"space", " "},
          {"1", "1"},
          {"line break", "\n"},
          {"-", "-"},
          {"'", "'"},
          {"U+6F22", "\u6F22"},
          {"U+0301", "\u0301"},
          {"a and space", "a "},
          {"a and -", "a-"},
          {"space, line break", " \n"},
          {"marks, NFC", "\u0301\u0323", normalized("NFC")},
          {"marks, NFKC", "\u0301\u0323", normalized("NFKC")},
          {"a and mark, NFD", "a\u0323\u0301", normalized("NFD")},
          {"jamo, NFC", "\u1100\u1161\u11A8", normalized("NFC")},
          {"a, BPE, one word",
           "a",
           {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}},
          {"ab, BPE, one word",
           "ab",
           {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}},
          {"a, WordPiece", "a", one_word(word_piece(1 << 30))},
          {"a, too long for it", "a", one_word(word_piece(100))},
          {"a, Unigram", "a", one_word(unigram())},
          {"added tokens begun", "x", added_tokens(std::ssize(definition["model"]["vocab"]))}};
}

void runs(const std::string& path) {
  const Json definition = read_json_file(path);
  std::string separator = "[";
  for (const Hostile& hostile : hostile_texts(definition)) {
    Json changed = definition;
    for (const auto& [key, value] : hostile.change.items()) changed[key] = value;
    const PipelineTokenizer tokenizer({{"tokenizer.json", changed.dump()}}, hostile.name);
    const auto seconds = [&](size_t bytes) {
      std::string text;
      while (text.size() < bytes) text += hostile.unit;
      std::vector<int32_t> ids;
      const std::unique_ptr<Encoder> encoder = tokenizer.encoder();
      return seconds_of([&] { encoder->append(text, ids); });
    };
    const double one = seconds(1'000'000);
    std::printf("%s{\"name\": \"%s\", \"one\": %.6f, \"two\": %.6f}", separator.c_str(), hostile.name.c_str(),
                one, seconds(2'000'000));
    separator = ",\n ";
  }
  std::printf("]\n");
}

void run(const std::vector<std::string>& args) {
  if (args.size() == 4 && args[0] == "encode") {
    encode(args[1], args[2], std::stoi(args[3]));
  } else if (args.size() == 2 && args[0] == "read") {
    read(args[1]);
  } else if (args.size() == 2 && args[0] == "runs") {
    runs(args[1]);
  } else {
    throw UsageError("see the head of tools/bench/text.cpp for what can be timed");
  }
}

}  // namespace
}  // namespace stepforge

int main(int argc, char** argv) {
  try {
    stepforge::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
