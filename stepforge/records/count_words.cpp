// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/count_words.h"

#include <string>

#include "stepforge/text/tokenizer.h"

namespace stepforge {

void count_words(const TextSource& source, WordCounter& counter, int64_t max_bytes,
                 const std::function<void()>& progress) {
  // Short documents go to the counter in batches, so that all threads have work.
  constexpr int64_t kBatchBytes = int64_t{32} << 20;
  for (size_t file = 0; file < source.files().size(); ++file) {
    const std::string name = source.files()[file].path.string();
    const auto chunks = source.chunks(file, kBatchBytes);
    while (const auto chunk = chunks->next()) {
      if (counter.bytes() >= max_bytes) return;
      if (progress) progress();
      std::string batch;
      source.read(*chunk, [&](std::string_view document) {
        if (static_cast<int64_t>(document.size()) >= kBatchBytes) return counter.add(document, name);
        batch += document;
        batch += kEndOfText;
      });
      counter.add(batch, name);
    }
  }
}

}  // namespace stepforge
