// SPDX-License-Identifier: Apache-2.0
// The simulated devices of this process: their streams, events, memory and counts. Process-wide, because devices of libtorch
// are. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stepforge/sim/memory_map.h"
#include "stepforge/sim/race_detector.h"
#include "stepforge/sim/stream.h"

namespace stepforge::sim {

inline constexpr int kDevices = 8;

/// A place in the work of a stream.
struct Event {
  int stream = 0;
  uint32_t position = 0;
  Clock clock;  ///< what is known there
};

/// Work for a stream, with the memory that it reads and writes: of the device, or pinned.
struct Task {
  std::string name;
  std::vector<Range> reads;
  std::vector<Range> writes;
  std::function<void()> run;
};

/// Of one device since the process began.
struct Counts {
  int64_t operations = 0;
  int64_t host_waits = 0;                          ///< how often the host waited for a stream
  std::map<std::string, int64_t> host_operations;  ///< by name: whose result has a size that only data tell
};

class Machine {
 public:
  static Machine& get();

  /// The default stream of device d is stream d. Streams of a pool are given out in turn.
  int stream_from_pool(int device);
  /// A stream that nothing else uses until it is given back.
  int take_stream(int device);
  void give_back(int stream);
  int device_of(int stream);

  /// Throws Error for a race, and if earlier work of the stream has failed.
  void enqueue(int stream, Task task);
  Event record(int stream);
  void wait_for(int stream, const Event& event);
  /// Whether the event has happened; then what the host enqueues later on the stream's device is ordered after it.
  bool happened(const Event& event);
  /// The same, but it orders nothing.
  bool finished(const Event& event);
  /// The host waits for an event, a stream, or all streams of a device.
  void synchronize(const Event& event);
  void synchronize_stream(int stream);
  void synchronize_device(int device);

  /// All work that used `range` has finished, and whoever uses it next comes later.
  void forget(Range range);
  /// `stream` may write `range` once all of `events` have happened. A race is thrown by the next enqueue() for the device, since
  /// memory is freed in destructors.
  void check_reuse(Range range, int stream, const std::vector<Event>& events);

  /// New device memory. Throws std::bad_alloc if the device has no more.
  Range take_device_block(int device, int64_t bytes);
  /// Pinned memory, whole pages; one that was given back if no stream uses it any more.
  Range take_pinned_block(int64_t bytes);
  void give_back_pinned_block(const void* begin);
  bool is_pinned(const void* address) const { return pinned_.contains(address); }
  bool is_device_memory(const void* address) const { return device_memory_.contains(address); }
  /// The address for the work of streams.
  std::byte* for_streams(const void* address) const;

  /// What this thread's next work belongs to, for messages: an operation of the step program.
  static void mark(std::string what);

  /// Only while no stream has work.
  void set_delays(const Delays& delays) { delays_ = delays; }
  Counts counts(int device);
  void count_host_operation(int device, const std::string& name);
  /// The host waited, for something that orders nothing else.
  void count_host_wait(int device);
  /// Races and accesses of the host that no call has thrown yet, and forgets them; "" if there are none.
  std::string take_faults();

 private:
  Machine();

  Stream& stream(int number) { return *streams_[static_cast<size_t>(number)]; }
  void add_stream(int device);
  void check(Stream& stream);
  /// Now the host knows what `clock` knows.
  void learn(int device, const Clock& clock);
  void use_pinned(Range range, HostRights rights, const Work& work);
  void finish_pinned_uses();

  /// What streams do with a block of pinned memory.
  struct PinnedUse {
    Range pages;
    HostRights rights = HostRights::read_and_write;
    std::vector<Work> pending;
    bool free = false;
  };

  Delays delays_;
  MemoryMap device_memory_;
  MemoryMap pinned_;
  std::mutex mutex_;  ///< of all that follows
  std::vector<std::unique_ptr<Stream>> streams_;
  std::array<std::vector<int>, kDevices> pools_;
  std::array<size_t, kDevices> next_in_pool_ = {};
  std::array<std::vector<int>, kDevices> unused_;  ///< streams that were given back
  std::array<Clock, kDevices> known_by_host_;
  std::array<Counts, kDevices> counts_;
  std::array<int64_t, kDevices> device_bytes_ = {};
  int64_t pinned_bytes_ = 0;
  std::map<const std::byte*, PinnedUse> pinned_uses_;  ///< by the end of the block
  RaceDetector detector_;
  std::array<std::string, kDevices> races_;  ///< found while memory was freed
};

}  // namespace stepforge::sim
