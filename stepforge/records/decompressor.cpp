// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/decompressor.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// The bytes of the file as they are.
class PlainContents : public ContentReader {
 public:
  explicit PlainContents(const fs::path& path) : file_(path) {}

  int64_t read(std::span<char> out) override {
    const int64_t count = std::min<int64_t>(std::ssize(out), file_.size() - position_);
    file_.read(position_, std::as_writable_bytes(out.first(static_cast<size_t>(count))));
    position_ += count;
    return count;
  }
  int64_t position() const override { return position_; }

 private:
  FileReader file_;
  int64_t position_ = 0;
};

constexpr size_t kInputBytes = size_t{1} << 18;

/// The compressed bytes of a file, block by block.
class CompressedInput {
 public:
  explicit CompressedInput(const fs::path& path) : file_(path), block_(kInputBytes) {}

  /// Bytes of the block that are not used yet; reads the next block if there are none. Empty at the end of the file.
  std::span<const std::byte> available() {
    if (used_ == filled_) {
      base_ += static_cast<int64_t>(filled_);
      filled_ = static_cast<size_t>(std::min<int64_t>(file_.size() - base_, std::ssize(block_)));
      used_ = 0;
      file_.read(base_, std::span(block_).first(filled_));
    }
    return std::span(block_).subspan(used_, filled_ - used_);
  }
  void use(size_t count) { used_ += count; }
  int64_t position() const { return base_ + static_cast<int64_t>(used_); }

  [[noreturn]] void fail(const std::string& fault) const {
    throw FormatError(format("{}: byte {}: {}", file_.path().string(), position(), fault));
  }
  /// Counts output, which must be in proportion to the input.
  void count_output(int64_t bytes) {
    output_ += bytes;
    if (expands_too_much(position(), output_))
      fail(format("expands to more than {} times its size; unpack it by hand if that is meant",
                  kMaxContentRatio));
  }

 private:
  FileReader file_;
  std::vector<std::byte> block_;
  int64_t base_ = 0;  ///< of the block in the file
  size_t filled_ = 0;
  size_t used_ = 0;
  int64_t output_ = 0;
};

class GzipDecompressor : public ContentReader {
 public:
  explicit GzipDecompressor(const fs::path& path) : input_(path) {
    constexpr int kGzipWindow = 15 + 16;
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) throw Error("cannot start zlib");
  }
  ~GzipDecompressor() override { inflateEnd(&stream_); }

  int64_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      const auto input = input_.available();
      if (input.empty()) {
        if (inside_) input_.fail("the file ends inside of a gzip stream: it is truncated");
        break;
      }
      filled += inflate_some(input, out.subspan(filled));
    }
    input_.count_output(static_cast<int64_t>(filled));
    return static_cast<int64_t>(filled);
  }
  int64_t position() const override { return input_.position(); }

 private:
  size_t inflate_some(std::span<const std::byte> input, std::span<char> out) {
    inside_ = true;
    // zlib's interface has no const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));  // NOLINT
    stream_.avail_in = static_cast<uInt>(input.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());  // NOLINT
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), size_t{1} << 30));
    const uInt room = stream_.avail_out;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    input_.use(input.size() - stream_.avail_in);
    if (status == Z_STREAM_END) {  // another member may follow
      inside_ = false;
      inflateReset(&stream_);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      input_.fail(format("corrupt gzip data ({})", stream_.msg != nullptr ? stream_.msg : zError(status)));
    }
    return room - stream_.avail_out;
  }

  CompressedInput input_;
  z_stream stream_{};
  bool inside_ = false;
};

class ZstdDecompressor : public ContentReader {
 public:
  explicit ZstdDecompressor(const fs::path& path)
      : input_(path), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!stream_) throw Error("cannot start zstd");
  }

  int64_t read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos < output.size) {
      const auto available = input_.available();
      if (available.empty() && !inside_) break;
      ZSTD_inBuffer input{available.data(), available.size(), 0};
      const size_t before = output.pos;
      const size_t status = ZSTD_decompressStream(stream_.get(), &output, &input);
      input_.use(input.pos);
      if (ZSTD_isError(status) != 0)
        input_.fail(format("corrupt Zstandard data ({})", ZSTD_getErrorName(status)));
      inside_ = status != 0;
      if (available.empty() && inside_ && output.pos == before)
        input_.fail("the file ends inside of a Zstandard frame: it is truncated");
    }
    input_.count_output(static_cast<int64_t>(output.pos));
    return static_cast<int64_t>(output.pos);
  }
  int64_t position() const override { return input_.position(); }

 private:
  CompressedInput input_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool inside_ = false;
};

}  // namespace

bool is_compressed_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".gz" || extension == ".zst" || extension == ".zstd";
}

fs::path unpacked_name(const fs::path& path) {
  return is_compressed_name(path) ? path.stem() : path.filename();
}

std::unique_ptr<ContentReader> open_bytes(const fs::path& path) {
  if (!is_compressed_name(path)) return std::make_unique<PlainContents>(path);
  if (lower_extension(path) == ".gz") return std::make_unique<GzipDecompressor>(path);
  return std::make_unique<ZstdDecompressor>(path);
}

}  // namespace stepforge
