// SPDX-License-Identifier: Apache-2.0
// Times the parts of preparing text, each in a process of its own: `make bench-data` compares them with others.
//
//   bench_text encode TOKENIZER CORPUS THREADS    the texts of a JSON Lines file, already in memory
//   bench_text read CORPUS                        reading them, on one thread
//   bench_text runs TOKENIZER                     one and two megabytes of the same character
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
#include "stepforge/data/text_source.h"
#include "stepforge/text/tokenizer.h"

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

void runs(const std::string& tokenizer_path) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path);
  std::string separator = "[";
  for (const std::string_view character : {"a", " ", "1", "\n", "-", "'", "\u6F22", "\u0301"}) {
    const auto seconds = [&](size_t bytes) {
      std::string text;
      while (text.size() < bytes) text += character;
      std::vector<int32_t> ids;
      const std::unique_ptr<Encoder> encoder = tokenizer->encoder();
      return seconds_of([&] { encoder->append(text, ids); });
    };
    const double one = seconds(1'000'000);
    std::printf("%s{\"one\": %.6f, \"two\": %.6f}", separator.c_str(), one, seconds(2'000'000));
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
