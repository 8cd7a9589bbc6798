// SPDX-License-Identifier: Apache-2.0
// Small runs on answers that are judged alone.
#pragma once

#include <string>

#include "tests/train/pair_runs.h"

namespace stepforge::testing {

/// Prompts, each with one answer; letters are desirable, digits are not.
inline std::string judged_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const bool desirable = i % 3 < 2;
    lines += format(
        R"({{"prompt": "{}=", "completion": "{}", "label": {}}})"
        "\n",
        std::string(static_cast<size_t>(1 + i * 7 % 5), static_cast<char>('a' + i % 26)),
        std::string(static_cast<size_t>(1 + i * 5 % 6), static_cast<char>((desirable ? 'A' : '0') + i % 10)),
        desirable ? "true" : "false");
  }
  return lines;
}

inline Strings judged_run(const TempFolder& folder, const std::string& name,
                          const std::string& loss = "kto") {
  write_text(folder / "judged.jsonl", judged_lines(60));
  return pair_run(folder, name, loss) +
         Strings{format("data.sources=[{{path=\"{}\",format=\"unpaired_preference\"}}]",
                        (folder / "judged.jsonl").string()),
                 "training.seq_len=32"};
}

}  // namespace stepforge::testing
