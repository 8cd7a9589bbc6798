// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for .model files of SentencePiece.
#include "stepforge/text/sentencepiece_tokenizer.h"
#include "tests/fuzz/parts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepforge;
  return fuzz::try_tokenizer([&] {
    return make_sentencepiece_tokenizer(std::string(reinterpret_cast<const char*>(data), size), "fuzz.model");
  });
}
