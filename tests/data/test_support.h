// Shared by the tests of this room: temporary folders, small datasets, messages of exceptions.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "data/indexed_dataset.h"
#include "data/packing.h"
#include "text/tokenizer.h"

namespace stepforge::testing_support {

/// A fresh folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = ::testing::TempDir() + "stepforge-data-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw Error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// The text of the error that `body` throws; fails the test if it throws none of type E.
template <typename E = Error, typename F>
std::string message_of(const F& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

using Documents = std::vector<std::vector<int32_t>>;

inline std::shared_ptr<const IndexedDataset> write_dataset(const std::filesystem::path& prefix,
                                                           const Documents& documents,
                                                           TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, type);
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

inline bool same(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.seq_len == b.seq_len && a.tokens == b.tokens && a.positions == b.positions &&
         a.labels == b.labels && a.cu_seqlens == b.cu_seqlens &&
         a.max_document_length == b.max_document_length && a.row_ids == b.row_ids &&
         a.valid_labels == b.valid_labels;
}

}  // namespace stepforge::testing_support
