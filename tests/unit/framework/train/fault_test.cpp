#include "framework/train/fault.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "framework/core/error.h"

namespace heddle {
namespace {

class Fault : public testing::Test {
 protected:
  ~Fault() override { arm_faults("", 0); }
};

TEST_F(Fault, OffUnlessAsked) {
  arm_faults("", 0);
  EXPECT_FALSE(internal::faults_on);
  EXPECT_FALSE(fault(FaultPoint::kStep, 1));
}

TEST_F(Fault, StrikesAtItsPointRankAndStepOnly) {
  arm_faults("backward:1:4:nan", 0);
  EXPECT_FALSE(internal::faults_on) << "another rank's fault costs nothing";
  arm_faults("backward:1:4:nan", 1);
  EXPECT_FALSE(fault(FaultPoint::kBackward, 3));
  EXPECT_FALSE(fault(FaultPoint::kReduce, 4));
  EXPECT_TRUE(fault(FaultPoint::kBackward, 4));
}

TEST_F(Fault, StarsAndLists) {
  arm_faults("step:*:*:slow=1,eval:2:*:nan", 2);
  EXPECT_FALSE(fault(FaultPoint::kStep, 17));
  EXPECT_TRUE(fault(FaultPoint::kEval, 3));
}

TEST_F(Fault, ThrowsAndRefusesMemory) {
  arm_faults("step:0:1:throw,step:0:2:oom", 0);
  EXPECT_THROW(fault(FaultPoint::kStep, 1), std::runtime_error);
  EXPECT_THROW(fault(FaultPoint::kStep, 2), std::bad_alloc);
  EXPECT_NO_THROW(std::string(1 << 20, 'x')) << "memory is back";
}

using FaultDeathTest = Fault;

TEST_F(FaultDeathTest, EndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  arm_faults("init:0:0:kill,step:0:1:exit0,step:0:2:exit=9", 0);
  EXPECT_EXIT(fault(FaultPoint::kInit, 0), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(fault(FaultPoint::kStep, 1), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(fault(FaultPoint::kStep, 2), testing::ExitedWithCode(9), "");
}

TEST_F(Fault, WrongUseIsRefused) {
  for (const char* text : {"step", "step:0:1", "nowhere:0:1:kill", "step:0:1:nothing",
                           "step:x:1:kill", "step:0:1:slow=x", "step:0:1:kill,"}) {
    try {
      arm_faults(text, 0);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kUsage) << text;
    }
  }
}

}  // namespace
}  // namespace heddle
