// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/shared_arena.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>
#include <new>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/cache_line.h"

namespace stepforge {

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters are shared between processes");
static_assert(std::endian::native == std::endian::little, "a futex is the counter's first, low half");

std::size_t round_up(std::size_t bytes) {
  return cache_lines_of(bytes) * kCacheLineBytes;
}

std::size_t buffer_bytes(int size, std::size_t staging_bytes) {
  return staging_bytes == 0
             ? 0
             : std::max(round_up(staging_bytes), kCacheLineBytes * static_cast<std::size_t>(size));
}

/// Pairs exchange messages through staging buffers, so an arena without these needs no slots for pairs. In a world of
/// thousands of ranks the slots would take most of the memory.
std::size_t bytes_before_staging(int size, bool has_staging) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t pairs = has_staging ? ranks * ranks : 0;
  return round_up(sizeof(SharedArenaHeader)) + ranks * sizeof(RankSlot) + pairs * sizeof(PairSlot);
}

/// The kernel compares and wakes by 32 bits: the low half, which changes with every step.
void futex(std::atomic<uint64_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Counter::advance_to(uint64_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void Counter::wake() {
  futex(value_, FUTEX_WAKE, INT32_MAX, nullptr);
}

void Counter::sleep_while(uint64_t seen, double seconds) {
  const double whole = std::floor(std::max(seconds, 0.0));
  const timespec timeout{static_cast<time_t>(whole),
                         static_cast<long>((std::max(seconds, 0.0) - whole) * 1e9)};
  // Either the waker sees the sleeper, or the sleeper sees the new value.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) == seen) {
    futex(value_, FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void RankSlot::record(uint64_t number, const CollectiveCall& call) {
  const uint64_t packed = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                          static_cast<uint64_t>(call.root) << 16;
  kind_dtype_root_[number % 2].store(packed, std::memory_order_relaxed);
  bytes_[number % 2].store(call.bytes, std::memory_order_relaxed);
  unit_[number % 2].store(call.unit, std::memory_order_relaxed);
  calls.store(number, std::memory_order_release);
}

CollectiveCall RankSlot::recorded(uint64_t number) const {
  const uint64_t packed = kind_dtype_root_[number % 2].load(std::memory_order_relaxed);
  return {static_cast<CollectiveKind>(packed & 0xFF), bytes_[number % 2].load(std::memory_order_relaxed),
          static_cast<DType>((packed >> 8) & 0xFF), static_cast<int>(packed >> 16),
          unit_[number % 2].load(std::memory_order_relaxed)};
}

std::size_t SharedArena::bytes_for(int size, std::size_t staging_bytes) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t before = bytes_before_staging(size, staging_bytes != 0);
  return before + 2 * ranks * buffer_bytes(size, staging_bytes);
}

SharedArena::SharedArena(std::shared_ptr<std::byte> memory, int size, std::size_t staging_bytes)
    : memory_(std::move(memory)), size_(size), staging_bytes_(buffer_bytes(size, staging_bytes)) {}

void SharedArena::initialize(uint64_t nonce) const {
  auto* header = new (memory_.get()) SharedArenaHeader;
  header->size = size_;
  header->nonce = nonce;
  for (int rank = 0; rank < size_; ++rank) {
    new (&slot(rank)) RankSlot;
    for (int to = 0; staging_bytes_ != 0 && to < size_; ++to) new (&pair(rank, to)) PairSlot;
  }
}

RankSlot& SharedArena::slot(int rank) const {
  std::byte* slots = memory_.get() + round_up(sizeof(SharedArenaHeader));
  return reinterpret_cast<RankSlot*>(slots)[rank];
}

PairSlot& SharedArena::pair(int from, int to) const {
  return reinterpret_cast<PairSlot*>(&slot(size_))[from * size_ + to];  // behind the ranks' slots
}

std::byte* SharedArena::staging(int rank, uint64_t round) const {
  std::byte* buffers = memory_.get() + bytes_before_staging(size_, true);
  return buffers + (2 * static_cast<std::size_t>(rank) + round % 2) * staging_bytes_;
}

void SharedArena::fail(std::string_view reason) const {
  header().failure.set(reason);
  wake_all();
}

void SharedArena::wake_all() const {
  for (int rank = 0; rank < size_; ++rank) {
    for (Counter* counter :
         {&slot(rank).arrived, &slot(rank).written, &slot(rank).reduced, &slot(rank).consumed}) {
      counter->wake();
    }
    for (int to = 0; staging_bytes_ != 0 && to < size_; ++to) {
      pair(rank, to).written.wake();
      pair(rank, to).read.wake();
    }
  }
}

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(format("not enough memory for {} of staging buffers between ranks",
                       human_bytes(static_cast<int64_t>(bytes))));
  }
  return {static_cast<std::byte*>(address), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

}  // namespace stepforge
