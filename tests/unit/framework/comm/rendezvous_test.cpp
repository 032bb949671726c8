// Ranks are threads of this process.
#include "framework/comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "framework/comm/net.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LaunchContext launch(int rank, int world_size, int port) {
  LaunchContext context;
  context.launcher = Launcher::kEnvironment;
  context.rank = context.local_rank = rank;
  context.world_size = context.local_size = world_size;
  context.master_addr = "127.0.0.1";
  context.master_port = port;
  context.origin.master_addr = "MASTER_ADDR";
  context.origin.master_port = "MASTER_PORT";
  return context;
}

DistConfig within(double seconds) {
  DistConfig config;
  config.timeout_s = seconds;
  return config;
}

int free_port() {
  return StoreServer({"127.0.0.1"}, 0, {}).port();
}

// One thread a launch. Returns what each said in the end: "" or its error.
std::vector<std::string> meet_all(const std::vector<LaunchContext>& launches,
                                  const DistConfig& config,
                                  std::function<void(Rendezvous&)> then = {}) {
  std::vector<std::string> errors(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto rendezvous = meet(config, launches[i]);
        if (then) then(*rendezvous);
        rendezvous->leave();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::kCommunication);
        errors[i] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST(Rendezvous, AllMeetAndLeaveTogether) {
  const int port = free_port();
  const auto errors = meet_all({launch(0, 3, port), launch(1, 3, port), launch(2, 3, port)},
                               within(30), [](Rendezvous& r) {
                                 r.store().add("sum", r.rank() + 1);
                                 EXPECT_EQ(r.own_address(), "127.0.0.1");
                                 EXPECT_EQ(r.server() != nullptr, r.rank() == 0);
                                 EXPECT_EQ(r.next_group(), "group/0/");
                                 EXPECT_EQ(r.next_group(), "group/1/");
                                 if (r.rank() == 2)
                                   r.store().set("late", "kept until all have left");
                                 if (r.rank() == 1) {
                                   EXPECT_EQ(r.store().wait("late"), "kept until all have left");
                                 }
                               });
  EXPECT_THAT(errors, ElementsAre("", "", ""));
}

TEST(Rendezvous, NamesTheRankThatDoesNotCome) {
  const int port = free_port();
  const auto errors = meet_all({launch(0, 4, port), launch(2, 4, port)}, within(0.5));
  for (const std::string& e : errors) {
    EXPECT_THAT(e, AnyOf(AllOf(HasSubstr("2 of 4 ranks have not come within 0.5 s: 1, 3"),
                               HasSubstr("dist.timeout_s")),
                         HasSubstr("Rank 0 is lost")));
  }
  EXPECT_THAT(errors[0], HasSubstr("have not come"));
}

TEST(Rendezvous, DisagreementOnTheWorldSizeNamesBothViews) {
  const int port = free_port();
  const auto errors = meet_all({launch(0, 2, port), launch(1, 3, port)}, within(1.0));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0 counts 2 ranks, got 3 from rank 1"),
                               HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(errors[0], AllOf(HasSubstr("1 of 2 ranks have not come"), HasSubstr("Refused were"),
                               HasSubstr("got 3 from rank 1")));
}

TEST(Rendezvous, DuplicateRank) {
  const int port = free_port();
  const auto errors =
      meet_all({launch(0, 3, port), launch(1, 3, port), launch(1, 3, port)}, within(1.0));
  EXPECT_THAT(errors[1] + errors[2], HasSubstr("another process is rank 1"));
}

TEST(Rendezvous, PortInUse) {
  const StoreServer other({"127.0.0.1"}, 0, {});
  const auto errors = meet_all({launch(0, 2, other.port())}, within(5));
  EXPECT_THAT(errors[0], AllOf(HasSubstr("127.0.0.1:" + std::to_string(other.port())),
                               HasSubstr("in use"), HasSubstr("dist.master_port")));
}

TEST(Rendezvous, NothingSaysWhereRank0Is) {
  LaunchContext nowhere = launch(1, 2, 0);
  nowhere.master_addr.clear();
  EXPECT_THAT(meet_all({nowhere}, within(1))[0],
              AllOf(HasSubstr("no address"), HasSubstr("MASTER_ADDR"), HasSubstr("MASTER_PORT")));
  EXPECT_THAT(meet_all({launch(1, 2, 0)}, within(1))[0], HasSubstr("no port"));
}

TEST(Rendezvous, NameThatDoesNotResolve) {
  LaunchContext l = launch(0, 2, free_port());
  l.master_addr = "no-such-host.invalid";
  EXPECT_THAT(meet_all({l}, within(0.2))[0],
              AllOf(HasSubstr("does not resolve"), HasSubstr("'no-such-host.invalid'"),
                    HasSubstr("MASTER_ADDR")));
}

TEST(Rendezvous, Rank0IsElsewhere) {
  LaunchContext l = launch(0, 2, free_port());
  l.master_addr = "192.0.2.7";
  EXPECT_THAT(meet_all({l}, within(60))[0],
              AllOf(HasSubstr("Rank 0 runs on host " + host_name()),
                    HasSubstr("MASTER_ADDR is 192.0.2.7"), HasSubstr("another host")));
}

TEST(Rendezvous, LoopbackIsNoAddressForOtherHosts) {
  LaunchContext l = launch(2, 4, free_port());
  l.local_size = 2;
  l.local_rank = 0;
  EXPECT_THAT(meet_all({l}, within(0.3))[0],
              AllOf(HasSubstr("every host takes for itself"), HasSubstr("2 of 4 ranks"),
                    HasSubstr("Connection refused")));
}

// Two agents of one machine look like two hosts in the launch environment, and are not.
TEST(Rendezvous, LoopbackServesTwoAgentsOfOneHost) {
  const int port = free_port();
  std::vector<LaunchContext> launches = {launch(0, 2, port), launch(1, 2, port)};
  for (LaunchContext& l : launches) {
    l.local_size = 1;
    l.local_rank = 0;
  }
  EXPECT_THAT(meet_all(launches, within(30),
                       [](Rendezvous& r) { EXPECT_EQ(r.own_address(), "127.0.0.1"); }),
              ElementsAre("", ""));
}

TEST(Rendezvous, UnknownInterface) {
  const int port = free_port();
  DistConfig config = within(5);
  config.interface = "none0";
  const auto errors = meet_all({launch(0, 1, port)}, config);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("dist.interface none0"), HasSubstr("lo")));
}

const std::vector<OwnAddress> kHost = {
    {"lo", "127.0.0.1", true},        {"lo", "::1", true},
    {"docker0", "172.17.0.1", false}, {"eth0", "10.0.0.5", false},
    {"eth0", "fe80::5%eth0", false},  {"ib0", "fd00::5", false}};

LaunchContext two_hosts(const std::string& master_addr) {
  LaunchContext l = launch(0, 4, 29500);
  l.local_size = 2;
  l.master_addr = master_addr;
  return l;
}

TEST(AddressesToAnnounce, OnlyWhatTheNameMeans) {
  EXPECT_THAT(addresses_to_announce(two_hosts("n1"), "auto", {"10.0.0.5"}, kHost),
              ElementsAre("10.0.0.5"));
  EXPECT_THAT(addresses_to_announce(two_hosts("n1"), "auto", {"10.0.0.9", "fd00::5"}, kHost),
              ElementsAre("fd00::5"));
  EXPECT_THAT(addresses_to_announce(launch(0, 2, 1), "auto", {"127.0.0.1", "::1"}, kHost),
              ElementsAre("127.0.0.1", "::1"));
  EXPECT_THROW(addresses_to_announce(two_hosts("n2"), "auto", {"10.0.0.9"}, kHost), Error);
}

TEST(AddressesToAnnounce, OwnNameThatMeansLoopback) {
  EXPECT_THAT(addresses_to_announce(two_hosts("n1"), "auto", {"127.0.1.1"}, kHost),
              ElementsAre("127.0.1.1", "10.0.0.5", "fd00::5", "172.17.0.1"));
  EXPECT_THAT(addresses_to_announce(two_hosts("n1"), "ib0", {"127.0.1.1"}, kHost),
              ElementsAre("127.0.1.1", "fd00::5"));
  EXPECT_THAT(addresses_to_announce(two_hosts("127.0.0.1"), "auto", {"127.0.0.1"}, kHost),
              ElementsAre("127.0.0.1"));
}

TEST(AddressesToAnnounce, ToldThroughMpi) {
  EXPECT_THAT(addresses_to_announce(launch(0, 2, 0), "auto", {}, kHost), ElementsAre("127.0.0.1"));
  EXPECT_THAT(addresses_to_announce(two_hosts(""), "auto", {}, kHost),
              ElementsAre("10.0.0.5", "fd00::5", "172.17.0.1"));
  EXPECT_THAT(addresses_to_announce(two_hosts(""), "eth0", {}, kHost), ElementsAre("10.0.0.5"));
  EXPECT_THROW(addresses_to_announce(two_hosts(""), "eth7", {}, kHost), Error);
}

}  // namespace
}  // namespace heddle
