// The launcher of another node than 0.
#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/version.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/launch/node_channel.h"
#include "stepforge/launch/node_roles.h"

namespace stepforge {

namespace {

using Clock = std::chrono::steady_clock;

class Follower : public Nodes {
 public:
  explicit Follower(const NodesOptions& options)
      : options_(options), address_(parse_tcp_address(options.rendezvous, "--rendezvous")) {}

  std::optional<NodeStart> begin(int attempt, int /*master_port*/, const Stop& stop) override {
    attempt_ = attempt;
    failure_.reset();
    is_over_ = false;
    const Clock::time_point start = Clock::now();
    if (attempt == 0 && !connect(start, stop)) return std::nullopt;
    for (read(); !start_; read()) {
      if (stop()) return std::nullopt;
      wait_for_news({{channel_->descriptor(), POLLIN, 0}});
      if (failure_) throw PeerError(failure_->text);
      if (seconds_since(start) > options_.init_seconds + options_.end_seconds) {
        throw PeerError(format("node 0's launcher at {} started nothing within {} s", address_.text(),
                               options_.init_seconds + options_.end_seconds));
      }
    }
    return std::exchange(start_, std::nullopt);
  }

  void add_polled(std::vector<pollfd>& polled) const override {
    if (channel_ && channel_->is_open()) polled.push_back({channel_->descriptor(), POLLIN, 0});
  }

  NodeNews news() override {
    read();
    NodeNews news;
    news.signal = std::exchange(signal_, 0);
    news.signal_count = signal_count_;
    news.has_failed = failure_.has_value();
    return news;
  }

  void tell_failure(const NodeFailure& failure) override {
    channel_->send(to_json(failure));
    // Where nobody else can say which was the first, it is this one.
    if ((!channel_->is_open() || is_over_) && !failure_) failure_ = failure;
  }
  void tell_signal(int number, int count) override {
    channel_->send({{"kind", "signal"}, {"signal", number}, {"count", count}});
  }

  std::optional<NodeFailure> finish(const std::function<void()>& look) override {
    channel_->send({{"kind", "ended"}, {"attempt", attempt_}});
    while (!is_over_ && channel_->is_open()) {
      wait_for_news({{channel_->descriptor(), POLLIN, 0}});
      look();
      read();
    }
    return failure_;
  }

 private:
  bool connect(Clock::time_point start, const Stop& stop) {
    std::string failure;
    while (!channel_) {
      if (stop()) return false;
      const double left = options_.init_seconds - seconds_since(start);
      if (left <= 0) {
        throw PeerError(format("node {}: node 0's launcher did not answer at {} within {} s: {}",
                               options_.node, address_.text(), options_.init_seconds, failure));
      }
      if (Descriptor socket = connect_to(address_, std::min(left, 1.0), failure)) {
        channel_.emplace(std::move(socket), signs_);
      } else {
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.2)));
      }
    }
    channel_->send({{"kind", "hello"},
                    {"version", std::string(version())},
                    {"nodes", options_.nodes},
                    {"node", options_.node},
                    {"processes", options_.processes},
                    {"restarts", options_.max_restarts}});
    return true;
  }

  /// Takes what has come, but nothing of the next attempt before this one has ended.
  void read() {
    try {
      for (const Json& message : channel_->receive(options_.silence_seconds)) inbox_.push_back(message);
      while (!inbox_.empty() && !is_over_) {
        const Json message = std::move(inbox_.front());
        inbox_.pop_front();
        take(message);
      }
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      channel_->close(error.what());
    }
    if (channel_->is_open() || failure_ || is_over_) return;
    failure_ = NodeFailure{
        1, format("node 0's launcher at {} is gone: {}", address_.text(), channel_->closed_because()), true};
  }

  void take(const Json& message) {
    const std::string kind = kind_of(message);
    if (kind == "start") {
      const int attempt = number_in(message, "attempt", 0, INT32_MAX);
      if (attempt != attempt_) throw FormatError(format("it starts attempt {}, not {}", attempt, attempt_));
      start_ = NodeStart{number_in(message, "first_rank", 1, INT32_MAX),
                         number_in(message, "world_size", 1, INT32_MAX), text_in(message, "launch_id"),
                         address_.host, number_in(message, "master_port", 1, 65535)};
    } else if (kind == "failure") {
      if (!failure_) failure_ = failure_in(message);
    } else if (kind == "signal") {
      signal_ = number_in(message, "signal", 1, 64);
      signal_count_ = number_in(message, "count", 1, INT32_MAX);
    } else if (kind == "over") {
      is_over_ = true;
    } else if (kind == "refused") {
      throw UsageError(format("node 0's launcher at {}: {}", address_.text(), text_in(message, "reason")));
    } else {
      throw FormatError(format("it sent the message \"{}\"", kind));
    }
  }

  NodesOptions options_;
  TcpAddress address_;
  LifeSigns signs_;
  std::optional<NodeChannel> channel_;
  std::deque<Json> inbox_;
  int attempt_ = 0;
  std::optional<NodeStart> start_;
  std::optional<NodeFailure> failure_;
  bool is_over_ = false;  ///< the attempt
  int signal_ = 0;
  int signal_count_ = 0;
};

}  // namespace

std::unique_ptr<Nodes> follow_nodes(const NodesOptions& options) {
  return std::make_unique<Follower>(options);
}

}  // namespace stepforge
