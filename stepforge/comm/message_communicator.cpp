// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/message_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/cache_line.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

namespace {

/// Data of at most this many bytes are sent with the header of a call: one message instead of a header, data
/// and a confirmation.
constexpr std::size_t kMaxPayload = 1024;
/// Sent to confirm that everything was received.
constexpr std::byte kConfirmation{1};

/// Slice `index` of `count` nearly equal ones; the last may be shorter or empty.
template <typename Byte>
std::span<Byte> slice_of(std::span<Byte> bytes, int index, int count) {
  const auto slices = static_cast<std::size_t>(count);
  const std::size_t step = (cache_lines_of(bytes.size()) + slices - 1) / slices * kCacheLineBytes;
  const std::size_t begin = std::min(bytes.size(), step * static_cast<std::size_t>(index));
  return bytes.subspan(begin, std::min(step, bytes.size() - begin));
}

}  // namespace

MessageCommunicator::MessageCommunicator(Membership membership, std::string key,
                                         std::unique_ptr<MessageLinks> links, GroupServices& services,
                                         std::shared_ptr<FailureNote> note, double train_seconds,
                                         std::size_t staging_bytes)
    : GroupCommunicator(std::move(membership)),
      key_(std::move(key)),
      links_(std::move(links)),
      services_(services),
      note_(std::move(note)),
      train_seconds_(train_seconds),
      staging_bytes_(staging_bytes),
      last_headers_(ranks_.size()),
      header_buffers_(2 * ranks_.size() * (sizeof(Header) + kMaxPayload)) {
  receive_headers();
}

MessageCommunicator::~MessageCommunicator() {
  try {
    wait_for_all(unconfirmed_);  // the others may not have received them yet
  } catch (const std::exception&) {
    unconfirmed_.clear();  // they notice the failure themselves
  }
  services_.leave(key_);
}

void MessageCommunicator::exchange_calls(std::span<const std::byte> payload) {
  const Header own{calls_,
                   call_.bytes,
                   call_.root,
                   call_.unit,
                   static_cast<uint32_t>(call_.kind),
                   static_cast<uint32_t>(call_.dtype)};
  const std::span<std::byte> own_message =
      header_buffer(rank_, calls_).first(sizeof(Header) + payload.size());
  std::memcpy(own_message.data(), &own, sizeof(Header));
  std::ranges::copy(payload, own_message.begin() + sizeof(Header));
  Messages sent;
  for (const int member : others()) start_send(sent, own_message, member, Channel::headers);
  wait_for_all(header_receives_);
  wait_for_all(unconfirmed_);  // a member that begins this call has received all of the last one
  unconfirmed_ = std::move(sent);
  for (int member = 0; member < size_; ++member) {
    std::memcpy(&last_headers_[static_cast<std::size_t>(member)], header_buffer(member, calls_).data(),
                sizeof(Header));
  }
  receive_headers();
  for (int member = 0; member < size_; ++member) {
    const Header& theirs = last_headers_[static_cast<std::size_t>(member)];
    if (theirs.kind > static_cast<uint32_t>(kLastGroupKind) ||
        theirs.dtype > static_cast<uint32_t>(DType::boolean) || theirs.number != calls_) {
      fail(format("rank {} sent an invalid header for call {} of group \"{}\": it runs a different program",
                  world_rank(member), calls_, name_));
    }
    compare(member, decode_call(theirs));
  }
}

void MessageCommunicator::receive_headers() {
  header_receives_.clear();
  for (const int member : others()) {
    start_receive(header_receives_, header_buffer(member, calls_ + 1), member, Channel::headers);
  }
}

std::span<std::byte> MessageCommunicator::header_buffer(int member, uint64_t call) {
  constexpr std::size_t bytes = sizeof(Header) + kMaxPayload;
  return std::span(header_buffers_).subspan((2 * static_cast<std::size_t>(member) + call % 2) * bytes, bytes);
}

std::span<const std::byte> MessageCommunicator::payload(int member, std::size_t bytes) {
  return header_buffer(member, calls_).subspan(sizeof(Header), bytes);
}

void MessageCommunicator::do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) {
  const auto slice = [&](int member) {
    return whole.subspan(static_cast<std::size_t>(member) * part.size(), part.size());
  };
  const bool is_small = part.size() <= kMaxPayload;
  Messages slices;
  if (!is_small) {
    slices = expect_slices(slice);
    expect_confirmations();
  }
  exchange_calls(is_small ? part : part.first(0));
  const std::span<std::byte> own = slice(rank_);
  if (own.data() != part.data() && !part.empty()) std::memmove(own.data(), part.data(), part.size());
  if (!is_small) {
    gather_slices(slice, slices);
    return confirm();
  }
  for (const int member : others()) std::ranges::copy(payload(member, part.size()), slice(member).begin());
}

void MessageCommunicator::do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) {
  const std::size_t bytes = part.size();
  reduce_slices([&](int member) { return whole.subspan(static_cast<std::size_t>(member) * bytes, bytes); },
                part, [&] { expect_confirmations(); });
  confirm();
}

void MessageCommunicator::do_all_reduce(std::span<std::byte> values) {
  if (values.size() <= kMaxPayload) {  // every rank sums everything
    exchange_calls(values);
    std::vector<const std::byte*> sources;
    for (int member = 0; member < size_; ++member) sources.push_back(payload(member, values.size()).data());
    return tree_sum(sources, values.data(), values.size(), call_.dtype);
  }
  const auto slice = [&](int member) { return slice_of(values, member, size_); };
  Messages slices;
  reduce_slices(slice, slice(rank_), [&] {
    slices = expect_slices(slice);  // a member sends its sum when it has all of this rank's summands
    expect_confirmations();
  });
  gather_slices(slice, slices);
  confirm();
}

void MessageCommunicator::do_broadcast(std::span<std::byte> bytes, int root) {
  if (bytes.size() <= kMaxPayload) {
    exchange_calls(rank_ == root ? bytes : bytes.first(0));
    if (rank_ != root) std::ranges::copy(payload(root, bytes.size()), bytes.begin());
    return;
  }
  // The root sends each byte only once: it scatters slices, which all members then gather.
  const auto slice = [&](int member) { return slice_of(bytes, member, size_); };
  Messages own;
  if (rank_ != root) start_receive(own, slice(rank_), root, Channel::data);
  const Messages slices = expect_slices(slice);
  expect_confirmations();
  exchange_calls();
  if (rank_ == root) {
    for (const int member : others()) start_send(sent_, slice(member), member, Channel::data);
  }
  wait_for_all(own);
  gather_slices(slice, slices);
  confirm();
}

MessageCommunicator::Messages MessageCommunicator::expect_slices(
    const std::function<std::span<std::byte>(int)>& slice) {
  Messages receives;
  for (const int member : others()) start_receive(receives, slice(member), member, Channel::data);
  return receives;
}

void MessageCommunicator::gather_slices(const std::function<std::span<std::byte>(int)>& slice,
                                        const Messages& slices) {
  for (const int member : others()) start_send(sent_, slice(rank_), member, Channel::data);
  wait_for_all(slices);
}

void MessageCommunicator::expect_confirmations() {
  confirmations_.resize(static_cast<std::size_t>(size_));
  confirmation_receives_.clear();
  for (const int member : others()) {
    start_receive(confirmation_receives_,
                  std::span(confirmations_).subspan(static_cast<std::size_t>(member), 1), member,
                  Channel::data);
  }
}

void MessageCommunicator::confirm() {
  for (const int member : others()) start_send(unconfirmed_, {&kConfirmation, 1}, member, Channel::data);
  wait_for_all(confirmation_receives_);
  wait_for_all(sent_);
  sent_.clear();
}

void MessageCommunicator::reduce_slices(const std::function<std::span<const std::byte>(int)>& slice,
                                        std::span<std::byte> own, const std::function<void()>& expect_rest) {
  const auto members = static_cast<std::size_t>(size_);
  std::size_t longest = own.size();
  for (int member = 0; member < size_; ++member) longest = std::max(longest, slice(member).size());
  const std::size_t max_lines = std::max<std::size_t>(1, staging_bytes_ / (2 * members * kCacheLineBytes));
  const std::size_t step = std::min(max_lines, cache_lines_of(longest)) * kCacheLineBytes;
  if (staging_.size() < 2 * members * step) staging_.resize(2 * members * step);
  const auto piece = [&](auto bytes, std::size_t round) {
    const std::size_t begin = std::min(bytes.size(), round * step);
    return bytes.subspan(begin, std::min(step, bytes.size() - begin));
  };
  const auto staged = [&](int member, std::size_t round) {
    return staging_.data() + (2 * static_cast<std::size_t>(member) + round % 2) * step;
  };
  const std::size_t rounds = step == 0 ? 0 : (longest + step - 1) / step;
  std::array<Messages, 2> receives;
  const auto expect = [&](std::size_t round) {
    if (round < rounds) {
      Messages& started = receives[round % 2];
      started.clear();
      const std::size_t bytes = piece(own, round).size();
      for (const int member : others())
        start_receive(started, {staged(member, round), bytes}, member, Channel::data);
    }
    if (round + 1 == std::max<std::size_t>(2, rounds)) expect_rest();
  };
  const auto start_sends = [&](std::size_t round) {
    if (round >= rounds) return;
    for (const int member : others()) start_send(sent_, piece(slice(member), round), member, Channel::data);
  };
  expect(0);
  expect(1);
  exchange_calls();
  std::vector<const std::byte*> sources(members);
  start_sends(0);
  for (std::size_t round = 0; round < rounds; ++round) {
    start_sends(round + 1);  // in flight while this one is summed
    wait_for_all(receives[round % 2]);
    const std::span<std::byte> output = piece(own, round);
    for (int member = 0; member < size_; ++member) {
      sources[static_cast<std::size_t>(member)] =
          member == rank_ ? piece(slice(member), round).data() : staged(member, round);
    }
    tree_sum(sources, output.data(), output.size(), call_.dtype);
    expect(round + 2);
  }
}

std::vector<int> MessageCommunicator::others() const {
  std::vector<int> members;
  for (int i = 1; i < size_; ++i) members.push_back((rank_ + i) % size_);
  return members;
}

void MessageCommunicator::start_send(Messages& messages, std::span<const std::byte> bytes, int member,
                                     Channel channel) {
  if (!bytes.empty()) messages.push_back({member, links_->send(bytes, member, channel)});
}

void MessageCommunicator::start_receive(Messages& messages, std::span<std::byte> bytes, int member,
                                        Channel channel) {
  if (!bytes.empty()) messages.push_back({member, links_->receive(bytes, member, channel)});
}

void MessageCommunicator::wait_for_all(const Messages& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    switch (wait_for(*messages[i].pending)) {
      case WaitResult::done:
        continue;
      case WaitResult::timed_out:
        fail_at_timeout(std::span(messages).subspan(i));
      default:
        fail_at_closed_link(messages[i].member);
    }
  }
}

WaitResult MessageCommunicator::wait_for(PendingMessage& pending) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      waiting_for_ = &pending;
    }
    // A note that was set before waiting_for_ is seen here; one that is set later interrupts the wait.
    const bool has_failed = note_->is_set() || services_.failure().is_set();
    const WaitResult result = has_failed ? WaitResult::interrupted : pending.wait(train_seconds_);
    {
      const std::lock_guard lock(mutex_);
      waiting_for_ = nullptr;
    }
    if (result != WaitResult::interrupted) return result;
    check_failures();
  }
}

void MessageCommunicator::interrupt() {
  const std::lock_guard lock(mutex_);
  if (waiting_for_ != nullptr) waiting_for_->interrupt();
}

void MessageCommunicator::abort(const std::string& reason) {
  services_.fail_group(key_, *note_, format("rank {}: {}", world_rank(), reason));
  interrupt();
}

void MessageCommunicator::check_failures() {
  for (const FailureNote* note : {static_cast<const FailureNote*>(note_.get()), &services_.failure()}) {
    if (!note->is_set()) continue;
    close_links();
    throw_if_set(*note, world_rank(), here_text());
  }
}

void MessageCommunicator::close_links() {
  header_receives_.clear();
  confirmation_receives_.clear();
  sent_.clear();
  unconfirmed_.clear();
  links_.reset();
}

std::string MessageCommunicator::end_group(const std::string& reason) {
  close_links();
  services_.fail_group(key_, *note_, reason);
  return *note_->text();
}

void MessageCommunicator::fail_at_closed_link(int member) {
  // Usually a report of the reason arrives soon.
  const auto is_known = [&] { return note_->is_set() || services_.failure().is_set(); };
  for (int i = 0; i < 100 && !is_known(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  check_failures();
  fail_at_loss(services_.explain_loss(key_, world_rank(member)));
}

void MessageCommunicator::fail_at_timeout(std::span<const Message> messages) {
  std::vector<int> missing;
  for (const Message& message : messages) {
    if (message.pending->wait(0.001) != WaitResult::done) missing.push_back(message.member);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  fail_at_deadline(missing, train_seconds_);
}

CollectiveCall MessageCommunicator::decode_call(const Header& header) {
  return {static_cast<CollectiveKind>(header.kind), header.bytes, static_cast<DType>(header.dtype),
          header.root, header.unit};
}

std::string MessageCommunicator::last_call_text(int member) const {
  const Header& header = last_headers_[static_cast<std::size_t>(member)];
  return call_text(header.number, decode_call(header));
}

}  // namespace stepforge
