// SPDX-License-Identifier: Apache-2.0
// NCCL's communicators behind our interface. NCCL transfers the bytes. Calls are compared and failures
// reported over the control world. Sums are computed here, in the same order as in every engine.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "stepforge/base/format.h"
#include "stepforge/comm/collective.h"
#include "stepforge/comm/gather.h"
#include "stepforge/comm/group_communicator.h"
#include "stepforge/comm/tree_sum.h"
#include "stepforge/engines/nccl/device_sum.h"
#include "stepforge/engines/nccl/plugin.h"

namespace stepforge {

namespace {

/// The most device memory that a group uses to stage sums.
constexpr std::size_t kStagingBytes = std::size_t{64} << 20;
constexpr std::size_t kLineBytes = 256;

void check(cudaError_t result, const char* operation) {
  if (result != cudaSuccess) throw Error(format("CUDA: {}: {}", operation, cudaGetErrorString(result)));
}

void check(ncclResult_t result, const char* operation) {
  if (result != ncclSuccess && result != ncclInProgress) {
    throw Error(format("NCCL: {}: {}", operation, ncclGetErrorString(result)));
  }
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// Device memory that grows on demand.
class DeviceBuffer {
 public:
  ~DeviceBuffer() { cudaFree(memory_); }
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* at_least(std::size_t bytes) {
    if (bytes <= bytes_) return static_cast<std::byte*>(memory_);
    check(cudaFree(std::exchange(memory_, nullptr)), "free staging memory");
    bytes_ = 0;
    check(cudaMalloc(&memory_, bytes), "allocate staging memory");
    bytes_ = bytes;
    return static_cast<std::byte*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

class NcclCommunicator : public Communicator {
 public:
  /// `ranks`: the members' ranks in the world, for messages.
  NcclCommunicator(std::unique_ptr<Communicator> control, std::string name, std::vector<int> ranks,
                   const NcclRequest& request)
      : control_(std::move(control)), name_(std::move(name)), ranks_(std::move(ranks)), request_(request) {}

  /// Creates NCCL's communicator, together with the other ranks.
  void connect() {
    check(cudaSetDevice(request_.device), "set the device");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "create an id");
    control_->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that every wait has our deadline
    check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "create a communicator");
    wait_for_state("the creation of the communicator");
  }

  ~NcclCommunicator() override {
    cudaSetDevice(request_.device);
    if (comm_ != nullptr) ncclCommAbort(comm_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }

  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    call(
        {CollectiveKind::all_gather, part.size(), DType::u8, 0, unit},
        [&] {
          check_parts(part.size(), whole.size(), size());
          check_on_device(part);
          check_on_device(whole);
        },
        [&] {
          check(ncclAllGather(part.data(), whole.data(), part.size(), ncclUint8, comm_, stream_),
                "all-gather");
        });
  }

  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    call(
        {CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit},
        [&] {
          check_parts(part.size(), whole.size(), size());
          check_sum(part.size(), dtype);
          check_on_device(whole);
          check_on_device(part);
        },
        [&] {
          const auto slice = [&](int member) {
            return whole.subspan(static_cast<std::size_t>(member) * part.size(), part.size());
          };
          sum_slices(slice, part, dtype);
        });
  }

  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    call(
        {CollectiveKind::all_reduce, values.size(), dtype, 0, unit},
        [&] {
          check_sum(values.size(), dtype);
          check_on_device(values);
        },
        [&] {
          const auto members = static_cast<std::size_t>(size());
          const std::size_t step = round_up((values.size() + members - 1) / members);
          const auto slice = [&](int member) {
            const std::size_t begin = std::min(values.size(), step * static_cast<std::size_t>(member));
            return values.subspan(begin, std::min(step, values.size() - begin));
          };
          sum_slices(slice, slice(rank()), dtype);
          grouped([&] {
            for (int member = 0; member < size(); ++member) {
              if (member == rank()) continue;
              post_send(slice(rank()), member);
              post_receive(slice(member), member);
            }
          });
        });
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    call(
        {CollectiveKind::broadcast, bytes.size(), DType::u8, root},
        [&] {
          check_root(root, size());
          check_on_device(bytes);
        },
        [&] {
          check(ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8, root, comm_, stream_),
                "broadcast");
        });
  }

  void barrier() override { control_->barrier(); }

  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override {
    const CollectiveCall all_to_all{CollectiveKind::all_to_all, 0, DType::u8, 0, unit};
    call(
        all_to_all,
        [&] {
          check_all_to_all(outgoing.size(), outgoing_sizes, incoming.size(), incoming_sizes, rank(), size());
          check_on_device(outgoing);
          check_on_device(incoming);
        },
        [&] {
          const Parts parts(outgoing, outgoing_sizes);
          const Parts places(incoming, incoming_sizes);
          compare_sizes(all_to_all, parts, places);
          copy(parts.of(rank()), places.of(rank()));
          grouped([&] {
            for (int member = 0; member < size(); ++member) {
              if (member == rank()) continue;
              post_send(parts.of(member), member);
              post_receive(places.of(member), member);
            }
          });
        });
  }

  void send(std::span<const std::byte> bytes, int peer) override {
    constexpr CollectiveKind kind = CollectiveKind::send;
    transfer({kind, bytes.size(), DType::u8, peer}, {bytes, peer}, {},
             [&] { check_peer(kind, peer, rank(), size()); });
  }

  void receive(std::span<std::byte> bytes, int peer) override {
    constexpr CollectiveKind kind = CollectiveKind::receive;
    transfer({kind, bytes.size(), DType::u8, peer}, {}, {bytes, peer},
             [&] { check_peer(kind, peer, rank(), size()); });
  }

  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    transfer({CollectiveKind::send_receive, outgoing.size() + incoming.size(), DType::u8, to, kNoUnit, from},
             {outgoing, to}, {incoming, from},
             [&] { check_send_receive(outgoing.size(), to, incoming.size(), from, rank(), size()); });
  }

  void abort(const std::string& reason) override { control_->abort(reason); }

 private:
  /// One call: checks its arguments, compares it with the other ranks' calls unless it is paired, runs it,
  /// waits for it.
  void call(const CollectiveCall& call, const std::function<void()>& check_call_arguments,
            const std::function<void()>& run) {
    check(cudaSetDevice(request_.device), "set the device");
    check_arguments(*this, check_call_arguments);
    if (!is_paired(call.kind)) compare(call);
    try {
      run();
      wait_for_state(collective_name(call.kind));
      wait_for_stream(call);
    } catch (const PeerError&) {
      throw;
    } catch (const Error& error) {
      control_->abort(error.what());
      throw;
    }
  }

  void compare(const CollectiveCall& call) {
    ++calls_;
    struct Header {
      uint64_t number;
      uint64_t bytes;
      uint32_t kind;
      uint32_t dtype;
      int32_t root;
      int32_t unit;
    };
    const Header own{
        calls_,    call.bytes, static_cast<uint32_t>(call.kind), static_cast<uint32_t>(call.dtype),
        call.root, call.unit};
    const std::vector<Header> all = gather_values(*control_, std::array{own});
    for (int member = 0; member < size(); ++member) {
      const Header& theirs = all[static_cast<std::size_t>(member)];
      if (std::memcmp(&theirs, &own, sizeof(Header)) == 0) continue;
      const CollectiveCall other{static_cast<CollectiveKind>(theirs.kind), theirs.bytes,
                                 static_cast<DType>(theirs.dtype), theirs.root, theirs.unit};
      const std::string reason = disagreement_text(name_, calls_, ranks_[static_cast<std::size_t>(rank())],
                                                   call, ranks_[static_cast<std::size_t>(member)], other);
      control_->abort(reason);
      throw PeerError(reason);
    }
  }

  /// Throws PeerError on every rank if a member sends another size than its receiver expects.
  void compare_sizes(const CollectiveCall& call, const Parts<const std::byte>& outgoing,
                     const Parts<std::byte>& incoming) {
    std::vector<uint64_t> own(outgoing.sizes().begin(), outgoing.sizes().end());
    own.insert(own.end(), incoming.sizes().begin(), incoming.sizes().end());
    const std::vector<uint64_t> all = gather_values(*control_, own);
    const auto members = static_cast<std::size_t>(size());
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        const auto [i, j] = std::pair{static_cast<std::size_t>(from), static_cast<std::size_t>(to)};
        check_sizes_of_pair(call, from, all[2 * i * members + j], to, all[(2 * j + 1) * members + i]);
      }
    }
  }
  void check_sizes_of_pair(const CollectiveCall& call, int from, uint64_t sent, int to, uint64_t expected) {
    if (sent == expected) return;
    const std::string reason = size_disagreement_text(name_, call, ranks_[static_cast<std::size_t>(from)],
                                                      sent, ranks_[static_cast<std::size_t>(to)], expected);
    control_->abort(reason);
    throw PeerError(reason);
  }

  /// A paired call. The sizes are compared over the control world, in both directions, before NCCL waits.
  void transfer(const CollectiveCall& paired, Transfer<const std::byte> outgoing,
                Transfer<std::byte> incoming, const std::function<void()>& check_members) {
    call(
        paired,
        [&] {
          check_members();
          check_on_device(outgoing.bytes);
          check_on_device(incoming.bytes);
        },
        [&] {
          if (outgoing.peer == rank()) return copy(outgoing.bytes, incoming.bytes);
          exchange_sizes(paired, outgoing, incoming);
          grouped([&] {
            if (!outgoing.is_none()) post_send(outgoing.bytes, outgoing.peer);
            if (!incoming.is_none()) post_receive(incoming.bytes, incoming.peer);
          });
        });
  }

  void exchange_sizes(const CollectiveCall& paired, const Transfer<const std::byte>& outgoing,
                      const Transfer<std::byte>& incoming) {
    const uint64_t own_size = outgoing.bytes.size();
    const uint64_t own_expected = incoming.bytes.size();
    uint64_t sent = own_expected;
    uint64_t expected = own_size;
    control_transfer(own_size, outgoing.peer, sent, incoming.peer);
    control_transfer(own_expected, incoming.peer, expected, outgoing.peer);
    if (!incoming.is_none()) check_sizes_of_pair(paired, incoming.peer, sent, rank(), own_expected);
    if (!outgoing.is_none()) check_sizes_of_pair(paired, rank(), own_size, outgoing.peer, expected);
  }
  /// Members may be Transfer<>::kNoPeer.
  void control_transfer(const uint64_t& outgoing, int to, uint64_t& incoming, int from) {
    constexpr int none = Transfer<std::byte>::kNoPeer;
    const auto sent = std::as_bytes(std::span(&outgoing, 1));
    const auto received = std::as_writable_bytes(std::span(&incoming, 1));
    if (from == none) {
      control_->send(sent, to);
    } else if (to == none) {
      control_->receive(received, from);
    } else {
      control_->send_receive(sent, to, received, from);
    }
  }

  /// Throws UsageError for host memory, with which NCCL would fail or crash.
  static void check_on_device(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    cudaPointerAttributes attributes{};
    const cudaError_t result = cudaPointerGetAttributes(&attributes, bytes.data());
    if (result != cudaSuccess || attributes.type != cudaMemoryTypeDevice) {
      cudaGetLastError();  // clears the error, which the next call would report
      throw UsageError(
          "comm.backend = nccl needs tensors in GPU memory, but these are in host memory: set "
          "comm.backend to auto or gloo");
    }
  }

  void sum_slices(const std::function<std::span<const std::byte>(int)>& slice, std::span<std::byte> own,
                  DType dtype) {
    const auto members = static_cast<std::size_t>(size());
    std::size_t longest = 0;
    for (int member = 0; member < size(); ++member) longest = std::max(longest, slice(member).size());
    const std::size_t max_step = std::max(kLineBytes, kStagingBytes / members / kLineBytes * kLineBytes);
    const std::size_t step = std::min(max_step, round_up(longest));
    if (step == 0) return;
    std::byte* staging = staging_.at_least(step * members);
    const auto piece = [&](auto bytes, std::size_t offset) {
      const std::size_t begin = std::min(bytes.size(), offset);
      return bytes.subspan(begin, std::min(step, bytes.size() - begin));
    };
    for (std::size_t offset = 0; offset < longest; offset += step) {
      const std::span<std::byte> output = piece(own, offset);
      grouped([&] {
        for (int member = 0; member < size(); ++member) {
          if (member == rank()) continue;
          post_send(piece(slice(member), offset), member);
          post_receive({staging + static_cast<std::size_t>(member) * step, output.size()}, member);
        }
      });
      check(device_tree_sum(staging, step, piece(slice(rank()), offset).data(), rank(), size(), output.data(),
                            output.size(), dtype, stream_),
            "sum");
    }
  }

  void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    if (from.empty()) return;
    check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice, stream_), "copy");
  }
  void grouped(const std::function<void()>& messages) {
    check(ncclGroupStart(), "begin a group of messages");
    messages();
    check(ncclGroupEnd(), "send a group of messages");
    wait_for_state("a group of messages");
  }
  void post_send(std::span<const std::byte> bytes, int member) {
    if (!bytes.empty())
      check(ncclSend(bytes.data(), bytes.size(), ncclUint8, member, comm_, stream_), "send");
  }
  void post_receive(std::span<std::byte> bytes, int member) {
    if (!bytes.empty())
      check(ncclRecv(bytes.data(), bytes.size(), ncclUint8, member, comm_, stream_), "receive");
  }

  /// Waits until NCCL has accepted the calls so far.
  void wait_for_state(std::string_view operation) {
    wait(operation, [&] {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), "query errors");
      check(state, "communicate");
      return state != ncclInProgress;
    });
  }
  void wait_for_stream(const CollectiveCall& call) {
    wait(collective_text(call), [&] {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), "query errors");
      check(state, "communicate");
      const cudaError_t result = cudaStreamQuery(stream_);
      if (result != cudaErrorNotReady) check(result, "communicate");
      return result == cudaSuccess;
    });
  }
  void wait(std::string_view operation, const std::function<bool()>& is_done) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    for (int polls = 0; !is_done(); ++polls) {
      if (polls > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (std::chrono::duration<double>(Clock::now() - start).count() < request_.train_seconds) continue;
      ncclCommAbort(std::exchange(comm_, nullptr));
      const std::string reason = format("no answer within {} s in {}, call {} of group \"{}\", over NCCL",
                                        request_.train_seconds, operation, calls_, name_);
      control_->abort(reason);
      throw PeerError(reason);
    }
  }

  std::unique_ptr<Communicator> control_;
  std::string name_;
  std::vector<int> ranks_;
  NcclRequest request_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  DeviceBuffer staging_;
  uint64_t calls_ = 0;
};

class NcclWorld : public World {
 public:
  explicit NcclWorld(const NcclRequest& request) : request_(request) {
    int devices = 0;
    const cudaError_t result = cudaGetDeviceCount(&devices);
    if (result != cudaSuccess || devices == 0) {
      throw UsageError(
          format("comm.backend = nccl: CUDA finds no GPU on this host ({}); set comm.backend to auto or gloo",
                 cudaGetErrorString(result)));
    }
    if (request.device >= devices) {
      throw UsageError(format("comm.backend = nccl: local rank {} needs its own GPU, but this host has {}",
                              request.device, devices));
    }
  }

  int rank() const override { return request_.control->rank(); }
  int size() const override { return request_.control->size(); }
  std::string transport() const override { return "NCCL"; }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    auto communicator =
        std::make_unique<NcclCommunicator>(request_.control->group(name, ranks), name, ranks, request_);
    communicator->connect();
    return communicator;
  }
  void abort(const std::string& reason) override { request_.control->abort(reason); }

 private:
  NcclRequest request_;
};

}  // namespace

extern "C" std::unique_ptr<World> stepforge_nccl_entry(const NcclRequest& request) {
  return std::make_unique<NcclWorld>(request);
}

}  // namespace stepforge
