#include "framework/report/collective.h"

#include <gtest/gtest.h>

#include "tests/unit/framework/report/fixtures.h"

namespace heddle::test {
namespace {

TEST(Collective, OneRankTakesNoTime) {
  EXPECT_EQ(exchange_seconds(round_device(), {1, 1}, 1e9), 0);
}

TEST(Collective, RingInsideAHost) {
  DeviceSpec d = round_device();
  d.local = {2e9, 1e-3};
  // 3/4 of 1 GB at 2 GB/s and three hops.
  EXPECT_NEAR(exchange_seconds(d, {1, 4}, 1e9), 0.375 + 3e-3, 1e-12);
}

TEST(Collective, RingBetweenHostsSendsEachPieceOnceAHost) {
  DeviceSpec d = round_device();
  d.local = {100e9, 1e-3};
  d.remote = {1e9, 10e-3};
  // 7/8 of 1 GB leaves each host; of seven hops 2/8 are between hosts.
  EXPECT_NEAR(exchange_seconds(d, {2, 4}, 1e9), 0.875 + 1.75 * 10e-3 + 5.25 * 1e-3, 1e-12);
}

TEST(Collective, DirectMessagesCrossOncePerRankOfTheHost) {
  DeviceSpec d = round_device();
  d.ring = false;
  d.local = {1e9, 0};
  d.remote = {1e9, 0};
  // Each of 4 ranks sends 4/8 of 1 GB to the other host: 2 GB a host.
  EXPECT_NEAR(exchange_seconds(d, {2, 4}, 1e9), 2.0, 1e-12);
  // Inside one host 3/4.
  EXPECT_NEAR(exchange_seconds(d, {1, 4}, 1e9), 0.75, 1e-12);
}

TEST(Collective, ALargePieceKeepsItsOwnerBusy) {
  DeviceSpec d = round_device();
  // One of four ranks owns 0.7 of 1 GB and sends it three times.
  d.ring = false;
  EXPECT_NEAR(exchange_seconds(d, {1, 4}, 1e9, 0.7e9), 2.1, 1e-12);
  // Alone on its host it sends that to the six ranks of the others.
  EXPECT_NEAR(exchange_seconds(d, {4, 2}, 1e9, 0.7e9), 4.2, 1e-12);
  // A ring passes every piece on, whoever has it.
  d.ring = true;
  EXPECT_NEAR(exchange_seconds(d, {1, 4}, 1e9, 0.7e9), 0.75, 1e-12);
}

TEST(Collective, OneRankAHostUsesTheNetworkAlone) {
  DeviceSpec d = round_device();
  d.local = {1, 1};  // would show
  EXPECT_NEAR(exchange_seconds(d, {2, 1}, 1e9), 0.5, 1e-12);
}

}  // namespace
}  // namespace heddle::test
