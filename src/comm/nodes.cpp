#include "comm/nodes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <ostream>
#include <random>
#include <thread>
#include <utility>

#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/version.h"
#include "comm/communicator.h"
#include "comm/node_channel.h"

namespace stepforge {

namespace {

using Clock = std::chrono::steady_clock;

/// How long a wait for news lasts before signs of life and deadlines are looked at, in milliseconds.
constexpr int poll_milliseconds = 200;
constexpr int most_nodes = 1 << 16;
constexpr int most_processes = 1 << 12;
constexpr std::size_t most_text = std::size_t{32} << 10;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for_news(const std::vector<pollfd>& descriptors) {
  std::vector<pollfd> polled = descriptors;
  poll(polled.data(), polled.size(), poll_milliseconds);
}

std::string kind_of(const Json& message) {
  const bool is_known = message.is_object() && message.contains("kind") && message["kind"].is_string();
  return is_known ? message["kind"].get<std::string>() : "";
}

/// A number from somebody else. Throws FormatError unless it is one in that range.
int number_in(const Json& message, const char* name, int least, int most) {
  const bool is_number = message.contains(name) && message[name].is_number_integer();
  const int64_t value = is_number ? message[name].get<int64_t>() : int64_t{least} - 1;
  if (value < least || value > most) {
    throw FormatError(
        format("its message \"{}\" has no number \"{}\" of {} to {}", kind_of(message), name, least, most));
  }
  return static_cast<int>(value);
}

std::string text_in(const Json& message, const char* name) {
  if (!message.contains(name) || !message[name].is_string()) {
    throw FormatError(format("its message \"{}\" has no text \"{}\"", kind_of(message), name));
  }
  return message[name].get<std::string>();
}

/// Bytes of a log as JSON can hold them.
std::string printable(const std::string& text) {
  std::string result = text.substr(0, most_text);
  std::replace_if(
      result.begin(), result.end(),
      [](unsigned char byte) { return byte >= 0x80 || (byte < 0x20 && byte != '\n' && byte != '\t'); }, '?');
  return result;
}

Json to_json(const NodeFailure& failure) {
  return {{"kind", "failure"},
          {"node", failure.node},
          {"exit_code", failure.exit_code},
          {"text", printable(failure.text)},
          {"lost", failure.node_is_lost}};
}

NodeFailure failure_in(const Json& message) {
  const bool is_lost =
      message.contains("lost") && message["lost"].is_boolean() && message["lost"].get<bool>();
  return {number_in(message, "node", 0, most_nodes), number_in(message, "exit_code", 1, 255),
          text_in(message, "text"), is_lost};
}

Json to_json(const NodeStart& start, int attempt) {
  return {{"kind", "start"},
          {"attempt", attempt},
          {"first_rank", start.first_rank},
          {"world_size", start.world_size},
          {"launch_id", start.launch_id},
          {"master_port", start.master_port}};
}

std::string new_launch_id() {
  std::random_device device;
  return format("{}-{:08x}", getpid(), device());
}

/// A job of one node: nobody to talk to.
class OneNode : public Nodes {
 public:
  explicit OneNode(const NodesOptions& options) : processes_(options.processes) {}

  std::optional<NodeStart> begin(int /*attempt*/, int master_port, const Stop& /*stop*/) override {
    failure_.reset();
    return NodeStart{0, processes_, launch_id_, "127.0.0.1", master_port};
  }
  void add_polled(std::vector<pollfd>& /*polled*/) const override {}
  NodeNews news() override { return {}; }
  void tell_failure(const NodeFailure& failure) override {
    if (!failure_) failure_ = failure;
  }
  void tell_signal(int /*number*/) override {}
  std::optional<NodeFailure> finish() override { return failure_; }

 private:
  int processes_;
  std::string launch_id_ = new_launch_id();
  std::optional<NodeFailure> failure_;
};

/// Node 0's launcher.
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
    failure_.reset();
    is_failure_told_ = false;
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
    news.signal = std::exchange(signal_, 0);
    for (std::size_t node = 1; node < followers_.size(); ++node) read(static_cast<int>(node));
    if (const int number = std::exchange(signal_, 0)) news.signal = number;
    if (failure_ && !std::exchange(is_failure_told_, true)) news.failure = failure_;
    return news;
  }

  void tell_failure(const NodeFailure& failure) override {
    if (failure_) return;
    failure_ = failure;
    send_to_all(to_json(failure));
  }

  void tell_signal(int number) override { send_to_all({{"kind", "signal"}, {"signal", number}}); }

  std::optional<NodeFailure> finish() override {
    std::optional<Clock::time_point> failed_at;
    while (!have_all_ended()) {
      std::vector<pollfd> polled;
      add_polled(polled);
      wait_for_news(polled);
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
      while (Descriptor socket = accept_one(listener_)) guests_.emplace_back(std::move(socket));
      for (NodeChannel& guest : guests_) hear(guest);
      std::erase_if(guests_, [](const NodeChannel& guest) { return !guest.is_open(); });
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

  /// What somebody says who has connected.
  void hear(NodeChannel& guest) {
    const std::vector<Json> messages = guest.receive(options_.silence_seconds);
    if (messages.empty()) return;
    try {
      admit(guest, messages.front());
    } catch (const Error& error) {
      report_ << format("refused a launcher at {}: {}\n", guest.peer(), error.what()) << std::flush;
      guest.send({{"kind", "refused"}, {"reason", error.what()}});
      guest.close("refused");
    }
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
    guest.close("admitted");
  }

  void read(int node) {
    Follower& follower = followers_[static_cast<std::size_t>(node)];
    if (!follower.channel || !follower.channel->is_open()) return lose(node);
    try {
      for (const Json& message : follower.channel->receive(options_.silence_seconds)) {
        const std::string kind = kind_of(message);
        if (kind == "failure") {
          NodeFailure failure = failure_in(message);
          failure.node = node;
          tell_failure(failure);
        } else if (kind == "signal") {
          signal_ = number_in(message, "signal", 1, 64);
          tell_signal(signal_);
        } else if (kind == "ended") {
          follower.has_ended = true;
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
    tell_failure({node, 1, format("the launcher of node {} is gone: {}", node, reason), true});
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
  std::vector<Follower> followers_;  ///< by node; node 0's is empty
  std::vector<NodeChannel> guests_;  ///< have connected and said nothing yet
  std::string launch_id_ = new_launch_id();
  std::optional<NodeFailure> failure_;
  bool is_failure_told_ = false;
  int signal_ = 0;
};

/// The launcher of another node.
class FollowerNode : public Nodes {
 public:
  explicit FollowerNode(const NodesOptions& options)
      : options_(options), address_(parse_tcp_address(options.rendezvous, "--rendezvous")) {}

  std::optional<NodeStart> begin(int attempt, int /*master_port*/, const Stop& stop) override {
    failure_.reset();
    is_failure_told_ = false;
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
    if (failure_ && !std::exchange(is_failure_told_, true)) news.failure = failure_;
    return news;
  }

  void tell_failure(const NodeFailure& failure) override { channel_->send(to_json(failure)); }
  void tell_signal(int number) override { channel_->send({{"kind", "signal"}, {"signal", number}}); }

  std::optional<NodeFailure> finish() override {
    channel_->send({{"kind", "ended"}});
    while (!is_over_ && channel_->is_open()) {
      wait_for_news({{channel_->descriptor(), POLLIN, 0}});
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
        channel_.emplace(std::move(socket));
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
        0, 1, format("node 0's launcher at {} is gone: {}", address_.text(), channel_->closed_because()),
        true};
  }

  void take(const Json& message) {
    const std::string kind = kind_of(message);
    if (kind == "start") {
      start_ = NodeStart{number_in(message, "first_rank", 1, INT32_MAX),
                         number_in(message, "world_size", 1, INT32_MAX), text_in(message, "launch_id"),
                         address_.host, number_in(message, "master_port", 1, 65535)};
    } else if (kind == "failure") {
      if (!failure_) failure_ = failure_in(message);
    } else if (kind == "signal") {
      signal_ = number_in(message, "signal", 1, 64);
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
  std::optional<NodeChannel> channel_;
  std::deque<Json> inbox_;
  std::optional<NodeStart> start_;
  std::optional<NodeFailure> failure_;
  bool is_failure_told_ = false;
  bool is_over_ = false;  ///< the attempt
  int signal_ = 0;
};

}  // namespace

std::unique_ptr<Nodes> meet_nodes(const NodesOptions& options, std::ostream& report) {
  if (options.nodes < 1 || options.nodes > most_nodes) {
    throw UsageError(format("--nnodes {}: 1 to {}", options.nodes, most_nodes));
  }
  if (options.node < 0 || options.node >= options.nodes) {
    throw UsageError(format("--node-rank {}: below --nnodes {}", options.node, options.nodes));
  }
  if (options.nodes == 1) return std::make_unique<OneNode>(options);
  if (options.rendezvous.empty()) {
    throw UsageError(
        "--nnodes needs --rendezvous HOST:PORT, the same on all nodes: where node 0's launcher listens");
  }
  if (options.node == 0) return std::make_unique<Leader>(options, report);
  return std::make_unique<FollowerNode>(options);
}

}  // namespace stepforge
