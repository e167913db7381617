#include "core/log.h"

#include "support/test.h"

namespace octofold::core {
namespace {

class LogTest : public testing::Test {
 protected:
  void TearDown() override { set_log_handler({}); }
};

TEST_F(LogTest, NobodyListensByDefault) {
  EXPECT_FALSE(log_enabled(LogLevel::kWarning));
  log(LogLevel::kWarning, "dropped {}", 1);
}

TEST_F(LogTest, HandlerGetsFormattedMessagesFromTheLevelOn) {
  std::vector<std::string> messages;
  set_log_handler([&](LogLevel, std::string_view message) { messages.emplace_back(message); });
  log(LogLevel::kDebug, "below the default level");
  log(LogLevel::kWarning, "{} of {}", 1, 2);
  EXPECT_EQ(messages, std::vector<std::string>{"1 of 2"});
}

TEST_F(LogTest, WhatTheHandlerThrowsReachesTheCaller) {
  set_log_handler([](LogLevel, std::string_view) { throw std::runtime_error("full"); });
  EXPECT_THROW(log(LogLevel::kInfo, "x"), std::runtime_error);
}

TEST_F(LogTest, HandlerMayLogAndMayBeReplacedMeanwhile) {
  std::atomic<int> calls{0};
  const auto install = [&] {
    set_log_handler([&](LogLevel level, std::string_view) {
      if (++calls % 2 == 1) log(level, "from within");
    });
  };
  install();
  std::jthread replacing([&](std::stop_token stop) {
    while (!stop.stop_requested()) install();
  });
  for (int i = 0; i < 1000; ++i) log(LogLevel::kInfo, "message {}", i);
  EXPECT_GE(calls, 1000);
}

}  // namespace
}  // namespace octofold::core
