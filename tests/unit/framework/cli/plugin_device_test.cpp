// Memory of a device as the conformance suite uses it, on the device that every machine has.
#include "framework/cli/plugin_device.h"

#include <gtest/gtest.h>

#include <cstring>

namespace heddle {
namespace {

using conformance::Block;
using conformance::Edge;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  DeviceMemory memory_{*device_};
};

TEST_F(DeviceMemoryTest, BuffersTouchTheEdgeAndAreAlignedAsAsked) {
  for (const size_t align : {4, 16, 128, 1024}) {
    for (const size_t bytes : {0, 1, 100, 5000}) {
      const Block end = memory_.allocate(bytes, align, Edge::kEnd, "out");
      const Block start = memory_.allocate(bytes, align, Edge::kStart, "out");
      for (const Block& b : {end, start}) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % align, 0u);
        EXPECT_GE(b.data, b.pages);
        EXPECT_LE(static_cast<char*>(b.data) + bytes, static_cast<char*>(b.pages) + b.pages_bytes);
      }
      const char* behind = static_cast<char*>(end.pages) + end.pages_bytes;
      EXPECT_LT(behind - (static_cast<char*>(end.data) + bytes), static_cast<int64_t>(align));
      EXPECT_LT(static_cast<char*>(start.data) - static_cast<char*>(start.pages),
                static_cast<int64_t>(align));
      memory_.release(end);
      memory_.release(start);
    }
  }
}

TEST_F(DeviceMemoryTest, WritesBesideTheBufferAreSeenAndGoneAfterwards) {
  for (const Edge edge : {Edge::kEnd, Edge::kStart}) {
    const Block block = memory_.allocate(100, 16, edge, "out");
    const std::vector<char> values(100, 'x');
    memory_.upload(block, values.data());
    int64_t offset = 0;
    EXPECT_FALSE(memory_.overrun(block, &offset));
    const int64_t at = edge == Edge::kEnd ? -3 : 107;
    static_cast<char*>(block.data)[at] = 0;
    EXPECT_TRUE(memory_.overrun(block, &offset));
    EXPECT_EQ(offset, at < 0 ? at : at - 100);
    std::vector<char> back(100);
    memory_.download(block, back.data());
    EXPECT_EQ(back, values);
    memory_.release(block);
    const Block again = memory_.allocate(100, 16, edge, "dq");
    EXPECT_EQ(again.pages, block.pages);  // kept for the next call
    EXPECT_FALSE(memory_.overrun(again, &offset));
    memory_.release(again);
  }
  EXPECT_EQ(memory_.finish(), "");
}

TEST(PluginDevice, NamesOfTypes) {
  EXPECT_EQ(dtype_of("bf16"), uint32_t{HEDDLE_DTYPE_BF16});
  EXPECT_EQ(dtype_of("f16"), uint32_t{HEDDLE_DTYPE_F16});
  EXPECT_EQ(dtype_of("f32"), uint32_t{HEDDLE_DTYPE_F32});
  EXPECT_EQ(dtype_of("f64"), 0u);
}

}  // namespace
}  // namespace heddle
