// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_pairs.h"

#include <string>

#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/prove/exact_model.h"

namespace stepforge {

void write_exact_pairs(const std::filesystem::path& file) {
  constexpr size_t kPairs = 50;
  constexpr size_t kBetter = kExactAnswer - 1;
  std::string lines;
  for (size_t i = 0; i < kPairs; ++i) {
    const auto text = [i](size_t first, size_t size) {
      std::string letters;
      for (size_t k = 0; k < size; ++k) letters += static_cast<char>('a' + (first + i * 7 + k * k * 3) % 26);
      return letters;
    };
    const size_t prompt = 3 + i % 2;
    const size_t other = (prompt == 3 ? 3 : 1) + i / 2 % 3;
    lines += Json{{"prompt", text(0, prompt)}, {"chosen", text(5, kBetter)}, {"rejected", text(12, other)}}
                 .dump() +
             "\n";
  }
  write_file_atomic(file, lines);
}

}  // namespace stepforge
