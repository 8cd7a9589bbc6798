// SPDX-License-Identifier: Apache-2.0
// The writing half of safetensors.h.
#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "stepforge/base/bulk_file_writer.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/utf8.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {
namespace {

/// The length field and the padded header. Throws Error on a misaligned tensor.
std::string header_bytes(const std::vector<TensorSpec>& specs, const SafetensorsMetadata& metadata,
                         int64_t& data_bytes) {
  std::string text = "{";
  const auto add_member = [&text](const std::string& key, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += Json(key).dump() + ":" + value;
  };
  if (!metadata.empty()) add_member("__metadata__", Json(metadata).dump());
  int64_t begin = 0;
  for (const TensorSpec& spec : specs) {
    if (begin % dtype_bytes(spec.dtype) != 0) {
      throw Error(
          format("tensor {} of {} would start at byte {} of the data, misaligned; "
                 "write the tensors in aligned_order",
                 quoted_for_message(spec.name), safetensors_name(spec.dtype), begin));
    }
    int64_t end = 0;
    if (__builtin_add_overflow(begin, spec.bytes(), &end)) throw Error("the tensors do not fit one file");
    const Json entry = {
        {"dtype", safetensors_name(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
    add_member(spec.name, entry.dump());
    begin = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  data_bytes = begin;
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  return length + text;
}

/// Throws Error if our own reader would refuse the header.
std::string checked_header(const std::filesystem::path& path, const std::vector<TensorSpec>& specs,
                           const SafetensorsMetadata& metadata) {
  try {
    int64_t data_bytes = 0;
    std::string header = header_bytes(specs, metadata, data_bytes);
    parse_safetensors(std::as_bytes(std::span(header)), static_cast<int64_t>(header.size()) + data_bytes,
                      path.string());
    return header;
  } catch (const Json::exception& failure) {
    throw Error(
        format("cannot write {}: a name or a metadata text is not UTF-8: {}", path.string(), failure.what()));
  } catch (const Error& failure) {
    throw Error(format("cannot write {}: {}", path.string(), failure.what()));
  }
}

}  // namespace

std::vector<TensorSpec> aligned_order(std::vector<TensorSpec> specs) {
  std::stable_sort(specs.begin(), specs.end(), [](const TensorSpec& left, const TensorSpec& right) {
    return dtype_bytes(left.dtype) > dtype_bytes(right.dtype);
  });
  return specs;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                                     const SafetensorsMetadata& metadata)
    : path_(path), specs_(std::move(specs)) {
  const std::string header = checked_header(path, specs_, metadata);
  writer_ = std::make_unique<BulkFileWriter>(path);
  try {
    writer_->write(std::as_bytes(std::span(header)));
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    throw;
  }
  skip_complete();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void SafetensorsWriter::skip_complete() {
  while (current_ < specs_.size() && done_ == specs_[current_].bytes()) {
    ++current_;
    done_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> chunk) {
  if (current_ == specs_.size() || specs_[current_].name != name) {
    const std::string turn =
        current_ == specs_.size() ? "all tensors are complete" : "the next one is " + specs_[current_].name;
    throw Error(format("{}: bytes of tensor {} given, but {}", path_.string(), name, turn));
  }
  const int64_t left = specs_[current_].bytes() - done_;
  if (static_cast<int64_t>(chunk.size()) > left) {
    throw Error(format("{}: {} bytes given for tensor {}, which takes only {} more", path_.string(),
                       chunk.size(), name, left));
  }
  writer_->write(chunk);
  done_ += static_cast<int64_t>(chunk.size());
  skip_complete();
}

std::string SafetensorsWriter::finish() {
  if (current_ != specs_.size()) {
    throw Error(format("{}: tensor {} has only {} of its {} bytes", path_.string(), specs_[current_].name,
                       done_, specs_[current_].bytes()));
  }
  std::string hash = writer_->finish();
  finished_ = true;
  return hash;
}

int64_t SafetensorsWriter::written() const {
  return writer_->written();
}

}  // namespace stepforge
