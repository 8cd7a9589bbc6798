// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "tests/nccl/fake_cuda.h"

namespace stepforge::testing {

FakeNccl& FakeNccl::get() {
  static FakeNccl nccl;
  return nccl;
}

void FakeNccl::plan(int member, Trouble trouble, int groups) {
  const std::lock_guard lock(mutex_);
  troubles_[member] = {trouble, groups};
}

std::optional<Trouble> FakeNccl::take_trouble(int member) {
  const std::lock_guard lock(mutex_);
  const auto found = troubles_.find(member);
  if (found == troubles_.end() || found->second.second-- > 0) return {};
  const Trouble trouble = found->second.first;
  troubles_.erase(found);
  return trouble;
}

void FakeNccl::set_missing(std::optional<int> member) {
  const std::lock_guard lock(mutex_);
  missing_ = member;
}

bool FakeNccl::is_missing(int member) {
  const std::lock_guard lock(mutex_);
  return missing_ == member;
}

FakeNccl::Counts FakeNccl::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void FakeNccl::count(int Counts::* what) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*what);
}

void FakeNccl::reset() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
  troubles_.clear();
  missing_.reset();
}

void FakeNccl::add(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  alive_.insert(comm);
}

bool FakeNccl::remove(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  return alive_.erase(comm) > 0;
}

bool FakeNccl::is_alive(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  return alive_.contains(comm);
}

int FakeNccl::alive() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(alive_.size());
}

namespace fake {

struct Message {
  const std::byte* data;
  std::size_t bytes;
  std::string call;
  bool is_taken = false;
};

/// What the members of one communicator share.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  int finalized = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  ///< by sender and receiver
};

std::shared_ptr<Clique> clique_of(const ncclUniqueId& id) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Clique>> cliques;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Clique>& entry = cliques[id.internal];
  std::shared_ptr<Clique> clique = entry.lock();
  if (clique == nullptr) entry = clique = std::make_shared<Clique>();
  return clique;
}

/// One member. Its fields are protected by the mutex of the clique.
struct Member {
  std::shared_ptr<Clique> clique;
  int size;
  int rank;
  ncclResult_t state = ncclInProgress;
  bool aborted = false;
  bool is_final = false;
  uint64_t accepted = 0;  ///< groups of calls
  uint64_t ended = 0;

  template <typename Ready>
  bool wait(std::unique_lock<std::mutex>& lock, const Ready& ready) {
    clique->changed.wait(lock, [&] { return aborted || ready(); });
    return !aborted;
  }
};

/// A message of a group of calls.
struct Part {
  bool sends;
  std::byte* data;
  std::size_t bytes;
  int peer;
  std::string call;
};

using Parts = std::vector<Part>;

void take(Member& own, std::unique_lock<std::mutex>& lock, const Part& part, bool is_corrupt) {
  auto& messages = own.clique->messages[{part.peer, own.rank}];
  if (!own.wait(lock, [&] { return !messages.empty(); })) return;
  Message& message = *messages.front();
  if (message.call != part.call || message.bytes != part.bytes) {
    FakeCuda::get().fault(format("{} of {} bytes from {} meets {} of {} bytes of {}", message.call,
                                 message.bytes, part.peer, part.call, part.bytes, own.rank));
  }
  std::memcpy(part.data, message.data, std::min(message.bytes, part.bytes));
  if (is_corrupt && part.bytes > 0) part.data[0] ^= std::byte{1};
  message.is_taken = true;
  messages.pop_front();
  own.clique->changed.notify_all();
}

/// Of a stream: moves the messages of a group of calls.
void run(Member& own, uint64_t number, const Parts& parts, std::optional<Trouble> trouble) {
  Clique& clique = *own.clique;
  std::unique_lock lock(clique.mutex);
  if (!own.wait(lock, [&] { return own.ended == number; })) return;
  if (trouble == Trouble::remote_error) {
    own.state = ncclRemoteError;
    own.wait(lock, [] { return false; });
    return;
  }
  std::vector<std::pair<int, std::shared_ptr<Message>>> sent;
  for (const Part& part : parts) {
    if (!part.sends) continue;
    sent.emplace_back(part.peer, std::make_shared<Message>(Message{part.data, part.bytes, part.call}));
    clique.messages[{own.rank, part.peer}].push_back(sent.back().second);
  }
  clique.changed.notify_all();
  for (const Part& part : parts)
    if (!part.sends) take(own, lock, part, trouble == Trouble::corrupt);
  for (const auto& [peer, message] : sent) {
    own.wait(lock, [&, &taken = message->is_taken] { return taken; });
    if (!message->is_taken)
      std::erase(clique.messages[{own.rank, peer}], message);  // its memory may be freed
  }
  ++own.ended;
  clique.changed.notify_all();
}

}  // namespace fake

}  // namespace stepforge::testing

using stepforge::testing::FakeCuda;
using stepforge::testing::FakeNccl;
using stepforge::testing::Trouble;
using stepforge::testing::fake::clique_of;
using stepforge::testing::fake::Member;
using stepforge::testing::fake::Part;
using stepforge::testing::fake::Parts;

/// NCCL's headers leave it open what a communicator is.
struct ncclComm {
  std::shared_ptr<Member> member;
  CUstream_st accepts;  ///< what NCCL's threads do later, in order
};

namespace {

struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  Parts parts;
};

Group& group() {
  static thread_local Group own;
  return own;
}

ncclResult_t misuse(const std::string& text) {
  FakeCuda::get().fault(text);
  return ncclInvalidUsage;
}

ncclResult_t check_ready(ncclComm_t comm) {
  if (!FakeNccl::get().is_alive(comm)) return misuse("a communicator that is gone");
  const std::lock_guard lock(comm->member->clique->mutex);
  return comm->member->state == ncclInProgress ? misuse("a call before the last one is accepted")
                                               : ncclSuccess;
}

ncclResult_t end_group() {
  Group own = std::exchange(group(), {});
  if (own.comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Member> member = own.comm->member;
  FakeNccl::get().count(&FakeNccl::Counts::groups);
  const std::optional<Trouble> trouble = FakeNccl::get().take_trouble(member->rank);
  if (trouble == Trouble::refused) return ncclSystemError;
  uint64_t number = 0;
  {
    const std::lock_guard lock(member->clique->mutex);
    number = member->accepted++;
  }
  const auto give = [member, number, own, trouble] {
    own.stream->enqueue([=] { stepforge::testing::fake::run(*member, number, own.parts, trouble); });
  };
  if (number % 2 == 0) {
    give();
    return ncclSuccess;
  }
  {
    const std::lock_guard lock(member->clique->mutex);
    member->state = ncclInProgress;
  }
  own.comm->accepts.enqueue([member, give] {
    give();
    const std::lock_guard lock(member->clique->mutex);
    if (member->state == ncclInProgress) member->state = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t post(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, const Parts& parts) {
  if (const ncclResult_t result = check_ready(comm); result != ncclSuccess) return result;
  if (type != ncclUint8) return misuse("another type than bytes");
  Group& own = group();
  if (own.comm != nullptr && (own.comm != comm || own.stream != stream))
    return misuse("a group of several communicators or streams");
  own.comm = comm;
  own.stream = stream;
  own.parts.insert(own.parts.end(), parts.begin(), parts.end());
  return own.depth > 0 ? ncclSuccess : end_group();
}

std::byte* bytes_at(const void* address) {
  return static_cast<std::byte*>(const_cast<void*>(address));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count = 0;
  std::snprintf(id->internal, sizeof(id->internal), "clique %d", count++);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return misuse("a communicator that blocks");
  const auto member = std::make_shared<Member>(Member{.clique = clique_of(id), .size = size, .rank = rank});
  *comm = new ncclComm{.member = member, .accepts = {}};
  FakeNccl::get().add(*comm);
  (*comm)->accepts.enqueue([member] {
    std::unique_lock lock(member->clique->mutex);
    if (FakeNccl::get().is_missing(member->rank)) return;
    ++member->clique->joined;
    member->clique->changed.notify_all();
    if (member->wait(lock, [&] { return member->clique->joined == member->size; }))
      member->state = ncclSuccess;
  });
  return ncclInProgress;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of the fake";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return "as planned";
}

ncclResult_t ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group().depth != 1) return misuse("a group that was not begun, or twice");
  group().depth = 0;
  return end_group();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(comm, stream, type, {{true, bytes_at(data), count, peer, "a message"}});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(comm, stream, type, {{false, bytes_at(data), count, peer, "a message"}});
}

ncclResult_t ncclAllGather(const void* part, void* whole, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  if (const ncclResult_t result = check_ready(comm); result != ncclSuccess) return result;
  Parts parts;
  for (int member = 0; member < comm->member->size; ++member) {
    std::byte* const place = bytes_at(whole) + static_cast<size_t>(member) * count;
    if (member == comm->member->rank && place == part) continue;
    parts.push_back({true, bytes_at(part), count, member, "all_gather"});
    parts.push_back({false, place, count, member, "all_gather"});
  }
  return post(comm, stream, type, parts);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t result = check_ready(comm); result != ncclSuccess) return result;
  Parts parts;
  if (from != to) return misuse("a broadcast with two buffers");
  for (int member = 0; member < comm->member->size; ++member)
    if (comm->member->rank == root && member != root)
      parts.push_back({true, bytes_at(from), count, member, "broadcast"});
  if (comm->member->rank != root) parts.push_back({false, bytes_at(to), count, root, "broadcast"});
  return post(comm, stream, type, parts);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  if (!FakeNccl::get().is_alive(comm)) return misuse("a communicator that is gone");
  const std::lock_guard lock(comm->member->clique->mutex);
  *result = comm->member->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t result = check_ready(comm); result != ncclSuccess) return result;
  const std::shared_ptr<Member> member = comm->member;
  {
    const std::lock_guard lock(member->clique->mutex);
    member->state = ncclInProgress;
  }
  comm->accepts.enqueue([member] {
    std::unique_lock lock(member->clique->mutex);
    ++member->clique->finalized;
    member->clique->changed.notify_all();
    if (!member->wait(lock, [&] { return member->clique->finalized == member->size; })) return;
    member->is_final = true;
    member->state = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const ncclResult_t result = check_ready(comm); result != ncclSuccess) return result;
  if (!comm->member->is_final || comm->member->ended != comm->member->accepted)
    return misuse("a communicator is destroyed that is not final");
  FakeNccl::get().remove(comm);
  FakeNccl::get().count(&FakeNccl::Counts::destroyed);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!FakeNccl::get().remove(comm)) return misuse("a communicator that is gone is aborted");
  FakeNccl::get().count(&FakeNccl::Counts::aborted);
  {
    const std::lock_guard lock(comm->member->clique->mutex);
    comm->member->aborted = true;
    comm->member->clique->changed.notify_all();
  }
  delete comm;
  return ncclSuccess;
}

}  // extern "C"
