// Node 0's launcher: the others meet at it.
#include <algorithm>
#include <optional>
#include <ostream>
#include <span>
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

class Leader : public Nodes {
 public:
  Leader(const NodesOptions& options, std::ostream& report)
      : options_(options),
        report_(report),
        address_(parse_tcp_address(options.rendezvous, "--rendezvous")),
        listener_(listen_at(address_)),
        followers_(static_cast<std::size_t>(options.nodes)) {}

  std::optional<NodeStart> begin(int attempt, int master_port, const Stop& stop) override {
    if (attempt == 0 && !gather(stop)) return std::nullopt;
    attempt_ = attempt;
    failure_.reset();
    NodeStart start{0, 0, launch_id_, address_.host, master_port};
    start.world_size = options_.processes;
    for (const Follower& follower : others()) start.world_size += follower.processes;
    NodeStart of_follower = start;
    of_follower.first_rank = options_.processes;
    for (Follower& follower : others()) {
      follower.has_ended = false;
      follower.channel->send(to_json(of_follower, attempt));
      of_follower.first_rank += follower.processes;
    }
    return start;
  }

  void add_polled(std::vector<pollfd>& polled) const override {
    for (std::size_t node = 1; node < followers_.size(); ++node) {
      const auto& channel = followers_[node].channel;
      if (channel && channel->is_open()) polled.push_back({channel->descriptor(), POLLIN, 0});
    }
  }

  NodeNews news() override {
    NodeNews news;
    for (std::size_t node = 1; node < followers_.size(); ++node) read(static_cast<int>(node));
    news.signal = std::exchange(signal_, 0);
    news.signal_count = signal_count_;
    news.has_failed = failure_.has_value();
    return news;
  }

  void tell_failure(const NodeFailure& failure) override {
    if (failure_) return;
    failure_ = failure;
    send_to_all(to_json(failure));
  }

  void tell_signal(int number, int count) override {
    send_to_all({{"kind", "signal"}, {"signal", number}, {"count", count}});
  }

  std::optional<NodeFailure> finish(const std::function<void()>& look) override {
    std::optional<Clock::time_point> failed_at;
    while (!have_all_ended()) {
      std::vector<pollfd> polled;
      add_polled(polled);
      wait_for_news(polled);
      look();
      for (std::size_t node = 1; node < followers_.size(); ++node) read(static_cast<int>(node));
      if (!failure_) continue;
      if (!failed_at) failed_at = Clock::now();
      if (seconds_since(*failed_at) > options_.end_seconds) break;
    }
    send_to_all({{"kind", "over"}});
    flush_all();
    return failure_;
  }

 private:
  struct Follower {
    std::optional<NodeChannel> channel;
    int processes = 0;
    bool has_ended = false;
  };

  std::span<Follower> others() { return std::span(followers_).subspan(1); }
  bool have_all_ended() {
    return std::ranges::all_of(others(), [](const Follower& follower) { return follower.has_ended; });
  }

  /// Waits until all followers have introduced themselves.
  bool gather(const Stop& stop) {
    const Clock::time_point start = Clock::now();
    for (;;) {
      std::vector<pollfd> polled = {{listener_.number(), POLLIN, 0}};
      for (const NodeChannel& channel : guests_) polled.push_back({channel.descriptor(), POLLIN, 0});
      wait_for_news(polled);
      while (Descriptor socket = accept_one(listener_)) guests_.emplace_back(std::move(socket), signs_);
      for (auto guest = guests_.begin(); guest != guests_.end();) {
        guest = hear(*guest) ? guests_.erase(guest) : guest + 1;
      }
      const std::string missing = missing_nodes();
      if (missing.empty()) return true;
      if (stop()) {
        send_to_all({{"kind", "refused"}, {"reason", "node 0 was interrupted"}});
        return false;
      }
      if (seconds_since(start) < options_.init_seconds) continue;
      const std::string reason =
          format("{} did not come to {} within {} s", missing, address_.text(), options_.init_seconds);
      send_to_all({{"kind", "refused"}, {"reason", reason}});
      throw PeerError(reason);
    }
  }

  std::string missing_nodes() {
    std::vector<std::string> missing;
    for (std::size_t node = 1; node < followers_.size(); ++node) {
      Follower& follower = followers_[node];
      if (follower.channel) follower.channel->receive(options_.silence_seconds);
      if (follower.channel && !follower.channel->is_open()) follower.channel.reset();  // it may come again
      if (!follower.channel) missing.push_back(format("node {}", node));
    }
    return join(missing, ", ");
  }

  /// What somebody says who has connected. Whether `guest` is a guest no more: admitted, refused or gone.
  bool hear(NodeChannel& guest) {
    const std::vector<Json> messages = guest.receive(options_.silence_seconds);
    if (messages.empty()) return !guest.is_open();
    try {
      admit(guest, messages.front());
    } catch (const Error& error) {
      report_ << format("refused a launcher at {}: {}\n", guest.peer(), error.what()) << std::flush;
      guest.send({{"kind", "refused"}, {"reason", error.what()}});
      guest.close("refused");
    }
    return true;
  }

  void admit(NodeChannel& guest, const Json& message) {
    if (kind_of(message) != "hello") throw FormatError("it is none of this job");
    if (text_in(message, "version") != version()) {
      throw UsageError(format("it is version {}, node 0 is {}", text_in(message, "version"), version()));
    }
    const int nodes = number_in(message, "nodes", 1, most_nodes);
    if (nodes != options_.nodes) {
      throw UsageError(format("--nnodes {} there, --nnodes {} on node 0", nodes, options_.nodes));
    }
    const int restarts = number_in(message, "restarts", 0, INT32_MAX);
    if (restarts != options_.max_restarts) {
      throw UsageError(
          format("--max-restarts {} there, --max-restarts {} on node 0", restarts, options_.max_restarts));
    }
    const int node = number_in(message, "node", 0, nodes - 1);
    Follower& follower = followers_[static_cast<std::size_t>(node)];
    if (node == 0 || (follower.channel && follower.channel->is_open())) {
      throw UsageError(format("--node-rank {} is there already", node));
    }
    follower.processes = number_in(message, "processes", 1, most_processes);
    follower.channel = std::move(guest);
  }

  void read(int node) {
    Follower& follower = followers_[static_cast<std::size_t>(node)];
    if (!follower.channel || !follower.channel->is_open()) return lose(node);
    try {
      for (const Json& message : follower.channel->receive(options_.silence_seconds)) {
        const std::string kind = kind_of(message);
        if (kind == "failure") {
          tell_failure(failure_in(message));
        } else if (kind == "signal") {
          signal_ = number_in(message, "signal", 1, 64);
          signal_count_ = number_in(message, "count", 1, INT32_MAX);
          tell_signal(signal_, signal_count_);
        } else if (kind == "ended") {
          // One that was too late for its own attempt says nothing about this one.
          if (number_in(message, "attempt", 0, INT32_MAX) == attempt_) follower.has_ended = true;
        } else {
          throw FormatError(format("it sent the message \"{}\"", kind));
        }
      }
    } catch (const Error& error) {
      follower.channel->close(error.what());
    }
    if (!follower.channel->is_open()) lose(node);
  }

  void lose(int node) {
    Follower& follower = followers_[static_cast<std::size_t>(node)];
    follower.has_ended = true;
    const std::string reason = follower.channel ? follower.channel->closed_because() : "it never came";
    tell_failure({1, format("the launcher of node {} is gone: {}", node, reason), true});
  }

  void send_to_all(const Json& message) {
    for (Follower& follower : others()) {
      if (follower.channel) follower.channel->send(message);
    }
  }
  void flush_all() {
    const Clock::time_point start = Clock::now();
    const auto has_unsent = [](const Follower& follower) {
      return follower.channel && follower.channel->is_open() && follower.channel->has_unsent();
    };
    while (std::ranges::any_of(others(), has_unsent) && seconds_since(start) < 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (Follower& follower : others()) follower.channel->receive(options_.silence_seconds);
    }
  }

  NodesOptions options_;
  std::ostream& report_;
  TcpAddress address_;
  Descriptor listener_;
  LifeSigns signs_;
  std::vector<Follower> followers_;  ///< by node; node 0's is empty
  std::vector<NodeChannel> guests_;  ///< have connected and said nothing yet
  std::string launch_id_ = new_launch_id();
  std::optional<NodeFailure> failure_;
  int attempt_ = 0;
  int signal_ = 0;
  int signal_count_ = 0;
};

}  // namespace

std::unique_ptr<Nodes> lead_nodes(const NodesOptions& options, std::ostream& report) {
  return std::make_unique<Leader>(options, report);
}

}  // namespace stepforge
