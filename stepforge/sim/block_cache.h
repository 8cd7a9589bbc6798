// SPDX-License-Identifier: Apache-2.0
// Device memory by streams, as the caching allocator of CUDA gives it out: a freed block is at once given to later work of the
// same stream, which runs after the work that used it; if other streams used it, and this was recorded, only when their work has
// finished. Nothing is returned to the system. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "stepforge/sim/machine.h"

namespace stepforge::sim {

struct Block {
  Range range;
  int device = 0;
  int stream = 0;         ///< whose work it belongs to
  int64_t requested = 0;  ///< bytes; the block may be larger
  std::set<int> users;    ///< other streams
};

struct BlockStats {
  int64_t live_bytes = 0;  ///< requested and not freed
  int64_t peak_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t system_blocks = 0;  ///< taken from the device so far
};

class BlockCache {
 public:
  /// One for the machine of this process.
  static BlockCache& get();

  /// For the work of `stream`. Throws std::bad_alloc if the device has no more memory.
  Block* allocate(int stream, int64_t bytes);
  void free(Block* block);
  /// `stream` uses the block as well.
  void record(Block* block, int stream);

  BlockStats stats(int device);
  void reset_peak(int device);

 private:
  /// A freed block, and the work of other streams that must finish first.
  struct Waiting {
    Block* block = nullptr;
    std::vector<Event> events;
  };
  using FreeBlocks = std::multimap<int64_t, Block*>;  ///< by size

  void take_in_finished();
  Block* take_free(int stream, int64_t size);

  std::mutex mutex_;
  std::map<int, FreeBlocks> free_;  ///< by stream
  std::vector<Waiting> waiting_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::array<BlockStats, kDevices> stats_ = {};
};

}  // namespace stepforge::sim
