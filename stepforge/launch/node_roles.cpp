#include "stepforge/launch/node_roles.h"

#include <random>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// How long a wait for news lasts before silence and deadlines are looked at, in milliseconds.
constexpr int poll_milliseconds = 200;
/// Of a failure's text, which holds the last lines of a log.
constexpr std::size_t most_text = std::size_t{32} << 10;

}  // namespace

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void wait_for_news(std::vector<pollfd> descriptors) {
  poll(descriptors.data(), descriptors.size(), poll_milliseconds);
}

std::string kind_of(const Json& message) {
  const bool is_known = message.is_object() && message.contains("kind") && message["kind"].is_string();
  return is_known ? message["kind"].get<std::string>() : "";
}

int number_in(const Json& message, const char* name, int least, int most) {
  const bool is_number = message.contains(name) && message[name].is_number_integer();
  // A number of 64 bits without sign becomes a negative one.
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

Json to_json(const NodeFailure& failure) {
  return {{"kind", "failure"},
          {"exit_code", failure.exit_code},
          {"text", failure.text.substr(0, most_text)},
          {"lost", failure.node_is_lost}};
}

NodeFailure failure_in(const Json& message) {
  const bool is_lost =
      message.contains("lost") && message["lost"].is_boolean() && message["lost"].get<bool>();
  return {number_in(message, "exit_code", 1, 255), text_in(message, "text"), is_lost};
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

}  // namespace stepforge
