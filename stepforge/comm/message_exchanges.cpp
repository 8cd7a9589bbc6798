// SPDX-License-Identifier: Apache-2.0
// Calls of a MessageCommunicator in which each pair has its own data: all-to-all and paired calls.
#include <array>
#include <cstdint>
#include <vector>

#include "stepforge/comm/message_communicator.h"

namespace stepforge {

namespace {

/// Sent to confirm that a message was received.
constexpr std::byte kReceived{1};

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

void MessageCommunicator::compare_sizes(const std::vector<PairSizes>& theirs, const Messages& receives) {
  for (const int member : others()) {
    start_send(sent_, bytes_of(pair_sizes_[static_cast<std::size_t>(member)]), member, Channel::data);
  }
  wait_for_all(receives);
  for (int member = 0; member < size_; ++member) {
    const auto i = static_cast<std::size_t>(member);
    check_transfer(rank_, pair_sizes_[i].sent, member, theirs[i].expected);
    check_transfer(member, theirs[i].sent, rank_, pair_sizes_[i].expected);
  }
}

void MessageCommunicator::do_all_to_all(const Parts<const std::byte>& outgoing,
                                        const Parts<std::byte>& incoming) {
  pair_sizes_.clear();
  for (int member = 0; member < size_; ++member) {
    pair_sizes_.push_back({outgoing.size_of(member), incoming.size_of(member)});
  }
  std::vector<PairSizes> theirs = pair_sizes_;
  Messages sizes;
  Messages receives;
  for (const int member : others()) {
    start_receive(sizes, bytes_of(theirs[static_cast<std::size_t>(member)]), member, Channel::data);
    start_receive(receives, incoming.of(member), member, Channel::data);
  }
  expect_confirmations();
  exchange_calls();
  compare_sizes(theirs, sizes);
  for (const int member : others()) start_send(sent_, outgoing.of(member), member, Channel::data);
  wait_for_all(receives);
  confirm();
}

void MessageCommunicator::do_send_receive(Transfer<const std::byte> outgoing, Transfer<std::byte> incoming) {
  uint64_t size = outgoing.bytes.size();
  std::byte confirmation{};
  Messages confirmations;
  if (!outgoing.is_none()) {  // all of it is started first, so that receiving does not hold it up
    start_receive(confirmations, {&confirmation, 1}, outgoing.peer, Channel::answers);
    start_send(sent_, bytes_of(size), outgoing.peer, Channel::paired);
    start_send(sent_, outgoing.bytes, outgoing.peer, Channel::paired);
  }
  if (!incoming.is_none()) receive_message(incoming);
  wait_for_all(confirmations);
  wait_for_all(sent_);
  sent_.clear();
}

void MessageCommunicator::receive_message(Transfer<std::byte> incoming) {
  uint64_t sent_size = 0;
  Messages receives;
  start_receive(receives, bytes_of(sent_size), incoming.peer, Channel::paired);
  wait_for_all(receives);
  settle(incoming.peer);
  check_transfer(incoming.peer, sent_size, rank_, incoming.bytes.size());
  receives.clear();
  start_receive(receives, incoming.bytes, incoming.peer, Channel::paired);
  wait_for_all(receives);
  start_send(unconfirmed_, {&kReceived, 1}, incoming.peer, Channel::answers);
}

void MessageCommunicator::settle(int member) {
  Messages others;
  Messages of_member;
  for (Message& message : unconfirmed_) {
    (message.member == member ? of_member : others).push_back(std::move(message));
  }
  unconfirmed_ = std::move(others);
  wait_for_all(of_member);
}

}  // namespace stepforge
