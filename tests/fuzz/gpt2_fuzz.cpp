// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for vocab.json, merges.txt and tokenizer_config.json, with bytes 0xFF between them.
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/tokenizer_import.h"
#include "tests/fuzz/parts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepforge;
  return fuzz::try_tokenizer([&] {
    const auto [vocab, merges, config] = fuzz::parts_of<3>(data, size);
    TokenizerFiles files = {{"tokenizer.json", tokenizer_json_of_gpt2(vocab, merges, config, "fuzz")}};
    return std::make_unique<PipelineTokenizer>(std::move(files), "fuzz");
  });
}
