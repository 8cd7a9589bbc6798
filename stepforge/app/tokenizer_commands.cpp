// SPDX-License-Identifier: Apache-2.0
// `stepforge tokenizer train | encode | decode`.
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/log.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/count_words.h"
#include "stepforge/text/bpe_trainer.h"
#include "stepforge/text/line_codec.h"

namespace stepforge {

namespace {

using Codec = std::function<void(const Tokenizer&, const CodecInput&, std::ostream&)>;

int run_codec(const TokenizerCodecOptions& options, const Codec& codec) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options.tokenizer);
  for (const std::string& note : tokenizer->notes()) std::cerr << printable(note) << '\n';
  const auto run = [&](std::istream& stream, const std::string& name) {
    codec(*tokenizer,
          {.stream = stream,
           .name = name,
           .add_special_tokens = options.add_special_tokens,
           .skip_special_tokens = options.skip_special_tokens},
          std::cout);
  };
  if (options.input.empty() || options.input == "-") {
    std::ios::sync_with_stdio(false);
    run(std::cin, "standard input");
    return 0;
  }
  std::ifstream input(options.input, std::ios::binary);
  if (!input || std::filesystem::is_directory(options.input)) {
    throw UsageError(format("cannot read {}", options.input.string()));
  }
  run(input, options.input.string());
  return 0;
}

}  // namespace

int tokenizer_train_command(const TokenizerTrainOptions& options) {
  Logger log(LogLevel::info, stderr_is_terminal());
  const BpeTraining training(options.recipe);
  WordCounter counter(training.counting());
  const TextSource source({.paths = options.inputs, .field = options.field});
  if (const std::string& skipped = source.skipped(); !skipped.empty()) log.warning("{}", skipped);
  count_words(source, counter);
  if (counter.counts().empty()) throw Error("the text to train on is empty");
  log.info("{} of text, {} distinct words", human_bytes(counter.bytes()),
           with_thousands(std::ssize(counter.counts())));
  const TrainedBpe trained = training.train(counter.counts());
  if (trained.vocab_size < options.recipe.vocab_size) {
    log.warning(
        "no more pairs of tokens occur {} times: {} tokens instead of {}; "
        "use more text, or a smaller --vocab-size",
        options.recipe.min_frequency, trained.vocab_size, options.recipe.vocab_size);
  }
  training.tokenizer(trained)->save_pretrained(options.output);
  log.info("tokenizer of {} tokens written to {}", with_thousands(trained.vocab_size),
           options.output.string());
  return 0;
}

int tokenizer_encode_command(const TokenizerCodecOptions& options) {
  return run_codec(options, options.jsonl ? encode_jsonl : encode_plain);
}

int tokenizer_decode_command(const TokenizerCodecOptions& options) {
  return run_codec(options, options.jsonl ? decode_jsonl : decode_plain);
}

}  // namespace stepforge
