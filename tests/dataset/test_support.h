// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room and of the next: small datasets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "stepforge/dataset/indexed_dataset_writer.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {

using Documents = std::vector<std::vector<int32_t>>;

inline std::shared_ptr<const IndexedDataset> write_dataset(const std::filesystem::path& prefix,
                                                           const Documents& documents,
                                                           TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, {type});
  for (const auto& document : documents) writer.add_document(document);
  writer.publish();
  return std::make_shared<IndexedDataset>(prefix);
}

/// Documents of consecutive numbers 0, 1, 2, ... with the given lengths.
inline Documents counting_documents(const std::vector<int64_t>& lengths) {
  Documents documents;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  return documents;
}

}  // namespace stepforge::testing
