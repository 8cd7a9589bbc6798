// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/block_cache.h"

#include <algorithm>
#include <utility>

namespace stepforge::sim {

namespace {
constexpr int64_t kRounding = 512;  // as CUDA's
}  // namespace

BlockCache& BlockCache::get() {
  static auto* const cache = new BlockCache();  // tensors may outlive every other object
  return *cache;
}

Block* BlockCache::take_free(int stream, int64_t size) {
  FreeBlocks& blocks = free_[stream];
  const auto found = blocks.lower_bound(size);
  if (found == blocks.end() || found->first > 2 * size) return nullptr;
  Block* const block = found->second;
  blocks.erase(found);
  return block;
}

Block* BlockCache::allocate(int stream, int64_t bytes) {
  const int64_t size = std::max(kRounding, (bytes + kRounding - 1) / kRounding * kRounding);
  const int device = Machine::get().device_of(stream);
  const std::lock_guard lock(mutex_);
  take_in_finished();
  BlockStats& stats = stats_.at(static_cast<size_t>(device));
  Block* block = take_free(stream, size);
  if (block == nullptr) {
    blocks_.push_back(std::make_unique<Block>());
    block = blocks_.back().get();
    *block = {.range = Machine::get().take_device_block(device, size),
              .device = device,
              .stream = stream,
              .requested = 0,
              .users = {}};
    stats.reserved_bytes += size;
    ++stats.system_blocks;
  }
  block->requested = bytes;
  stats.live_bytes += bytes;
  stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
  return block;
}

void BlockCache::free(Block* block) {
  const std::lock_guard lock(mutex_);
  stats_.at(static_cast<size_t>(block->device)).live_bytes -= block->requested;
  Waiting waiting{block, {}};
  for (const int user : std::exchange(block->users, {}))
    waiting.events.push_back(Machine::get().record(user));
  Machine::get().check_reuse(block->range, block->stream, waiting.events);
  if (waiting.events.empty()) {
    free_[block->stream].emplace(block->range.bytes, block);
  } else {
    waiting_.push_back(std::move(waiting));
  }
}

void BlockCache::record(Block* block, int stream) {
  const std::lock_guard lock(mutex_);
  if (stream != block->stream) block->users.insert(stream);
}

void BlockCache::take_in_finished() {
  std::erase_if(waiting_, [this](Waiting& waiting) {
    std::erase_if(waiting.events, [](const Event& event) { return Machine::get().finished(event); });
    if (!waiting.events.empty()) return false;
    Machine::get().forget(waiting.block->range);
    free_[waiting.block->stream].emplace(waiting.block->range.bytes, waiting.block);
    return true;
  });
}

BlockStats BlockCache::stats(int device) {
  const std::lock_guard lock(mutex_);
  return stats_.at(static_cast<size_t>(device));
}

void BlockCache::reset_peak(int device) {
  const std::lock_guard lock(mutex_);
  BlockStats& stats = stats_.at(static_cast<size_t>(device));
  stats.peak_bytes = stats.live_bytes;
}

}  // namespace stepforge::sim
