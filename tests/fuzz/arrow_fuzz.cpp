// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for Parquet and Arrow files: the first bytes decide which format the input is read as. Whatever is read
// must be rows of JSON.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/records/arrow_library.h"

// libparquet loses a small object where it refuses some corrupt files.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libparquet.so";
}

extern "C" stepforge::ContentReader* stepforge_arrow_entry(const stepforge::ArrowRequest& request);

namespace {

/// A file in memory.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, size_t size) : descriptor_(memfd_create("table", 0)) {
    if (write(descriptor_, bytes, size) != static_cast<ssize_t>(size)) __builtin_trap();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return stepforge::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

void read_table(const std::string& path) {
  constexpr int64_t kMaxMemory = int64_t{128} << 20;
  constexpr size_t kMaxText = size_t{1} << 20;
  const std::unique_ptr<stepforge::ContentReader> reader(
      stepforge_arrow_entry({.path = path, .max_memory = kMaxMemory}));
  std::string text(kMaxText, '\0');
  text.resize(static_cast<size_t>(reader->read(text)));
  for (size_t begin = 0, end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    if (!stepforge::Json::accept(text.substr(begin, end - begin))) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const MemoryFile file(bytes, size);
  try {
    read_table(file.path());
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
