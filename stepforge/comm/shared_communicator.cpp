// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/shared_communicator.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/cache_line.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

namespace {

/// Up to this size every rank sums everything: one exchange instead of two.
constexpr std::size_t kSmallBytes = 4096;

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// At least one, so that calls without data are compared too.
uint64_t rounds_for(std::size_t bytes, std::size_t bytes_per_round) {
  return std::max<uint64_t>(1, (bytes + bytes_per_round - 1) / bytes_per_round);
}

/// Piece number `index` of `total` bytes.
struct Piece {
  std::size_t offset;
  std::size_t bytes;

  Piece(std::size_t total, std::size_t piece_bytes, uint64_t index)
      : offset(std::min(total, piece_bytes * index)), bytes(std::min(piece_bytes, total - offset)) {}
};

constexpr std::nullptr_t kNoReduction = nullptr;

}  // namespace

SharedCommunicator::SharedCommunicator(Membership membership, SharedArena arena, const WorldStatus& world,
                                       double train_seconds)
    : GroupCommunicator(std::move(membership)),
      arena_(std::move(arena)),
      world_(world),
      train_seconds_(train_seconds),
      sources_(ranks_.size()) {}

SharedCommunicator::~SharedCommunicator() {
  arena_.slot(rank_).has_left.store(1, std::memory_order_release);
  arena_.wake_all();
}

void SharedCommunicator::arrive(double init_seconds) {
  arena_.slot(rank_).arrived.advance_to(1);
  for (int member = 0; member < size_; ++member) {
    wait_for(arena_.slot(member).arrived, 1, member, init_seconds, &RankSlot::arrived);
  }
}

template <typename Write, typename Reduce, typename Read>
void SharedCommunicator::run_rounds(uint64_t rounds, const Write& write, const Reduce& reduce,
                                    const Read& read) {
  const uint64_t first = round_;
  RankSlot& own = arena_.slot(rank_);
  own.record(calls_, call_);
  const auto write_round = [&](uint64_t k) {
    // The buffer was last used two rounds ago.
    if (first + k >= 2) wait_for_all(&RankSlot::consumed, first + k - 1);
    write(k, arena_.staging(rank_, first + k));
    own.written.advance_to(first + k + 1);
  };
  write_round(0);
  for (uint64_t k = 0; k < rounds; ++k) {
    if (k + 1 < rounds) write_round(k + 1);
    wait_for_all(&RankSlot::written, first + k + 1);
    if (k == 0) compare_calls();
    if constexpr (!std::is_null_pointer_v<Reduce>) {
      reduce(k, first + k);
      own.reduced.advance_to(first + k + 1);
      wait_for_all(&RankSlot::reduced, first + k + 1);
    }
    read(k, first + k);
    own.consumed.advance_to(first + k + 1);
  }
  round_ = first + rounds;
}

void SharedCommunicator::do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) {
  const std::size_t step = arena_.staging_bytes();
  std::byte* own = whole.data() + static_cast<std::size_t>(rank_) * part.size();
  if (own != part.data() && !part.empty()) std::memmove(own, part.data(), part.size());
  run_rounds(
      rounds_for(part.size(), step),
      [&](uint64_t k, std::byte* staging) {
        const Piece piece(part.size(), step, k);
        copy_bytes(own + piece.offset, staging, piece.bytes);
      },
      kNoReduction,
      [&](uint64_t k, uint64_t round) {
        const Piece piece(part.size(), step, k);
        for (int i = 1; i < size_; ++i) {  // each rank begins with a different one, to avoid contention
          const int member = (rank_ + i) % size_;
          std::byte* place = whole.data() + static_cast<std::size_t>(member) * part.size() + piece.offset;
          copy_bytes(arena_.staging(member, round), place, piece.bytes);
        }
      });
}

void SharedCommunicator::do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) {
  const std::size_t step =
      arena_.staging_bytes() / static_cast<std::size_t>(size_) / kCacheLineBytes * kCacheLineBytes;
  const auto slice = [&](int member) {
    return whole.data() + static_cast<std::size_t>(member) * part.size();
  };
  run_rounds(
      rounds_for(part.size(), step),
      [&](uint64_t k, std::byte* staging) {
        const Piece piece(part.size(), step, k);
        for (int member = 0; member < size_; ++member) {
          if (member == rank_) continue;
          copy_bytes(slice(member) + piece.offset, staging + static_cast<std::size_t>(member) * step,
                     piece.bytes);
        }
      },
      kNoReduction,
      [&](uint64_t k, uint64_t round) {
        const Piece piece(part.size(), step, k);
        sum_staged(round, static_cast<std::size_t>(rank_) * step, slice(rank_) + piece.offset,
                   part.data() + piece.offset, piece.bytes);
      });
}

void SharedCommunicator::do_all_reduce(std::span<std::byte> values) {
  if (values.size() <= std::min(kSmallBytes, arena_.staging_bytes())) {
    small_all_reduce(values);
  } else {
    large_all_reduce(values);
  }
}

void SharedCommunicator::small_all_reduce(std::span<std::byte> values) {
  run_rounds(
      1, [&](uint64_t, std::byte* staging) { copy_bytes(values.data(), staging, values.size()); },
      kNoReduction,
      [&](uint64_t, uint64_t round) {
        sum_staged(round, 0, arena_.staging(rank_, round), values.data(), values.size());
      });
}

void SharedCommunicator::large_all_reduce(std::span<std::byte> values) {
  const std::size_t members = static_cast<std::size_t>(size_);
  const std::size_t step = arena_.staging_bytes() / (members * kCacheLineBytes) * (members * kCacheLineBytes);
  // Each rank sums one slice of the round in place: no other rank reads that slice of its buffer before.
  const auto slice = [&](const Piece& piece, int member) {
    const std::size_t lines = (piece.bytes + members * kCacheLineBytes - 1) / (members * kCacheLineBytes);
    return Piece(piece.bytes, lines * kCacheLineBytes, static_cast<uint64_t>(member));
  };
  run_rounds(
      rounds_for(values.size(), step),
      [&](uint64_t k, std::byte* staging) {
        const Piece piece(values.size(), step, k);
        copy_bytes(values.data() + piece.offset, staging, piece.bytes);
      },
      [&](uint64_t k, uint64_t round) {
        const Piece own = slice(Piece(values.size(), step, k), rank_);
        std::byte* place = arena_.staging(rank_, round) + own.offset;
        sum_staged(round, own.offset, place, place, own.bytes);
      },
      [&](uint64_t k, uint64_t round) {
        const Piece piece(values.size(), step, k);
        for (int i = 0; i < size_; ++i) {
          const int member = (rank_ + i) % size_;
          const Piece theirs = slice(piece, member);
          copy_bytes(arena_.staging(member, round) + theirs.offset,
                     values.data() + piece.offset + theirs.offset, theirs.bytes);
        }
      });
}

void SharedCommunicator::do_broadcast(std::span<std::byte> bytes, int root) {
  const std::size_t step = arena_.staging_bytes();
  run_rounds(
      rounds_for(bytes.size(), step),
      [&](uint64_t k, std::byte* staging) {
        const Piece piece(bytes.size(), step, k);
        if (rank_ == root) copy_bytes(bytes.data() + piece.offset, staging, piece.bytes);
      },
      kNoReduction,
      [&](uint64_t k, uint64_t round) {
        const Piece piece(bytes.size(), step, k);
        if (rank_ != root) copy_bytes(arena_.staging(root, round), bytes.data() + piece.offset, piece.bytes);
      });
}

void SharedCommunicator::do_barrier() {
  run_rounds(1, [](uint64_t, std::byte*) {}, kNoReduction, [](uint64_t, uint64_t) {});
}

std::size_t SharedCommunicator::compare_sizes(const Parts<const std::byte>& outgoing,
                                              const Parts<std::byte>& incoming) {
  const auto members = static_cast<std::size_t>(size_);
  const std::size_t row_bytes = members * sizeof(uint64_t);
  std::vector<uint64_t> sent(members * members);  // one row for each rank
  std::vector<uint64_t> expected(members * members);
  run_rounds(
      1,
      [&](uint64_t, std::byte* staging) {
        std::memcpy(staging, outgoing.sizes().data(), row_bytes);
        std::memcpy(staging + row_bytes, incoming.sizes().data(), row_bytes);
      },
      kNoReduction,
      [&](uint64_t, uint64_t round) {
        for (int member = 0; member < size_; ++member) {
          const std::size_t row = static_cast<std::size_t>(member) * members;
          std::memcpy(&sent[row], arena_.staging(member, round), row_bytes);
          std::memcpy(&expected[row], arena_.staging(member, round) + row_bytes, row_bytes);
        }
      });
  const auto cell = [&](int row, int column) {
    return static_cast<std::size_t>(row) * members + static_cast<std::size_t>(column);
  };
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to)
      check_transfer(from, sent[cell(from, to)], to, expected[cell(to, from)]);
  }
  return *std::ranges::max_element(sent);
}

void SharedCommunicator::do_all_to_all(const Parts<const std::byte>& outgoing,
                                       const Parts<std::byte>& incoming) {
  const std::size_t longest = compare_sizes(outgoing, incoming);
  const std::size_t step =
      arena_.staging_bytes() / static_cast<std::size_t>(size_) / kCacheLineBytes * kCacheLineBytes;
  const auto place = [&](std::byte* staging, int member) {
    return staging + static_cast<std::size_t>(member) * step;
  };
  run_rounds(
      rounds_for(longest, step),
      [&](uint64_t k, std::byte* staging) {
        for (int member = 0; member < size_; ++member) {
          const Piece piece(outgoing.size_of(member), step, k);
          if (member != rank_)
            copy_bytes(outgoing.of(member).data() + piece.offset, place(staging, member), piece.bytes);
        }
      },
      kNoReduction,
      [&](uint64_t k, uint64_t round) {
        for (int i = 1; i < size_; ++i) {  // each rank begins with a different one, to avoid contention
          const int member = (rank_ + i) % size_;
          const Piece piece(incoming.size_of(member), step, k);
          copy_bytes(place(arena_.staging(member, round), rank_), incoming.of(member).data() + piece.offset,
                     piece.bytes);
        }
      });
}

void SharedCommunicator::do_send_receive(Transfer<const std::byte> outgoing, Transfer<std::byte> incoming) {
  const std::size_t step = arena_.staging_bytes();
  const auto rounds = [&](const auto& transfer) {
    return transfer.is_none() ? 0 : rounds_for(transfer.bytes.size(), step);
  };
  const auto write = [&](uint64_t k) {
    PairSlot& pair = arena_.pair(rank_, outgoing.peer);
    const uint64_t first = pair.written.load() - k;
    if (k == 0) pair.bytes.store(outgoing.bytes.size(), std::memory_order_relaxed);
    if (k >= 2) wait_for(pair.read, first + k - 1, outgoing.peer, train_seconds_);
    const Piece piece(outgoing.bytes.size(), step, k);
    copy_bytes(outgoing.bytes.data() + piece.offset, arena_.staging(rank_, k), piece.bytes);
    pair.written.advance_to(first + k + 1);
  };
  const auto read = [&](uint64_t k) {
    PairSlot& pair = arena_.pair(incoming.peer, rank_);
    const uint64_t next = pair.read.load() + 1;
    wait_for(pair.written, next, incoming.peer, train_seconds_);
    if (k == 0) {
      check_transfer(incoming.peer, pair.bytes.load(std::memory_order_relaxed), rank_, incoming.bytes.size());
    }
    const Piece piece(incoming.bytes.size(), step, k);
    copy_bytes(arena_.staging(incoming.peer, k), incoming.bytes.data() + piece.offset, piece.bytes);
    pair.read.advance_to(next);
  };
  if (!outgoing.is_none()) wait_for_all(&RankSlot::consumed, round_);  // the buffers' last collective
  // No cycle of ranks can wait: piece k is written once piece k - 2 is read, and read once it is written.
  for (uint64_t k = 0; k < std::max(rounds(outgoing), rounds(incoming)); ++k) {
    if (k < rounds(outgoing)) write(k);
    if (k < rounds(incoming)) read(k);
  }
  if (!outgoing.is_none()) {
    PairSlot& pair = arena_.pair(rank_, outgoing.peer);
    wait_for(pair.read, pair.written.load(), outgoing.peer, train_seconds_);
  }
}

void SharedCommunicator::abort(const std::string& reason) {
  arena_.fail(format("rank {}: {}", world_rank(), reason));
}

void SharedCommunicator::sum_staged(uint64_t round, std::size_t offset, const std::byte* own,
                                    std::byte* output, std::size_t bytes) {
  for (int member = 0; member < size_; ++member) {
    sources_[static_cast<std::size_t>(member)] =
        member == rank_ ? own : arena_.staging(member, round) + offset;
  }
  tree_sum(sources_, output, bytes, call_.dtype);
}

void SharedCommunicator::compare_calls() {
  for (int member = 0; member < size_; ++member) compare(member, arena_.slot(member).recorded(calls_));
}

}  // namespace stepforge
