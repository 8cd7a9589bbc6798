// SPDX-License-Identifier: Apache-2.0
// Collectives on GPU memory by NCCL. NCCL moves the bytes; sums are formed here, in the order that every engine has (device_sum.h).
//
// A call is enqueued on the caller's current stream. A stream of the communicator's own would need two events for each call, and memory
// that the caller frees afterwards would have to be recorded there; and nothing would be won, because each lane of the step program has a
// stream and communicators of its own, so calls that may overlap are on different streams already. If a communicator is used on two
// streams, NCCL orders its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "stepforge/comm/device_engine.h"
#include "stepforge/comm/group_communicator.h"
#include "stepforge/cuda/nccl/connection.h"
#include "stepforge/cuda/nccl/gpu.h"
#include "stepforge/cuda/nccl/pending_calls.h"

namespace stepforge::cuda_nccl {

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(DeviceGroup group, std::shared_ptr<const Gpu> gpu, double seconds);
  /// Waits for the calls that are enqueued, and for those of the other ranks, unless an exception is on its way.
  ~NcclCommunicator() override;

  /// Connects the ranks and tests the transport. A collective; call it first.
  void connect();

  int rank() const override { return group_.control->rank(); }
  int size() const override { return group_.control->size(); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override;
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override;
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  /// Waits for the calls that this rank has enqueued, then for the other ranks.
  void barrier() override;
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override;
  void send(std::span<const std::byte> bytes, int peer) override;
  void receive(std::span<std::byte> bytes, int peer) override;
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override;
  void abort(const std::string& reason) override;

 private:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;
  /// The part of a sum that a member forms.
  using SliceOf = std::function<ConstBytes(int member)>;

  bool is_on_host(ConstBytes outgoing, ConstBytes incoming);
  template <typename Call>
  void on_host(const Call& call);
  template <typename Check, typename Run>
  void enqueue(const CollectiveCall& call, const Check& check, const Run& run);
  template <typename Run>
  void run_or_fail(const std::string& here, const Run& run);
  void enqueue_transfer(const CollectiveCall& call, Transfer<const std::byte> outgoing,
                        Transfer<std::byte> incoming);

  void sum_of_all(Bytes values, DType dtype, cudaStream_t stream);
  void sum_slices(const SliceOf& slice, Bytes own, DType dtype, cudaStream_t stream);
  void exchange(const SliceOf& outgoing, const std::function<Bytes(int member)>& incoming,
                cudaStream_t stream);

  void require_own_gpus();
  void check_peers();
  /// Ends the group with this failure of a call.
  void fail(const std::string& reason);
  /// Aborts NCCL, and tells the other ranks.
  void end(const std::string& reason);
  std::string here_text(const std::string& call) const;

  DeviceGroup group_;
  std::shared_ptr<const Gpu> gpu_;
  const double seconds_;
  std::mutex control_mutex_;  ///< around calls of control
  uint64_t calls_ = 0;        ///< that were enqueued
  NcclConnection connection_;
  PendingCalls pending_;  // last: its thread uses the others
};

}  // namespace stepforge::cuda_nccl
