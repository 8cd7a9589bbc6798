// SPDX-License-Identifier: Apache-2.0
// What a tokenization made of its text: sizes, lengths, and what was left out and why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/json_reader.h"
#include "stepforge/records/record_format.h"

namespace stepforge {

/// Sizes of one dataset.
struct DatasetStatistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;  ///< UTF-8 bytes of the documents, without end-of-document tokens

  friend bool operator==(const DatasetStatistics&, const DatasetStatistics&) = default;
};

/// Counts lengths by powers of two: element k is the number of those from 2^(k-1) to 2^k - 1; element 0 of empty ones.
using LengthHistogram = std::array<int64_t, 33>;

/// Why a record that is malformed is missing (TokenizeResult::dropped).
inline constexpr const char* kMalformed = "malformed";
/// Why a document that occurred before is missing.
inline constexpr const char* kDuplicate = "duplicate";

/// So many messages about malformed records are kept.
inline constexpr size_t kNamedRecords = 5;

struct TokenizeResult {
  DatasetStatistics train;
  DatasetStatistics validation;
  LengthHistogram lengths{};  ///< of the documents of both, in tokens
  LossesByReason dropped{};   ///< documents that are missing, by reason: a rule of the filter, ...
  LossesByReason cut{};       ///< what is missing of documents that are there
  std::vector<std::string> bad_records{};  ///< messages that name the first few malformed records

  friend bool operator==(const TokenizeResult&, const TokenizeResult&) = default;
};

Json to_json(const TokenizeResult& result);
/// Throws FormatError.
TokenizeResult tokenize_result_from(const JsonReader& json);

/// Throws FormatError naming the first malformed record if more than `most` were left out.
void require_few_bad_records(const TokenizeResult& result, int64_t most);

/// Notes for people about what is missing, a line each: none if nothing is.
std::vector<std::string> loss_notes(const TokenizeResult& result);
/// Tables of what is missing and of the lengths.
std::string report_text(const TokenizeResult& result);

}  // namespace stepforge
