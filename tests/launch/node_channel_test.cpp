// Messages between launchers: what counts as one, and what closes the connection.
#include "stepforge/launch/node_channel.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/launch/node_roles.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A channel and the raw socket at its other end.
class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() { connect(quiet_); }
  void connect(LifeSigns& signs) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    channel_.emplace(Descriptor(ends[0]), signs);
    other_ = Descriptor(ends[1]);
  }
  void say(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::send(other_.number(), text.data(), text.size(), MSG_NOSIGNAL);
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
      if (count < 0) hear();  // full
      if (!channel_->is_open()) return;
    }
  }
  std::vector<Json> hear() {
    const auto messages = channel_->receive(60);
    heard_.insert(heard_.end(), messages.begin(), messages.end());
    return messages;
  }

  /// What has come at the other end.
  std::string said() const {
    std::array<char, 65536> buffer{};
    const ssize_t count = recv(other_.number(), buffer.data(), buffer.size(), 0);
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }

  LifeSigns quiet_{std::chrono::hours(1)};
  LifeSigns lively_{std::chrono::milliseconds(1)};
  std::optional<NodeChannel> channel_;
  Descriptor other_;
  std::vector<Json> heard_;
};

TEST_F(ChannelTest, MessagesAreWholeLinesHoweverTheyArrive) {
  say("{\"kind\": \"a\"}\n{\"ki");
  EXPECT_EQ(hear().size(), 1U);
  say("nd\": \"b\"}\n\n\n");
  const auto messages = hear();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(kind_of(messages[0]), "b");
  EXPECT_TRUE(channel_->is_open());
}

TEST_F(ChannelTest, WhatWasSaidBeforeTheEndIsHeard) {
  say("{\"kind\": \"over\"}\n");
  other_ = Descriptor();
  EXPECT_EQ(hear().size(), 1U);
  EXPECT_FALSE(channel_->is_open());
  EXPECT_TRUE(contains(channel_->closed_because(), "closed the connection"));
}

TEST_F(ChannelTest, ALineThatIsNoJsonClosesIt) {
  say("hello\n");
  hear();
  EXPECT_FALSE(channel_->is_open());
  EXPECT_TRUE(hear().empty());
}

TEST_F(ChannelTest, ALineWithoutEndClosesIt) {
  say(std::string(NodeChannel::most_bytes + 1, 'x'));
  hear();
  EXPECT_TRUE(contains(channel_->closed_because(), "too long"));
}

TEST_F(ChannelTest, SilenceClosesIt) {
  usleep(20000);
  channel_->receive(0.01);
  EXPECT_TRUE(contains(channel_->closed_because(), "silent for 0.01 s"));
}

TEST_F(ChannelTest, SendsWhatDoesNotGoOutAtOnceLater) {
  const std::string text(100000, 'a');
  for (int i = 0; i < 20; ++i) channel_->send({{"kind", text}});
  EXPECT_TRUE(channel_->has_unsent());
  std::size_t bytes = 0;
  while (bytes < 20 * text.size()) {
    bytes += said().size();
    hear();
  }
  EXPECT_TRUE(channel_->is_open());
}

TEST_F(ChannelTest, LivesWhileItsOwnerWaitsForSomethingElse) {
  connect(lively_);
  std::string heard;
  while (heard.size() < 5) heard += said();  // the owner calls nothing
  EXPECT_EQ(heard, std::string(heard.size(), '\n'));
}

TEST_F(ChannelTest, WhatIsUnsentGoesOutWhileItsOwnerWaitsForSomethingElse) {
  connect(lively_);
  for (int i = 0; i < 20; ++i) channel_->send({{"kind", std::string(100000, 'a')}});
  ASSERT_TRUE(channel_->has_unsent());
  const timeval limit{10, 0};
  setsockopt(other_.number(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string heard;
  for (std::string news = said(); !news.empty(); news = said()) {
    heard += news;
    if (std::ranges::count(heard, '}') == 20) return;
  }
  FAIL() << "silent after " << heard.size() << " bytes";
}

TEST_F(ChannelTest, SignsOfLifeComeBetweenLinesOnly) {
  connect(lively_);
  const Json message = {{"kind", std::string(100000, 'a')}};
  for (int i = 0; i < 20; ++i) channel_->send(message);
  std::string heard;
  const auto lines = [&] { return std::ranges::count(heard, '}'); };
  while (lines() < 20) {
    heard += said();
    hear();
  }
  std::istringstream all(heard);
  for (std::string line; std::getline(all, line);) {
    EXPECT_TRUE(line.empty() || line == message.dump()) << line.substr(0, 100);
  }
}

TEST_F(ChannelTest, SendsTextThatIsNoUtf8) {
  channel_->send({{"kind", "log \xFF\xFE"}});
  EXPECT_TRUE(contains(said(), "log "));
}

TEST(NodeMessage, NumbersAndTextsAreChecked) {
  const Json message = {{"kind", "x"}, {"node", 3}, {"half", 0.5}, {"text", "yes"}, {"huge", UINT64_MAX}};
  EXPECT_EQ(number_in(message, "node", 0, 3), 3);
  EXPECT_EQ(text_in(message, "text"), "yes");
  for (const char* name : {"half", "text", "missing", "huge"}) {
    EXPECT_THROW(number_in(message, name, 0, INT32_MAX), FormatError) << name;
  }
  EXPECT_THROW(number_in(message, "node", 0, 2), FormatError);
  EXPECT_THROW(number_in(message, "node", 4, 9), FormatError);
  EXPECT_THROW(text_in(message, "node"), FormatError);
  EXPECT_THROW(failure_in(message), FormatError);
  EXPECT_EQ(kind_of(Json::array()), "");
  const NodeFailure failure = failure_in(to_json(NodeFailure{7, "the disk is full", true}));
  EXPECT_EQ(failure.exit_code, 7);
  EXPECT_EQ(failure.text, "the disk is full");
  EXPECT_TRUE(failure.node_is_lost);
}

}  // namespace
}  // namespace stepforge::testing
