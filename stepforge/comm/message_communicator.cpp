#include "stepforge/comm/message_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/group_rules.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

namespace {

/// So many bytes travel with the words of a call: one message instead of three.
constexpr std::size_t most_payload = 1024;
/// Says that everything has come.
constexpr std::byte answer{1};
/// Slices begin at multiples of this many bytes, which are also multiples of every element.
constexpr std::size_t line_bytes = 64;

std::size_t lines_of(std::size_t bytes) {
  return (bytes + line_bytes - 1) / line_bytes;
}

/// Slice `index` of `count` nearly equal ones; the last may be shorter or empty.
template <typename Byte>
std::span<Byte> slice_of(std::span<Byte> bytes, int index, int count) {
  const auto slices = static_cast<std::size_t>(count);
  const std::size_t step = (lines_of(bytes.size()) + slices - 1) / slices * line_bytes;
  const std::size_t begin = std::min(bytes.size(), step * static_cast<std::size_t>(index));
  return bytes.subspan(begin, std::min(step, bytes.size() - begin));
}

}  // namespace

MessageCommunicator::MessageCommunicator(Membership membership, std::unique_ptr<MessageLinks> links,
                                         MessageWatch& watch, std::shared_ptr<FailureNote> note,
                                         double train_seconds, std::size_t staging_bytes)
    : membership_(std::move(membership)),
      size_(static_cast<int>(membership_.ranks.size())),
      links_(std::move(links)),
      watch_(watch),
      note_(std::move(note)),
      train_seconds_(train_seconds),
      staging_bytes_(staging_bytes),
      last_words_(membership_.ranks.size()),
      letters_(2 * membership_.ranks.size() * (sizeof(Words) + most_payload)) {
  ask_for_words();
}

MessageCommunicator::~MessageCommunicator() {
  try {
    wait_for_all(unconfirmed_);  // the others may still need them
  } catch (const std::exception&) {
    unconfirmed_.clear();  // they learn of it themselves
  }
  watch_.leave(membership_.key);
}

void MessageCommunicator::begin(const CollectiveCall& call, std::span<const std::byte> payload) {
  call_ = call;
  ++calls_;
  check_failures();
  const Words own{calls_,
                  call.bytes,
                  call.root,
                  call.unit,
                  static_cast<uint32_t>(call.kind),
                  static_cast<uint32_t>(call.dtype)};
  const std::span<std::byte> own_letter =
      letter(membership_.rank, calls_).first(sizeof(Words) + payload.size());
  std::memcpy(own_letter.data(), &own, sizeof(Words));
  std::ranges::copy(payload, own_letter.begin() + sizeof(Words));
  Messages sent;
  for (const int member : others()) send(sent, own_letter, member, Channel::words);
  wait_for_all(coming_words_);
  wait_for_all(unconfirmed_);  // who begins this call has got all of the last one
  unconfirmed_ = std::move(sent);
  for (int member = 0; member < size_; ++member) {
    std::memcpy(&last_words_[static_cast<std::size_t>(member)], letter(member, calls_).data(), sizeof(Words));
  }
  ask_for_words();
  compare();
}

void MessageCommunicator::ask_for_words() {
  coming_words_.clear();
  for (const int member : others()) {
    receive(coming_words_, letter(member, calls_ + 1), member, Channel::words);
  }
}

std::span<std::byte> MessageCommunicator::letter(int member, uint64_t call) {
  constexpr std::size_t bytes = sizeof(Words) + most_payload;
  return std::span(letters_).subspan((2 * static_cast<std::size_t>(member) + call % 2) * bytes, bytes);
}

std::span<const std::byte> MessageCommunicator::payload(int member, std::size_t bytes) {
  return letter(member, calls_).subspan(sizeof(Words), bytes);
}

void MessageCommunicator::compare() {
  for (int member = 0; member < size_; ++member) {
    const Words& theirs = last_words_[static_cast<std::size_t>(member)];
    if (theirs.number == calls_ && call_of(theirs) == call_) continue;
    if (theirs.kind > static_cast<uint32_t>(CollectiveKind::barrier) ||
        theirs.dtype > static_cast<uint32_t>(DType::boolean)) {
      fail(format("rank {} did not say what it called in call {} of group \"{}\": it runs another program",
                  global(member), calls_, membership_.name));
    }
    fail(disagreement_text(membership_.name, calls_, global(membership_.rank), call_, global(member),
                           call_of(theirs)));
  }
}

void MessageCommunicator::all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) {
  check_words(*this, [&] { check_parts(part.size(), whole.size(), size_); });
  const bool is_small = part.size() <= most_payload;
  begin({CollectiveKind::all_gather, part.size(), DType::u8, 0, unit}, is_small ? part : part.first(0));
  const auto slice = [&](int member) {
    return whole.subspan(static_cast<std::size_t>(member) * part.size(), part.size());
  };
  const std::span<std::byte> own = slice(membership_.rank);
  if (own.data() != part.data() && !part.empty()) std::memmove(own.data(), part.data(), part.size());
  if (!is_small) {
    gather_slices(slice);
    return confirm();
  }
  for (const int member : others()) std::ranges::copy(payload(member, part.size()), slice(member).begin());
}

void MessageCommunicator::reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part,
                                         DType dtype, int unit) {
  check_words(*this, [&] {
    check_parts(part.size(), whole.size(), size_);
    check_sum(part.size(), dtype);
  });
  begin({CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit});
  const std::size_t bytes = part.size();
  reduce_slices([&](int member) { return whole.subspan(static_cast<std::size_t>(member) * bytes, bytes); },
                part, dtype);
  confirm();
}

void MessageCommunicator::all_reduce(std::span<std::byte> values, DType dtype, int unit) {
  check_words(*this, [&] { check_sum(values.size(), dtype); });
  const CollectiveCall call{CollectiveKind::all_reduce, values.size(), dtype, 0, unit};
  if (values.size() <= most_payload) {  // all ranks sum all of it
    begin(call, values);
    std::vector<const std::byte*> sources;
    for (int member = 0; member < size_; ++member) sources.push_back(payload(member, values.size()).data());
    return tree_sum(sources, values.data(), values.size(), dtype);
  }
  begin(call);
  const auto slice = [&](int member) { return slice_of(values, member, size_); };
  reduce_slices(slice, slice(membership_.rank), dtype);
  gather_slices(slice);
  confirm();
}

void MessageCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  check_words(*this, [&] { check_root(root, size_); });
  const CollectiveCall call{CollectiveKind::broadcast, bytes.size(), DType::u8, root};
  if (bytes.size() <= most_payload) {
    begin(call, membership_.rank == root ? bytes : bytes.first(0));
    if (membership_.rank != root) std::ranges::copy(payload(root, bytes.size()), bytes.begin());
    return;
  }
  begin(call);
  // The root sends each byte once only: slices, which all then gather.
  const auto slice = [&](int member) { return slice_of(bytes, member, size_); };
  if (membership_.rank == root) {
    for (const int member : others()) send(sent_, slice(member), member, Channel::data);
  } else {
    Messages own;
    receive(own, slice(membership_.rank), root, Channel::data);
    wait_for_all(own);
  }
  gather_slices(slice);
  confirm();
}

void MessageCommunicator::barrier() {
  begin({});
}

void MessageCommunicator::gather_slices(const std::function<std::span<std::byte>(int)>& slice) {
  Messages coming;
  for (const int member : others()) receive(coming, slice(member), member, Channel::data);
  for (const int member : others()) send(sent_, slice(membership_.rank), member, Channel::data);
  wait_for_all(coming);
}

void MessageCommunicator::confirm() {
  std::vector<std::byte> answers(static_cast<std::size_t>(size_));
  Messages coming;
  for (const int member : others()) {
    receive(coming, std::span(answers).subspan(static_cast<std::size_t>(member), 1), member, Channel::data);
  }
  for (const int member : others()) send(unconfirmed_, {&answer, 1}, member, Channel::data);
  wait_for_all(coming);
  wait_for_all(sent_);
  sent_.clear();
}

void MessageCommunicator::reduce_slices(const std::function<std::span<const std::byte>(int)>& slice,
                                        std::span<std::byte> own, DType dtype) {
  const auto members = static_cast<std::size_t>(size_);
  std::size_t longest = own.size();
  for (int member = 0; member < size_; ++member) longest = std::max(longest, slice(member).size());
  const std::size_t most = std::max<std::size_t>(1, staging_bytes_ / (2 * members * line_bytes));
  const std::size_t step = std::min(most, lines_of(longest)) * line_bytes;
  if (staging_.size() < 2 * members * step) staging_.resize(2 * members * step);
  const auto piece = [&](auto bytes, std::size_t round) {
    const std::size_t begin = std::min(bytes.size(), round * step);
    return bytes.subspan(begin, std::min(step, bytes.size() - begin));
  };
  const auto staged = [&](int member, std::size_t round) {
    return staging_.data() + (2 * static_cast<std::size_t>(member) + round % 2) * step;
  };
  const std::size_t rounds = step == 0 ? 0 : (longest + step - 1) / step;
  std::array<Messages, 2> coming;
  const auto start = [&](std::size_t round) {
    Messages& started = coming[round % 2];
    started.clear();
    const std::size_t bytes = piece(own, round).size();
    for (const int member : others()) receive(started, {staged(member, round), bytes}, member, Channel::data);
    for (const int member : others()) send(sent_, piece(slice(member), round), member, Channel::data);
  };
  std::vector<const std::byte*> sources(members);
  if (rounds > 0) start(0);
  for (std::size_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) start(round + 1);  // on its way while this one is summed
    wait_for_all(coming[round % 2]);
    const std::span<std::byte> output = piece(own, round);
    for (int member = 0; member < size_; ++member) {
      sources[static_cast<std::size_t>(member)] =
          member == membership_.rank ? piece(slice(member), round).data() : staged(member, round);
    }
    tree_sum(sources, output.data(), output.size(), dtype);
  }
}

std::vector<int> MessageCommunicator::others() const {
  std::vector<int> members;
  for (int i = 1; i < size_; ++i) members.push_back((membership_.rank + i) % size_);
  return members;
}

void MessageCommunicator::send(Messages& messages, std::span<const std::byte> bytes, int member,
                               Channel channel) {
  if (!bytes.empty()) messages.push_back({member, links_->send(bytes, member, channel)});
}

void MessageCommunicator::receive(Messages& messages, std::span<std::byte> bytes, int member,
                                  Channel channel) {
  if (!bytes.empty()) messages.push_back({member, links_->receive(bytes, member, channel)});
}

void MessageCommunicator::wait_for_all(const Messages& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    switch (wait_for(*messages[i].pending)) {
      case Arrival::done:
        continue;
      case Arrival::late:
        return fail_at_deadline(std::span(messages).subspan(i));
      default:
        return fail_at_loss(messages[i].member);
    }
  }
}

Arrival MessageCommunicator::wait_for(PendingMessage& pending) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      waited_ = &pending;
    }
    // A note set before is seen here, one set later interrupts.
    const bool has_failed = note_->is_set() || watch_.failure().is_set();
    const Arrival arrival = has_failed ? Arrival::interrupted : pending.wait(train_seconds_);
    {
      const std::lock_guard lock(mutex_);
      waited_ = nullptr;
    }
    if (arrival != Arrival::interrupted) return arrival;
    check_failures();
  }
}

void MessageCommunicator::interrupt() {
  const std::lock_guard lock(mutex_);
  if (waited_ != nullptr) waited_->interrupt();
}

void MessageCommunicator::abort(const std::string& reason) {
  watch_.fail_group(membership_.key, *note_, format("rank {}: {}", global(membership_.rank), reason));
  interrupt();
}

void MessageCommunicator::check_failures() {
  for (const FailureNote* note : {static_cast<const FailureNote*>(note_.get()), &watch_.failure()}) {
    if (!note->is_set()) continue;
    close_links();
    throw_if_set(*note, global(membership_.rank), here_text());
  }
}

void MessageCommunicator::close_links() {
  coming_words_.clear();
  sent_.clear();
  unconfirmed_.clear();
  links_.reset();
}

void MessageCommunicator::fail(const std::string& reason) {
  close_links();
  watch_.fail_group(membership_.key, *note_, reason);
  throw PeerError(*note_->text());
}

void MessageCommunicator::fail_at_loss(int member) {
  // Mostly the reason is on its way.
  const auto is_known = [&] { return note_->is_set() || watch_.failure().is_set(); };
  for (int i = 0; i < 100 && !is_known(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  check_failures();
  fail(format("{}; rank {} waited for it in {}", watch_.explain_loss(membership_.key, global(member)),
              global(membership_.rank), here_text()));
}

void MessageCommunicator::fail_at_deadline(std::span<const Message> messages) {
  std::vector<int> missing;
  for (const Message& message : messages) {
    if (message.pending->wait(0.001) != Arrival::done) missing.push_back(message.member);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  std::vector<std::string> texts;
  for (const int member : missing)
    texts.push_back(format("rank {} ({})", global(member), last_call_text(member)));
  fail(format("no answer within {} s: rank {} waits in {} for {}", train_seconds_, global(membership_.rank),
              here_text(), join(texts, ", ")));
}

CollectiveCall MessageCommunicator::call_of(const Words& words) {
  return {static_cast<CollectiveKind>(words.kind), words.bytes, static_cast<DType>(words.dtype), words.root,
          words.unit};
}

std::string MessageCommunicator::last_call_text(int member) const {
  const Words& words = last_words_[static_cast<std::size_t>(member)];
  if (words.number == 0) return "has called nothing yet";
  return format("last reached {}, its call {}", collective_text(call_of(words)), words.number);
}

std::string MessageCommunicator::here_text() const {
  return format("{}, call {} of group \"{}\"", collective_text(call_), calls_, membership_.name);
}

}  // namespace stepforge
