// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"
#include "stepforge/comm/hierarchical_world.h"
#include "stepforge/comm/tree_sum.h"
#include "stepforge/cuda/device_sum.h"
#include "stepforge/cuda/nccl/device_test.h"

namespace stepforge::cuda_nccl {

namespace {

/// The most memory in which a call stages what it sums.
constexpr std::size_t kStagingBytes = std::size_t{64} << 20;
/// Sums of at most so many bytes of all ranks together are formed whole by every rank, after one exchange instead of two.
constexpr std::size_t kSmallSumBytes = std::size_t{64} << 10;
constexpr std::size_t kLineBytes = 256;

std::size_t round_up(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// Where one call of NCCL goes.
struct Post {
  ncclComm_t comm;
  cudaStream_t stream;

  void send(std::span<const std::byte> bytes, int member) const {
    if (!bytes.empty())
      check_nccl(ncclSend(bytes.data(), bytes.size(), ncclUint8, member, comm, stream), "send", comm);
  }
  void receive(std::span<std::byte> bytes, int member) const {
    if (!bytes.empty())
      check_nccl(ncclRecv(bytes.data(), bytes.size(), ncclUint8, member, comm, stream), "receive", comm);
  }
  void all_gather(std::span<const std::byte> part, std::byte* whole) const {
    check_nccl(ncclAllGather(part.data(), whole, part.size(), ncclUint8, comm, stream), "all_gather", comm);
  }
};

void copy(std::span<const std::byte> from, std::span<std::byte> to, cudaStream_t stream) {
  if (from.empty()) return;
  check_cuda(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice, stream), "copy");
}

/// A failure of the control group as it was reported, without the call of this rank in which it was seen.
std::string first_part(const std::string& text) {
  return text.substr(0, text.rfind(" (rank "));
}

}  // namespace

NcclCommunicator::NcclCommunicator(DeviceGroup group, std::shared_ptr<const Gpu> gpu, double seconds)
    : group_(std::move(group)),
      gpu_(std::move(gpu)),
      seconds_(seconds),
      pending_({.device = gpu_->device(),
                .seconds = seconds,
                .check = [this] { check_peers(); },
                .fail = [this](const std::string& reason) { fail(reason); }}) {}

NcclCommunicator::~NcclCommunicator() {
  pending_.wait();
  if (std::uncaught_exceptions() > 0) return;  // the other ranks may never come
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_);
  try {
    const UseDevice device(gpu_->device());
    connection_.close([&] {
      check_peers();
      if (std::chrono::steady_clock::now() > deadline) throw Error("no answer");
    });
    // It has failed before, or nobody needs it any more; it is aborted.
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
  }
}

void NcclCommunicator::connect() {
  const std::string here = here_text("the creation");
  run_or_fail(here, [&] {
    require_own_gpus();
    ncclUniqueId id{};
    if (rank() == 0) id = NcclConnection::new_id();
    group_.control->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    {
      const PendingCalls::Call creation(pending_, here, {});
      connection_.open(id, size(), rank());
    }
    test_on_device(*this, group_.name, *gpu_);
  });
}

/// NCCL refuses two ranks on one GPU, but does not say which.
void NcclCommunicator::require_own_gpus() {
  char bus[64] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), gpu_->device()), "ask for the bus of the device");
  const std::vector<std::string> gpus = gather_texts(*group_.control, format("{} {}", host_identity(), bus));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto other = std::find(gpus.begin() + static_cast<std::ptrdiff_t>(i) + 1, gpus.end(), gpus[i]);
    if (other == gpus.end()) continue;
    throw UsageError(
        format("comm.backend = nccl: ranks {} and {} share a GPU, but each needs one of its own: start fewer "
               "ranks on a host, or set comm.backend to auto",
               group_.ranks[i], group_.ranks[static_cast<std::size_t>(other - gpus.begin())]));
  }
}

void NcclCommunicator::all_gather(ConstBytes part, Bytes whole, int unit) {
  if (is_on_host(part, whole)) {
    return on_host([&](Communicator& control) { control.all_gather(part, whole, unit); });
  }
  enqueue(
      {CollectiveKind::all_gather, part.size(), DType::u8, 0, unit},
      [&] { check_parts(part.size(), whole.size(), size()); },
      [&](cudaStream_t stream) {
        if (part.empty()) return;
        connection_.issue([&](ncclComm_t comm) { Post{comm, stream}.all_gather(part, whole.data()); });
      });
}

void NcclCommunicator::reduce_scatter(ConstBytes whole, Bytes part, DType dtype, int unit) {
  if (is_on_host(whole, part)) {
    return on_host([&](Communicator& control) { control.reduce_scatter(whole, part, dtype, unit); });
  }
  const auto slice = [&](int member) {
    return whole.subspan(static_cast<std::size_t>(member) * part.size(), part.size());
  };
  enqueue(
      {CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit},
      [&] {
        check_parts(part.size(), whole.size(), size());
        check_sum(part.size(), dtype);
      },
      [&](cudaStream_t stream) { sum_slices(slice, part, dtype, stream); });
}

void NcclCommunicator::all_reduce(Bytes values, DType dtype, int unit) {
  if (is_on_host(values, {})) {
    return on_host([&](Communicator& control) { control.all_reduce(values, dtype, unit); });
  }
  enqueue(
      {CollectiveKind::all_reduce, values.size(), dtype, 0, unit}, [&] { check_sum(values.size(), dtype); },
      [&](cudaStream_t stream) { sum_of_all(values, dtype, stream); });
}

void NcclCommunicator::broadcast(Bytes bytes, int root) {
  if (is_on_host(bytes, {})) {
    return on_host([&](Communicator& control) { control.broadcast(bytes, root); });
  }
  enqueue(
      {CollectiveKind::broadcast, bytes.size(), DType::u8, root}, [&] { check_root(root, size()); },
      [&](cudaStream_t stream) {
        if (bytes.empty()) return;
        connection_.issue([&](ncclComm_t comm) {
          check_nccl(ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8, root, comm, stream),
                     "broadcast", comm);
        });
      });
}

void NcclCommunicator::barrier() {
  pending_.wait();
  on_host([](Communicator& control) { control.barrier(); });
}

void NcclCommunicator::all_to_all(ConstBytes outgoing, std::span<const std::size_t> outgoing_sizes,
                                  Bytes incoming, std::span<const std::size_t> incoming_sizes, int unit) {
  if (is_on_host(outgoing, incoming)) {
    return on_host([&](Communicator& control) {
      control.all_to_all(outgoing, outgoing_sizes, incoming, incoming_sizes, unit);
    });
  }
  enqueue(
      {CollectiveKind::all_to_all, 0, DType::u8, 0, unit},
      [&] {
        check_all_to_all(outgoing.size(), outgoing_sizes, incoming.size(), incoming_sizes, rank(), size());
      },
      [&](cudaStream_t stream) {
        const Parts parts(outgoing, outgoing_sizes);
        const Parts places(incoming, incoming_sizes);
        copy(parts.of(rank()), places.of(rank()), stream);
        exchange([&](int member) { return parts.of(member); }, [&](int member) { return places.of(member); },
                 stream);
      });
}

void NcclCommunicator::send(ConstBytes bytes, int peer) {
  if (is_on_host(bytes, {})) {
    return on_host([&](Communicator& control) { control.send(bytes, peer); });
  }
  enqueue_transfer({CollectiveKind::send, bytes.size(), DType::u8, peer}, {bytes, peer}, {});
}

void NcclCommunicator::receive(Bytes bytes, int peer) {
  if (is_on_host({}, bytes)) {
    return on_host([&](Communicator& control) { control.receive(bytes, peer); });
  }
  enqueue_transfer({CollectiveKind::receive, bytes.size(), DType::u8, peer}, {}, {bytes, peer});
}

void NcclCommunicator::send_receive(ConstBytes outgoing, int to, Bytes incoming, int from) {
  if (is_on_host(outgoing, incoming)) {
    return on_host([&](Communicator& control) { control.send_receive(outgoing, to, incoming, from); });
  }
  enqueue_transfer(
      {CollectiveKind::send_receive, outgoing.size() + incoming.size(), DType::u8, to, kNoUnit, from},
      {outgoing, to}, {incoming, from});
}

void NcclCommunicator::enqueue_transfer(const CollectiveCall& call, Transfer<const std::byte> outgoing,
                                        Transfer<std::byte> incoming) {
  enqueue(
      call,
      [&] {
        if (call.kind == CollectiveKind::send_receive) {
          check_send_receive(outgoing.bytes.size(), outgoing.peer, incoming.bytes.size(), incoming.peer,
                             rank(), size());
        } else {
          check_peer(call.kind, call.root, rank(), size());
        }
      },
      [&](cudaStream_t stream) {
        if (outgoing.peer == rank()) return copy(outgoing.bytes, incoming.bytes, stream);
        if (outgoing.bytes.empty() && incoming.bytes.empty()) return;
        connection_.issue([&](ncclComm_t comm) {
          const Post post{comm, stream};
          post.send(outgoing.bytes, outgoing.peer);
          post.receive(incoming.bytes, incoming.peer);
        });
      });
}

void NcclCommunicator::abort(const std::string& reason) {
  group_.control->abort(reason);
  // NCCL is aborted by the thread that watches, after it has set the failure: the host must not read what an aborted call left as if
  // it were a result.
  connection_.refuse(format("rank {}: {}", group_.ranks[static_cast<std::size_t>(rank())], reason));
  pending_.check_now();
}

/// Without bytes nothing tells where they would be; such a call does nothing on a device: a rank that has no rows for its experts.
bool NcclCommunicator::is_on_host(ConstBytes outgoing, ConstBytes incoming) {
  bool on_device = false;
  bool on_host = false;
  for (const ConstBytes bytes : {outgoing, incoming}) {
    if (!bytes.empty()) (gpu_->owns(bytes.data()) ? on_device : on_host) = true;
  }
  check_arguments(*this, [&] {
    if (on_device && on_host) throw Error("a collective with one buffer in host memory and one on a device");
  });
  return on_host;
}

template <typename Call>
void NcclCommunicator::on_host(const Call& call) {
  group_.failure->rethrow();
  const std::lock_guard lock(control_mutex_);
  call(*group_.control);
}

template <typename Check, typename Run>
void NcclCommunicator::enqueue(const CollectiveCall& call, const Check& check, const Run& run) {
  check_arguments(*this, check);
  group_.failure->rethrow();
  ++calls_;
  const std::string here = here_text(format("{}, call {}", collective_text(call), calls_));
  run_or_fail(here, [&] {
    cudaStream_t stream = gpu_->current_stream();
    connection_.check();
    PendingCalls::Call pending(pending_, here, stream);
    run(stream);
    pending.end(stream);
  });
}

/// An error of `run` ends the group; thrown is the first failure of this rank.
template <typename Run>
void NcclCommunicator::run_or_fail(const std::string& here, const Run& run) {
  try {
    const UseDevice device(gpu_->device());
    return run();
  } catch (const UsageError&) {
    throw;  // by every rank: nobody waits
  } catch (const PeerError& error) {
    fail(error.what());
  } catch (const Error& error) {
    fail(format("{}; {}", error.what(), here));
  }
  group_.failure->rethrow();
}

/// Sends to and receives from all other members, at the same time.
void NcclCommunicator::exchange(const SliceOf& outgoing, const std::function<Bytes(int member)>& incoming,
                                cudaStream_t stream) {
  connection_.issue([&](ncclComm_t comm) {
    const Post post{comm, stream};
    for (int member = 0; member < size(); ++member) {
      if (member == rank()) continue;
      post.send(outgoing(member), member);
      post.receive(incoming(member), member);
    }
  });
}

void NcclCommunicator::sum_of_all(Bytes values, DType dtype, cudaStream_t stream) {
  const auto members = static_cast<std::size_t>(size());
  if (values.empty()) return;
  if (values.size() * members <= kSmallSumBytes) {
    const std::shared_ptr<std::byte> staging = gpu_->allocate(values.size() * members);
    connection_.issue([&](ncclComm_t comm) { Post{comm, stream}.all_gather(values, staging.get()); });
    cuda::device_tree_sum(staging.get(), values.size(), values.data(), rank(), size(), values.data(),
                          values.size(), dtype, stream);
    return check_cuda(cudaGetLastError(), "sum");
  }
  const std::size_t step = round_up((values.size() + members - 1) / members);
  const auto slice = [&](int member) {
    const std::size_t begin = std::min(values.size(), step * static_cast<std::size_t>(member));
    return values.subspan(begin, std::min(step, values.size() - begin));
  };
  sum_slices(slice, slice(rank()), dtype, stream);
  exchange([&](int) { return slice(rank()); }, slice, stream);
}

/// own = the sum of this rank's slices of all members; each member gives slice(m) to member m.
void NcclCommunicator::sum_slices(const SliceOf& slice, Bytes own, DType dtype, cudaStream_t stream) {
  const auto members = static_cast<std::size_t>(size());
  std::size_t longest = 0;
  for (int member = 0; member < size(); ++member) longest = std::max(longest, slice(member).size());
  if (longest == 0) return;
  const std::size_t most = std::max(kLineBytes, kStagingBytes / members / kLineBytes * kLineBytes);
  const std::size_t step = std::min(most, round_up(longest));
  const std::shared_ptr<std::byte> staging = gpu_->allocate(step * members);
  const auto piece = [&](auto bytes, std::size_t offset) {
    const std::size_t begin = std::min(bytes.size(), offset);
    return bytes.subspan(begin, std::min(step, bytes.size() - begin));
  };
  for (std::size_t offset = 0; offset < longest; offset += step) {
    const Bytes output = piece(own, offset);
    exchange([&](int member) { return piece(slice(member), offset); },
             [&](int member) {
               return Bytes(staging.get() + static_cast<std::size_t>(member) * step, output.size());
             },
             stream);
    cuda::device_tree_sum(staging.get(), step, piece(slice(rank()), offset).data(), rank(), size(),
                          output.data(), output.size(), dtype, stream);
    check_cuda(cudaGetLastError(), "sum");
  }
}

/// Of the thread that watches: NCCL's errors, and those that other ranks have reported to the control group.
void NcclCommunicator::check_peers() {
  connection_.check();
  const std::unique_lock lock(control_mutex_, std::try_to_lock);
  if (!lock) return;  // the call that has it throws what there is
  try {
    // Between a member and itself nothing is sent, and nobody is waited for.
    group_.control->send_receive({}, rank(), {}, rank());
  } catch (const PeerError& error) {
    throw PeerError(first_part(error.what()));
  }
}

void NcclCommunicator::fail(const std::string& reason) {
  group_.failure->set(std::make_exception_ptr(PeerError(reason)), reason);  // first: see abort()
  end(reason);
}

void NcclCommunicator::end(const std::string& reason) {
  group_.control->abort(reason);
  connection_.abort(reason);
}

/// "rank 2 was in all_gather of 64 bytes, call 3 of group "fsdp" (ranks 0, 2), by NCCL"
std::string NcclCommunicator::here_text(const std::string& call) const {
  std::vector<std::string> named;
  for (const int rank : group_.ranks) {
    if (named.size() < kMostNamedRanks) named.push_back(format("{}", rank));
  }
  return format("rank {} was in {} of group \"{}\" (ranks {}), by NCCL",
                group_.ranks[static_cast<std::size_t>(rank())], call, group_.name,
                named_ranks_text(named, std::ssize(group_.ranks)));
}

}  // namespace stepforge::cuda_nccl
