// SPDX-License-Identifier: Apache-2.0
// The collectives of a group of ranks: one interface for every engine (one process, shared memory, a network),
// on plain bytes, without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/error.h"
#include "stepforge/comm/collective.h"

namespace stepforge {

/// A collective that did not happen because of another rank: it failed, is gone, made another call, or did not
/// come before the deadline.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// One rank's membership in a group. Its ranks call the same collectives with the same sizes in the same
/// order; calls that differ are refused on every rank, with both calls named. Calls of equal size differ by the
/// `unit` of the model whose bytes they move. Each call returns when this rank's part is done. One thread at a
/// time; traffic that overlaps needs communicators of its own.
///
/// Sums are formed in one fixed order whatever the engine and the timing: the binary tree over the group's
/// ranks in which ranks 2k and 2k + 1 are added first, then pairs of pairs, and what is left over joins as in
/// step/passes.h, ordered_pass. bf16 and fp16 are summed in fp32 and rounded once.
///
/// Every call may throw PeerError; after that all further calls throw it.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// This rank's number in the group, and the size of the group.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// whole = the parts of all ranks one after the other; whole.size() == size() * part.size(). `part` may be
  /// its own place in `whole`.
  virtual void all_gather(std::span<const std::byte> part, std::span<std::byte> whole,
                          int unit = no_unit) = 0;

  /// part = this rank's slice of the sum of all `whole`; whole.size() == size() * part.size(). `part` may be
  /// its own slice of `whole`.
  virtual void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                              int unit = no_unit) = 0;

  /// In place, the same bits on every rank.
  virtual void all_reduce(std::span<std::byte> values, DType dtype, int unit = no_unit) = 0;

  /// `bytes` of rank `root`, to all.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  virtual void barrier() = 0;

  /// Ends the group's collectives, also those in which other ranks wait: they throw PeerError with this rank's
  /// number and `reason`. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

/// All ranks of a job, seen from one: it creates its communicators, which must be destroyed before it.
class World {
 public:
  World() = default;
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The engine, for the log: "shared memory", "Gloo".
  virtual std::string transport() const = 0;

  /// Called by each rank of `ranks` (ascending, with this one) with the same `name`, which no other group of
  /// these ranks may have. Waits until all have called it; throws PeerError naming those that did not.
  virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;

  /// abort() on every communicator created here, and on those that are being created.
  virtual void abort(const std::string& reason) = 0;
};

/// A world of one rank.
std::unique_ptr<World> single_world();

}  // namespace stepforge
