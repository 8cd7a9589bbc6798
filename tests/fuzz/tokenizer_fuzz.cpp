// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for tokenizer.json and the tokenizer_config.json beside it, which follows a byte 0xFF.
#include "stepforge/text/pipeline_tokenizer.h"
#include "tests/fuzz/parts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepforge;
  return fuzz::try_tokenizer([&]() -> std::unique_ptr<Tokenizer> {
    const auto [definition, config] = fuzz::parts_of<2>(data, size);
    TokenizerFiles files = {{"tokenizer.json", definition}};
    if (!config.empty()) files["tokenizer_config.json"] = config;
    return std::make_unique<PipelineTokenizer>(std::move(files), "fuzz");
  });
}
