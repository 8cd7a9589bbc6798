// SPDX-License-Identifier: Apache-2.0
// Failures of calls that are enqueued: who hears of them, and in which words.
#include <chrono>
#include <thread>

#include "tests/nccl/nccl_ranks.h"

namespace stepforge::testing {
namespace {

using Floats = std::vector<float>;

/// A rank of a group "all" of two ranks.
struct Rank {
  int rank;
  CUstream_st& stream;
  Communicator& group;
  CallFailure& failure;

  void all_reduce(const OnGpu<float>& values) const { group.all_reduce(values.bytes(), DType::f32); }
  /// As a training step ends.
  void wait() const {
    stream.synchronize();
    failure.rethrow();
  }
};

/// "" or what each rank throws. Numbers stay until the stream is empty.
std::vector<std::string> failures(const std::function<void(const Rank&, const OnGpu<float>&)>& body,
                                  double seconds = 60) {
  const auto results = run_threads(2,
                                   [&](World& control) {
                                     NcclWorld world(control, seconds);
                                     CUstream_st stream;
                                     const UseStream use(stream);
                                     const OnGpu<float> values({1.0F});
                                     const std::string result = result_of([&] {
                                       const auto group =
                                           world.device_group(control.group("all", {0, 1}), "all", {0, 1});
                                       body({control.rank(), stream, *group, world.failure()}, values);
                                       return std::string();
                                     });
                                     stream.synchronize();
                                     return result;
                                   },
                                   {60, 60});
  return results;
}

TEST(NcclFailures, AbortWakesThoseThatWaitAndAbortsBothCommunicators) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    if (own.rank == 1) {
      own.group.abort("the disk is full");
      return own.all_reduce(values);
    }
    own.all_reduce(values);
    own.wait();
  });
  EXPECT_CONTAINS(results[0], "PeerError: rank 1: the disk is full; rank 0 was in ");
  EXPECT_CONTAINS(results[0], "all_reduce of 4 bytes fp32, call 4 of group \"all\" (ranks 0, 1), by NCCL");
  EXPECT_CONTAINS(results[1], "PeerError: rank 1: the disk is full");
  EXPECT_EQ(FakeNccl::get().counts().aborted, 2);
  expect_clean_fakes();
}

TEST(NcclFailures, AnyThreadMayAbortWhileAnotherCalls) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    std::thread other;
    if (own.rank == 1) {
      other = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        own.group.abort("enough");
      });
    }
    const std::string message = message_of<PeerError>([&] {
      for (;;) {
        own.all_reduce(values);
        own.wait();
      }
    });
    if (other.joinable()) other.join();
    throw PeerError(message);
  });
  for (const std::string& result : results) EXPECT_CONTAINS(result, "PeerError: rank 1: enough");
  EXPECT_EQ(FakeNccl::get().counts().aborted, 2);
  expect_clean_fakes();
}

TEST(NcclFailures, AnAsynchronousErrorNamesTheCallAndReachesTheOtherRank) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    own.group.barrier();
    if (own.rank == 1) FakeNccl::get().plan(1, Trouble::remote_error);
    own.all_reduce(values);
    own.wait();
  });
  const std::string error =
      "remote process exited (as planned); rank 1 was in all_reduce of 4 bytes fp32, call 4";
  EXPECT_CONTAINS(results[1], "PeerError: NCCL: ");
  EXPECT_CONTAINS(results[1], error);
  EXPECT_CONTAINS(results[0], "PeerError: rank 1: NCCL: ");
  EXPECT_CONTAINS(results[0], error);
  EXPECT_CONTAINS(results[0], "rank 0 was in all_reduce of 4 bytes fp32, call 4 of group \"all\"");
  EXPECT_EQ(FakeNccl::get().counts().aborted, 2);
  expect_clean_fakes();
}

TEST(NcclFailures, ACallThatNcclRefusesEndsBothRanks) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    own.group.barrier();
    if (own.rank == 0) FakeNccl::get().plan(0, Trouble::refused);
    own.all_reduce(values);
    own.wait();
  });
  EXPECT_CONTAINS(
      results[0],
      "PeerError: NCCL: send a group of calls: an error of the fake (as planned); rank 0 was in all_reduce");
  EXPECT_CONTAINS(results[1], "PeerError: rank 0: NCCL: send a group of calls");
  expect_clean_fakes();
}

TEST(NcclFailures, ARankThatDoesNotComeIsReportedAtTheDeadline) {
  const Marks marks;
  const auto results = failures(
      [&](const Rank& own, const OnGpu<float>& values) {
        if (own.rank == 1) {
          marks.wait_for("rank 0 has failed");
          own.all_reduce(values);
          return own.wait();
        }
        own.all_reduce(values);
        own.stream.synchronize();
        marks.set("rank 0 has failed");
        own.wait();
      },
      /*seconds=*/1);
  const std::string error =
      "no answer within 1 s: rank 0 was in all_reduce of 4 bytes fp32, call 4 of group \"all\" (ranks 0, 1), by NCCL";
  EXPECT_CONTAINS(results[0], "PeerError: " + error);
  EXPECT_CONTAINS(results[1], error);
  EXPECT_EQ(FakeNccl::get().counts().aborted, 2);
  expect_clean_fakes();
}

TEST(NcclFailures, TheDeadlineBeginsWhenTheDeviceComesToTheCall) {
  const auto results = failures(
      [](const Rank& own, const OnGpu<float>& values) {
        own.stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); });
        own.all_reduce(values);
        own.wait();
        EXPECT_EQ(values.read(), Floats{2});
      },
      /*seconds=*/1);
  EXPECT_EQ(results, std::vector<std::string>(2));
  expect_clean_fakes();
}

TEST(NcclFailures, AfterAFailureEveryCallThrowsIt) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    own.group.barrier();
    if (own.rank == 0) FakeNccl::get().plan(0, Trouble::remote_error);
    EXPECT_THROW(
        {
          own.all_reduce(values);
          own.wait();
        },
        PeerError);
    Floats on_host(1);
    const OnGpu<float> whole(Floats(2));
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { own.all_reduce(values); }, [&] { own.group.all_gather(values.bytes(), whole.bytes()); },
             [&] { own.group.all_reduce(writable_bytes_of(on_host), DType::f32); },
             [&] { own.group.barrier(); }}) {
      EXPECT_CONTAINS(message_of<PeerError>(call), "remote process exited");
    }
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
  expect_clean_fakes();
}

TEST(NcclFailures, ARankThatDoesNotConnectIsReportedAtTheDeadline) {
  FakeNccl::get().set_missing(1);
  const auto results = failures([](const Rank&, const OnGpu<float>&) {}, /*seconds=*/1);
  for (const std::string& result : results) {
    EXPECT_CONTAINS(result, "no answer within 1 s: rank ");
    EXPECT_CONTAINS(result, "was in the creation of group \"all\" (ranks 0, 1), by NCCL");
  }
  expect_clean_fakes();
}

TEST(NcclFailures, WrongDataAreFoundWhenAGroupIsMade) {
  int groups = 0;
  for (const std::string collective : {"all_gather", "reduce_scatter", "broadcast"}) {
    FakeNccl::get().plan(1, Trouble::corrupt, groups++);
    const auto results = failures([](const Rank&, const OnGpu<float>&) {});
    EXPECT_CONTAINS(results[1], format("the test of {} between GPUs over group all failed: rank 1 of 2 of "
                                       "the group got ",
                                       collective));
    EXPECT_CONTAINS(results[1], "try comm.backend = auto");
    expect_clean_fakes();
  }
}

TEST(NcclFailures, RanksThatShareAGpuAreNamed) {
  FakeCuda::get().set_bus(1, 0);
  const auto results = failures([](const Rank&, const OnGpu<float>&) {});
  FakeCuda::get().set_bus(1, 1);
  for (const std::string& result : results)
    EXPECT_CONTAINS(result, "Error: comm.backend = nccl: ranks 0 and 1 share a GPU");
  expect_clean_fakes();
}

TEST(NcclFailures, ARankThatLeavesByAnExceptionDoesNotWaitForTheOthers) {
  const auto results = failures([](const Rank& own, const OnGpu<float>& values) {
    if (own.rank == 0) throw Error("rank 0 has failed");
    const auto has_left = [] { return FakeNccl::get().counts().aborted == 1; };
    for (int i = 0; i < 1000 && !has_left(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(has_left()) << "rank 0 waits for rank 1";
    own.group.abort("rank 1 has seen it");
    own.all_reduce(values);
  });
  EXPECT_EQ(results[0], "Error: rank 0 has failed");
  EXPECT_CONTAINS(results[1], "rank 1 has seen it");
  EXPECT_EQ(FakeNccl::get().counts().aborted, 2);
  expect_clean_fakes();
}

}  // namespace
}  // namespace stepforge::testing
