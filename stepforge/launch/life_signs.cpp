#include "stepforge/launch/life_signs.h"

#include <cerrno>

#include <sys/socket.h>

namespace stepforge {

int NodeOutbox::send(std::string_view text) {
  const std::lock_guard lock(mutex_);
  unsent_ += text;
  return flush();
}

void NodeOutbox::send_life_sign() {
  const std::lock_guard lock(mutex_);
  if (socket_.number() < 0) return;
  if (unsent_.empty()) unsent_ = "\n";
  flush();  // the owner notices a broken connection when it receives
}

bool NodeOutbox::has_unsent() const {
  const std::lock_guard lock(mutex_);
  return !unsent_.empty();
}

void NodeOutbox::close() {
  const std::lock_guard lock(mutex_);
  socket_ = Descriptor();
  unsent_.clear();
}

int NodeOutbox::flush() {
  while (!unsent_.empty()) {
    const ssize_t count = ::send(socket_.number(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN ? 0 : errno;
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
  return 0;
}

LifeSigns::LifeSigns(std::chrono::milliseconds interval)
    : thread_([this, interval](const std::stop_token& stop) { run(stop, interval); }) {}

void LifeSigns::add(const std::shared_ptr<NodeOutbox>& outbox) {
  const std::lock_guard lock(mutex_);
  outboxes_.push_back(outbox);
}

void LifeSigns::run(const std::stop_token& stop, std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopped_.wait_for(lock, stop, interval, [] { return false; });
    std::erase_if(outboxes_, [](const auto& outbox) { return outbox.expired(); });
    for (const auto& known : outboxes_) {
      if (const std::shared_ptr<NodeOutbox> outbox = known.lock()) outbox->send_life_sign();
    }
  }
}

}  // namespace stepforge
