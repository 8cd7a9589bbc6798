// SPDX-License-Identifier: Apache-2.0
// The collectives of a group of ranks on bytes: one interface for every engine (one process, shared memory,
// network).
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

/// A collective failed because of another rank: that rank reported a failure, its process ended, it made a
/// different call, or it did not arrive before the deadline.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// One rank's membership in a group. All ranks of the group must call the same collectives with the same
/// sizes and units in the same order; calls that differ are refused on every rank, with both calls named.
/// Each call returns when this rank's part is done. One thread at a time; concurrent collectives need
/// communicators of their own. An index in the group is called a member.
///
/// Paired calls (send, receive, send_receive) concern only the members that they name. The n-th message from
/// one member to another is for the n-th receipt there, by whichever of these calls; other members may be in
/// other calls. Nothing is buffered: a call waits for its partners and ends when its messages have arrived;
/// without a partner it fails at the deadline. So two members that both send first wait for each other
/// forever. If data go both ways or around a ring, use send_receive: it ends for any sizes if all its partners
/// take part. It may wait for both partners before any byte moves, so a partner must not finish one half of
/// its exchange before it begins the other.
///
/// Sums have one fixed order, independent of engine and timing: the binary tree over the group's ranks in
/// which ranks 2k and 2k + 1 are added first, then pairs of pairs; leftovers are joined starting with the
/// last (tree_sum.h). bf16 and fp16 are summed in fp32 and rounded once.
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

  /// whole = the parts of all ranks in rank order; whole.size() == size() * part.size(). `part` may be this
  /// rank's slice of `whole`.
  virtual void all_gather(std::span<const std::byte> part, std::span<std::byte> whole,
                          int unit = kNoUnit) = 0;

  /// part = this rank's slice of the sum of `whole` over all ranks; whole.size() == size() * part.size().
  /// `part` may be this rank's slice of `whole`.
  virtual void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                              int unit = kNoUnit) = 0;

  /// values = the sum of `values` over all ranks, the same bits on every rank.
  virtual void all_reduce(std::span<std::byte> values, DType dtype, int unit = kNoUnit) = 0;

  /// bytes = those of the group's rank `root`.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  virtual void barrier() = 0;

  /// Sends each member a part of `outgoing` and receives one from each into `incoming`: both hold the parts
  /// one after another in rank order, also this rank's own, with one size for each member. Sizes may differ
  /// and be 0. The buffers must not overlap. Throws Error if the sizes do not add up to a buffer, and
  /// PeerError naming both ranks and sizes, on all ranks, if a member sends another size than its receiver
  /// expects.
  virtual void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                          std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                          int unit = kNoUnit) = 0;

  /// Sends to `peer`, another member, and waits until it has received everything. It must receive as many bytes;
  /// otherwise PeerError names both ranks and sizes on both.
  virtual void send(std::span<const std::byte> bytes, int peer) = 0;

  /// Receives from `peer`, another member; the rules of send() apply.
  virtual void receive(std::span<std::byte> bytes, int peer) = 0;

  /// Sends `outgoing` to member `to` and receives `incoming` from member `from` at the same time; the rules
  /// of send() apply to each. Both may be the same member. If it is this rank, the bytes are copied: a ring
  /// of one. The buffers must not overlap.
  virtual void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                            int from) = 0;

  /// Ends the group's collectives, also those in which other ranks wait: they throw PeerError with this
  /// rank's number and `reason`. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

/// All ranks of a job, as seen by one of them. It creates communicators, which must be destroyed before it.
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
  /// Whether its collectives move no data.
  virtual bool simulated() const { return false; }

  /// Creates a group. Each rank of `ranks` (ascending, including this one) must call it with the same `name`,
  /// which no other group of these ranks may have. Waits until all have called it; throws PeerError naming
  /// those that did not.
  virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;

  /// abort() on every communicator created here, and on those that are being created.
  virtual void abort(const std::string& reason) = 0;
};

/// The group of all ranks of the world, as World::group() creates it; null if there is one rank or no world.
std::unique_ptr<Communicator> group_of_all(World* world, const std::string& name);

/// A world of one rank.
std::unique_ptr<World> single_world();

}  // namespace stepforge
