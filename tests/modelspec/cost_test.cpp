// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/cost.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(Elements, BytesDependOnTheComputeDtypeExceptFp32) {
  const Elements elements{3, 2};
  EXPECT_EQ(elements.bytes(5, DType::bf16), 5 * (3 * 2 + 2 * 4));
}

TEST(Workspace, ChunksAreNoLongerThanTheMicroBatch) {
  Workspace workspace;
  workspace.chunk_token = {10, 0};
  workspace.chunk = 8;
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::f32}), 3 * 10 * 4);
  EXPECT_EQ(workspace.bytes({.tokens = 30, .document_length = 3, .compute = DType::f32}), 8 * 10 * 4);
}

TEST(Workspace, NarrowElementsCountOnlyBelowFp32) {
  Workspace workspace;
  workspace.narrow = 7;
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::f32}), 0);
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::bf16}), 14);
}

TEST(Workspace, ScratchIsPerThreadAndThreadsAreLimitedByTasks) {
  Workspace workspace;
  workspace.thread_bytes = 100;
  workspace.thread_bytes_per_key = 2;
  workspace.tasks_per_document = 3;
  CostContext context{.tokens = 20, .document_length = 10, .compute = DType::f32, .threads = 4};
  EXPECT_EQ(workspace.bytes(context), 4 * (100 + 20));
  context.threads = 64;
  EXPECT_EQ(workspace.bytes(context), 6 * (100 + 20));
}

}  // namespace
}  // namespace stepforge::testing
