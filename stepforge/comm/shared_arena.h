// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of a group on one host share: progress counters, staging buffers, and the reason
// why the group ended. Threads share plain memory, processes a mapped file.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/failure_note.h"

namespace stepforge {

/// A number that only grows; other threads and processes can sleep until it changes.
class Counter {
 public:
  uint64_t load() const { return value_.load(std::memory_order_acquire); }
  /// Release store: a thread that loads the new value sees everything written before. Wakes the sleepers.
  void advance_to(uint64_t value);
  /// Wakes the sleepers without a change.
  void wake();
  /// Sleeps until the counter is no longer `seen`, wake() is called, or `seconds` have passed.
  void sleep_while(uint64_t seen, double seconds);

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

/// The state of one rank that the other ranks of its group see.
struct alignas(64) RankSlot {
  Counter arrived;                 ///< 1 once the rank has joined the group
  Counter written;                 ///< number of rounds whose data it has put into its staging buffer
  Counter reduced;                 ///< number of rounds whose slice it has summed in its staging buffer
  Counter consumed;                ///< number of rounds whose data it has read
  std::atomic<uint64_t> calls{0};  ///< number of collectives begun
  std::atomic<uint32_t> has_left{0};
  std::atomic<int32_t> process{0};    ///< process id
  std::atomic<int64_t> last_look{0};  ///< of a world: WorldStatus::last_look

  /// Records call number `number`. It can be read until call `number` + 2.
  void record(uint64_t number, const CollectiveCall& call);
  CollectiveCall recorded(uint64_t number) const;

 private:
  std::array<std::atomic<uint64_t>, 2> kind_dtype_root_{};
  std::array<std::atomic<uint64_t>, 2> bytes_{};
  std::array<std::atomic<int32_t>, 2> unit_{};
};

/// The messages from one rank to another. They pass through the sender's staging buffers in pieces, which
/// alternate between its two buffers; a message without data is one empty piece.
struct alignas(64) PairSlot {
  std::atomic<uint64_t> bytes{0};  ///< size of the message whose first piece was written last
  Counter written;                 ///< number of pieces that the sender has put into its staging buffers
  Counter read;                    ///< number of pieces that the receiver has read
};

struct SharedArenaHeader {
  int64_t size = 0;    ///< number of ranks
  uint64_t nonce = 0;  ///< of a world: part of the names of its groups' files
  FailureNote failure;
};

/// A view of shared memory as a header, a slot and two staging buffers for each rank, and, if there are staging
/// buffers, a slot for each pair.
class SharedArena {
 public:
  static std::size_t bytes_for(int size, std::size_t staging_bytes);

  /// `memory` holds bytes_for(size, staging_bytes) bytes and is aligned to 64. Each staging buffer has
  /// `staging_bytes`, but at least 64 for each rank; 0 means none.
  SharedArena(std::shared_ptr<std::byte> memory, int size, std::size_t staging_bytes);
  /// Initializes zeroed memory; called by one rank before any other uses it.
  void initialize(uint64_t nonce = 0) const;

  int size() const { return size_; }
  std::size_t staging_bytes() const { return staging_bytes_; }
  SharedArenaHeader& header() const { return *reinterpret_cast<SharedArenaHeader*>(memory_.get()); }
  RankSlot& slot(int rank) const;
  PairSlot& pair(int from, int to) const;
  /// Rounds alternate between a rank's two buffers.
  std::byte* staging(int rank, uint64_t round) const;

  /// Records the reason and wakes all sleepers.
  void fail(std::string_view reason) const;
  /// Wakes all sleepers of this arena's counters.
  void wake_all() const;

 private:
  std::shared_ptr<std::byte> memory_;
  int size_;
  std::size_t staging_bytes_;
};

/// Zeroed memory of this process. Throws Error if there is not enough.
std::shared_ptr<std::byte> private_memory(std::size_t bytes);

}  // namespace stepforge
