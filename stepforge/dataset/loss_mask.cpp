// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/loss_mask.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMaskMagic = "SFMASK01";
constexpr int64_t kMaskHeaderBytes = 16;
constexpr int64_t kBlockTokens = int64_t{1} << 20;

int64_t mask_bytes(int64_t tokens) {
  return kMaskHeaderBytes + (tokens + 7) / 8;
}

}  // namespace

fs::path mask_path(const fs::path& prefix) {
  return with_suffix(prefix, ".mask");
}

LossMask::LossMask(const fs::path& path, int64_t tokens) : file_(path) {
  const auto fail = [&](const std::string& fault) {
    throw FormatError(format("{}: {}; build the dataset again, or delete the file to count all tokens",
                             path.string(), fault));
  };
  if (file_.size() < kMaskHeaderBytes) fail(format("{} bytes, too few for a header", file_.size()));
  std::array<std::byte, kMaskHeaderBytes> header{};
  file_.read(0, header);
  if (std::memcmp(header.data(), kMaskMagic.data(), kMaskMagic.size()) != 0)
    fail("it does not begin with \"SFMASK01\": this is not a loss mask");
  uint64_t stated = 0;
  std::memcpy(&stated, header.data() + kMaskMagic.size(), sizeof stated);
  if (stated != static_cast<uint64_t>(tokens))
    fail(format("it is the mask of {} tokens, but the dataset has {}", stated, tokens));
  if (file_.size() != mask_bytes(tokens))
    fail(format("{} tokens make {} bytes, but the file has {}", tokens, mask_bytes(tokens), file_.size()));
}

void LossMask::read(int64_t first_token, std::span<uint8_t> out) const {
  if (out.empty()) return;
  const int64_t first_byte = first_token / 8;
  const int64_t last_byte = (first_token + static_cast<int64_t>(out.size()) - 1) / 8;
  std::vector<std::byte> bytes(static_cast<size_t>(last_byte - first_byte + 1));
  file_.read(kMaskHeaderBytes + first_byte, bytes);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t bit = static_cast<size_t>(first_token % 8) + i;
    out[i] = static_cast<uint8_t>((std::to_integer<unsigned>(bytes[bit / 8]) >> (bit % 8)) & 1U);
  }
}

void write_loss_mask(const fs::path& path, const FileReader& counted) {
  FileWriter writer(path);
  writer.write(kMaskMagic);
  const auto tokens = static_cast<uint64_t>(counted.size());
  writer.write(&tokens, sizeof tokens);
  for (int64_t begin = 0; begin < counted.size(); begin += kBlockTokens) {
    const std::string block = counted.text(begin, std::min(counted.size(), begin + kBlockTokens));
    std::string bits((block.size() + 7) / 8, '\0');
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] != 0) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
    }
    writer.write(bits);
  }
  writer.finish();
}

}  // namespace stepforge
