// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/machine.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::sim {

namespace {

constexpr int64_t kDeviceBytes = int64_t{8} << 30;  // address space; memory only where it is touched
constexpr int64_t kPinnedBytes = int64_t{8} << 30;
constexpr size_t kPoolStreams = 16;

int64_t whole_pages(int64_t bytes) {
  return std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
}

std::string& marked() {
  thread_local std::string what;
  return what;
}

}  // namespace

Machine& Machine::get() {
  static auto* const machine = new Machine();  // streams may outlive every other object
  return *machine;
}

Machine::Machine()
    : device_memory_(kDevices * kDeviceBytes, HostRights::none),
      pinned_(kPinnedBytes, HostRights::read_and_write) {
  catch_host_accesses(device_memory_, pinned_);
  for (int device = 0; device < kDevices; ++device) add_stream(device);
}

void Machine::add_stream(int device) {
  streams_.push_back(std::make_unique<Stream>(static_cast<int>(streams_.size()), device, delays_));
}

int Machine::stream_from_pool(int device) {
  const std::lock_guard lock(mutex_);
  std::vector<int>& pool = pools_.at(static_cast<size_t>(device));
  if (pool.size() < kPoolStreams) {
    pool.push_back(static_cast<int>(streams_.size()));
    add_stream(device);
    return pool.back();
  }
  return pool[next_in_pool_.at(static_cast<size_t>(device))++ % kPoolStreams];
}

int Machine::take_stream(int device) {
  const std::lock_guard lock(mutex_);
  std::vector<int>& unused = unused_.at(static_cast<size_t>(device));
  if (unused.empty()) {
    unused.push_back(static_cast<int>(streams_.size()));
    add_stream(device);
  }
  const int taken = unused.back();
  unused.pop_back();
  return taken;
}

void Machine::give_back(int number) {
  const std::lock_guard lock(mutex_);
  unused_.at(static_cast<size_t>(stream(number).device())).push_back(number);
}

int Machine::device_of(int number) {
  const std::lock_guard lock(mutex_);
  return stream(number).device();
}

void Machine::check(Stream& stream) {
  if (const std::string race = std::exchange(races_.at(static_cast<size_t>(stream.device())), "");
      !race.empty())
    throw Error(race);
  if (const std::string access = host_access(); !access.empty())
    throw Error(format("{}, before {}", access, marked().empty() ? "it waited" : marked()));
  if (const std::string failure = stream.take_failure(); !failure.empty())
    throw Error(
        format("earlier work of stream {} of a simulated device failed: {}", stream.number(), failure));
}

void Machine::enqueue(int number, Task task) {
  const std::lock_guard lock(mutex_);
  Stream& to = stream(number);
  check(to);
  to.clock.join(known_by_host_.at(static_cast<size_t>(to.device())));
  const std::string& operation = marked();
  const Work work{number, to.enqueued + 1,
                  std::make_shared<const std::string>(
                      operation.empty() ? std::move(task.name) : format("{}, in {}", task.name, operation))};
  to.clock.set(number, work.position);
  for (const Range& range : task.reads) detector_.read(range, work, to.clock);
  for (const Range& range : task.writes) detector_.write(range, work, to.clock);
  for (const Range& range : task.reads) use_pinned(range, HostRights::read, work);
  for (const Range& range : task.writes) use_pinned(range, HostRights::none, work);
  ++to.enqueued;
  ++counts_.at(static_cast<size_t>(to.device())).operations;
  to.push(std::move(task.run));
}

Event Machine::record(int number) {
  const std::lock_guard lock(mutex_);
  Stream& from = stream(number);
  from.clock.join(known_by_host_.at(static_cast<size_t>(from.device())));
  return {number, from.enqueued, from.clock};
}

void Machine::wait_for(int number, const Event& event) {
  const std::lock_guard lock(mutex_);
  Stream& to = stream(number);
  to.clock.join(event.clock);
  if (event.stream == number) return;
  to.clock.set(number, ++to.enqueued);
  to.push([&from = stream(event.stream), position = event.position] { from.wait(position); });
}

bool Machine::happened(const Event& event) {
  const std::lock_guard lock(mutex_);
  const Stream& from = stream(event.stream);
  if (!from.finished(event.position)) return false;
  learn(from.device(), event.clock);
  return true;
}

bool Machine::finished(const Event& event) {
  const std::lock_guard lock(mutex_);
  return stream(event.stream).finished(event.position);
}

void Machine::forget(Range range) {
  const std::lock_guard lock(mutex_);
  detector_.forget(range);
}

void Machine::synchronize(const Event& event) {
  Stream* from = nullptr;
  {
    const std::lock_guard lock(mutex_);
    from = &stream(event.stream);
    ++counts_.at(static_cast<size_t>(from->device())).host_waits;
  }
  from->wait(event.position);
  const std::lock_guard lock(mutex_);
  check(*from);
  learn(from->device(), event.clock);
}

void Machine::synchronize_stream(int number) {
  synchronize(record(number));
}

void Machine::synchronize_device(int device) {
  std::vector<int> numbers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_)
      if (stream->device() == device) numbers.push_back(stream->number());
  }
  for (const int number : numbers) synchronize_stream(number);
}

void Machine::learn(int device, const Clock& clock) {
  Clock& known = known_by_host_.at(static_cast<size_t>(device));
  known.join(clock);
  for (auto& [end, use] : pinned_uses_) {
    std::erase_if(use.pending, [&](const Work& work) {
      return stream(work.stream).device() == device && known.of(work.stream) >= work.position;
    });
    if (!use.pending.empty() || use.rights == HostRights::read_and_write) continue;
    use.rights = HostRights::read_and_write;
    pinned_.allow(use.pages, use.rights);
  }
}

void Machine::use_pinned(Range range, HostRights rights, const Work& work) {
  if (range.bytes == 0 || !pinned_.contains(range.begin)) return;
  PinnedUse& use = pinned_uses_.upper_bound(range.begin)->second;
  use.pending.push_back(work);
  if (use.rights <= rights) return;
  use.rights = rights;
  pinned_.allow(use.pages, rights);
}

void Machine::check_reuse(Range range, int number, const std::vector<Event>& events) {
  const std::lock_guard lock(mutex_);
  const Stream& next = stream(number);
  const auto device = static_cast<size_t>(next.device());
  Clock clock = next.clock;
  clock.join(known_by_host_.at(device));
  for (const Event& event : events) clock.join(event.clock);
  const Work later{number, next.enqueued + 1,
                   std::make_shared<const std::string>(
                       marked().empty() ? "later work" : format("what follows {}", marked()))};
  const std::string race = detector_.fault_of_reuse(range, later, clock);
  if (race.empty()) return;
  detector_.forget(range);  // one message is enough
  if (races_.at(device).empty()) races_.at(device) = race;
}

Range Machine::take_device_block(int device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  int64_t& used = device_bytes_.at(static_cast<size_t>(device));
  if (used + bytes > kDeviceBytes) throw std::bad_alloc();
  return {device_memory_.at(device * kDeviceBytes + std::exchange(used, used + bytes)), bytes};
}

/// Notes which uses of blocks that were given back have ended, as event queries would.
void Machine::finish_pinned_uses() {
  for (auto& [end, use] : pinned_uses_)
    if (use.free)
      std::erase_if(use.pending,
                    [&](const Work& work) { return stream(work.stream).finished(work.position); });
}

Range Machine::take_pinned_block(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t size = whole_pages(bytes);
  finish_pinned_uses();
  for (auto& [end, use] : pinned_uses_) {
    if (!use.free || use.pages.bytes != size || !use.pending.empty()) continue;
    use.free = false;
    detector_.forget(use.pages);
    if (use.rights != HostRights::read_and_write) pinned_.allow(use.pages, HostRights::read_and_write);
    use.rights = HostRights::read_and_write;
    return use.pages;
  }
  if (pinned_bytes_ + size > kPinnedBytes) throw std::bad_alloc();
  const Range pages{pinned_.at(std::exchange(pinned_bytes_, pinned_bytes_ + size)), size};
  pinned_uses_[pages.end()].pages = pages;
  return pages;
}

void Machine::give_back_pinned_block(const void* begin) {
  const std::lock_guard lock(mutex_);
  pinned_uses_.upper_bound(static_cast<const std::byte*>(begin))->second.free = true;
}

std::byte* Machine::for_streams(const void* address) const {
  return pinned_.contains(address) ? pinned_.for_streams(address) : device_memory_.for_streams(address);
}

void Machine::mark(std::string what) {
  marked() = std::move(what);
}

Counts Machine::counts(int device) {
  const std::lock_guard lock(mutex_);
  return counts_.at(static_cast<size_t>(device));
}

void Machine::count_host_operation(int device, const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++counts_.at(static_cast<size_t>(device)).host_operations[name];
}

void Machine::count_host_wait(int device) {
  const std::lock_guard lock(mutex_);
  ++counts_.at(static_cast<size_t>(device)).host_waits;
}

std::string Machine::take_faults() {
  const std::lock_guard lock(mutex_);
  std::string faults = host_access();
  for (std::string& race : races_) faults += std::exchange(race, "");
  return faults;
}

}  // namespace stepforge::sim
