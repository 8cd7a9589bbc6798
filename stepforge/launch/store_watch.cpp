// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/store_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/store_keys.h"

namespace stepforge {

namespace {

// The protocol of c10d's TCPStore, as far as it is needed here: a byte for the question, then its arguments.
enum class StoreQuestion : uint8_t { validate = 0, wait = 6, ping = 13 };
constexpr uint32_t kMagic = 0x3C85F7CE;
/// The answer to `wait` once the key exists.
constexpr std::byte kYes{0};
/// A ping is answered with its own four bytes, none of which is kYes.
constexpr uint32_t kPing = 0x02020202;

template <typename Number>
void append(std::string& message, Number number) {
  std::array<char, sizeof(number)> bytes{};
  std::memcpy(bytes.data(), &number, sizeof(number));
  message.append(bytes.data(), bytes.size());
}

std::string question(StoreQuestion kind, const std::string& key) {
  const std::string name = "/" + key;  // as c10d's own clients write it
  std::string message;
  append(message, kind);
  append(message, uint64_t{1});  // number of keys
  append(message, uint64_t{name.size()});
  return message + name;
}

std::string ping() {
  std::string message;
  append(message, StoreQuestion::ping);
  append(message, kPing);
  return message;
}

/// False if the connection is closed, or takes no more.
bool send_all(int socket, std::string_view message) {
  const ssize_t sent = send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return std::cmp_equal(sent, message.size());
}

int milliseconds_of(double seconds) {
  return static_cast<int>(seconds * 1000);
}

Descriptor new_event() {
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw Error(format("cannot watch the job: {}", std::strerror(errno)));
  return event;
}

}  // namespace

StoreWatch::StoreWatch(Options options)
    : options_(std::move(options)), ended_(new_event()), stop_(new_event()), thread_([this] { watch(); }) {}

StoreWatch::~StoreWatch() {
  eventfd_write(stop_.number(), 1);
  thread_.join();
}

std::string StoreWatch::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool StoreWatch::pause(double seconds) const {
  pollfd stop{stop_.number(), POLLIN, 0};
  return poll(&stop, 1, milliseconds_of(seconds)) == 0;
}

void StoreWatch::watch() {
  const std::string prefix = store_prefix(options_.run_id);
  do {
    const Descriptor socket = connect_to(options_.store, options_.ask_seconds);
    if (!socket) continue;
    std::string greeting;
    append(greeting, StoreQuestion::validate);
    append(greeting, kMagic);
    if (!send_all(socket.number(), greeting)) continue;
    // The store answers in the moment in which the ranks meet, so no hang after that is missed.
    if (wait_for_key(socket.number(), size_key(prefix)) != Answer::yes) continue;
    const Answer answer = wait_for_key(socket.number(), all_finished_key(prefix));
    if (answer == Answer::silent) report_end(format("has not answered for {} s", options_.silent_seconds));
    if (answer == Answer::closed) report_end("is closed");
    return;
  } while (pause(options_.ask_seconds));
}

/// Waits until the store has the key, and asks meanwhile whether it is still there. Answer::yes: it has the key.
StoreWatch::Answer StoreWatch::wait_for_key(int socket, const std::string& key) const {
  if (!send_all(socket, question(StoreQuestion::wait, key) + ping())) return Answer::closed;
  // Rounds are counted, not time: a launcher that was suspended together with the job has not waited.
  double silence = 0;
  while (silence < options_.silent_seconds) {
    const Answer answer = next_answer(socket);
    if (answer == Answer::silent) {
      silence += options_.ask_seconds;
    } else if (answer == Answer::ping) {
      silence = 0;
      if (!pause(options_.ask_seconds)) return Answer::stopped;
      if (!send_all(socket, ping())) return Answer::closed;
    } else {
      return answer;
    }
  }
  return Answer::silent;
}

StoreWatch::Answer StoreWatch::next_answer(int socket) const {
  std::array<pollfd, 2> polled{{{socket, POLLIN, 0}, {stop_.number(), POLLIN, 0}}};
  if (poll(polled.data(), polled.size(), milliseconds_of(options_.ask_seconds)) <= 0) return Answer::silent;
  if (polled[1].revents != 0) return Answer::stopped;
  std::array<std::byte, 64> bytes{};
  const ssize_t count = recv(socket, bytes.data(), bytes.size(), 0);
  if (count <= 0) return Answer::closed;
  const std::span received = std::span(bytes).first(static_cast<std::size_t>(count));
  return std::ranges::find(received, kYes) != received.end() ? Answer::yes : Answer::ping;
}

void StoreWatch::report_end(const std::string& how) {
  {
    const std::lock_guard lock(mutex_);
    reason_ = format("rank 0's store at {} {}", options_.store.text(), how);
  }
  eventfd_write(ended_.number(), 1);
}

}  // namespace stepforge
