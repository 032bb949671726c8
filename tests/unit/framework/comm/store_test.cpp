#include "framework/comm/store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "framework/comm/net.h"
#include "framework/comm/store_wire.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = StoreError::Kind;

StoreIdentity identity(int rank, int world_size = 4) {
  return {.job_id = "job", .restart_count = 0, .world_size = world_size, .rank = rank, .token = ""};
}

StoreClient::Options quick(double seconds = 5.0) {
  StoreClient::Options options;
  options.connect_timeout = Seconds(seconds);
  options.final_failure_grace = Seconds(0.2);
  options.call_timeout = Seconds(20.0);
  return options;
}

bool has_ipv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  if (fd < 0) return false;
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return ok;
}

// A plain TCP connection to 127.0.0.1.
class Raw {
 public:
  explicit Raw(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Raw() { close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  bool connected() const { return connected_; }
  void write(std::string_view bytes) const {
    [[maybe_unused]] const auto n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // All bytes until the other side closes.
  std::string read_all() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) all.append(buffer, n);
    return all;
  }

 private:
  int fd_;
  bool connected_ = false;
};

// A port of 127.0.0.1 that somebody listens on, or has just stopped to.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(fd_, 8) != 0) abort();
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length);
    port_ = ntohs(at.sin_port);
  }
  ~Listener() { stop(); }
  void stop() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int port() const { return port_; }
  int fd() const { return fd_; }

 private:
  int fd_;
  int port_ = 0;
};

template <class F>
StoreError failure_of(F&& f) {
  try {
    f();
  } catch (const StoreError& e) {
    EXPECT_EQ(e.code(), ExitCode::kCommunication);
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return StoreError(Kind::kLimit, "nothing was thrown");
}

TEST(Store, SetGetAddCompareScanErase) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  StoreClient b({"localhost", server.port()}, identity(1), quick());

  EXPECT_EQ(a.get("x"), std::nullopt);
  a.set("x", "1");
  EXPECT_EQ(b.get("x"), "1");
  b.set("x", std::string("\0two\xff", 5));
  EXPECT_EQ(a.get("x"), std::string("\0two\xff", 5));
  a.set("empty", "");
  EXPECT_EQ(b.get("empty"), "");

  EXPECT_EQ(a.add("n", 5), 5);
  EXPECT_EQ(b.add("n", -7), -2);
  EXPECT_EQ(b.get("n"), "-2");
  EXPECT_EQ(failure_of([&] { a.add("x", 1); }).kind(), Kind::kRefused);

  EXPECT_EQ(a.compare_and_set("lock", {}, "a"), "a");
  EXPECT_EQ(b.compare_and_set("lock", {}, "b"), "a");
  EXPECT_EQ(b.compare_and_set("lock", "a", "b"), "b");
  EXPECT_EQ(b.compare_and_set("nothing", "a", "b"), "");

  a.set("beat/0", "10");
  b.set("beat/1", "11");
  EXPECT_EQ(a.scan("beat/"),
            (std::map<std::string, std::string>{{"beat/0", "10"}, {"beat/1", "11"}}));
  EXPECT_THAT(a.scan("none"), IsEmpty());
  a.erase("beat/0");
  a.erase("never there");
  EXPECT_EQ(b.scan("beat/").size(), 1u);
}

TEST(Store, WaitsForKeys) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  StoreClient b({"127.0.0.1", server.port()}, identity(1), quick());
  const std::vector<std::string> keys = {"k1", "k2", "k1"};
  std::vector<std::string> got;
  std::thread waiter([&] { got = a.wait(keys); });
  b.set("k2", "two");
  a.set("k1", "one");  // the same client, while its other thread waits
  waiter.join();
  EXPECT_THAT(got, ElementsAre("one", "two", "one"));
  EXPECT_EQ(b.wait("k1", Seconds(0.0)), "one");
}

TEST(Store, DeadlineNamesTheMissingKeys) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  a.set("there", "1");
  const std::vector<std::string> keys = {"there", "rank 3's key"};
  const StoreError e = failure_of([&] { a.wait(keys, Seconds(0.05)); });
  EXPECT_EQ(e.kind(), Kind::kTimeout);
  EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 3's key"), Not(HasSubstr("there,"))));
  EXPECT_EQ(a.get("there"), "1") << "the client goes on";
}

TEST(Store, ManyThreadsCountTogether) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  StoreClient b({"127.0.0.1", server.port()}, identity(1), quick());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) (t % 2 == 0 ? a : b).add("sum", t + 1);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(a.get("sum"), "1000");
}

struct Stranger {
  const char* name;
  StoreIdentity identity;
  std::vector<std::string> parts;
};

TEST(Store, RefusesWhoDoesNotBelong) {
  StoreIdentity job = identity(0);
  job.restart_count = 2;
  job.token = "s3cret";
  StoreServer server({"127.0.0.1"}, 0, job);
  StoreClient rank0({"127.0.0.1", server.port()}, job, quick());
  std::vector<Stranger> strangers(9, {"", job, {}});
  strangers[0] = {"other job", job, {"serves job 'job'", "got job 'other'", "MASTER_PORT"}};
  strangers[0].identity.job_id = "other";
  strangers[1] = {"stale", job, {"restart 2", "got restart 1", "earlier attempt"}};
  strangers[1].identity.restart_count = 1;
  strangers[2] = {"newer", job, {"restart 2", "got restart 3", "Rank 0 still belongs"}};
  strangers[2].identity.restart_count = 3;
  strangers[3] = {"world size", job, {"counts 4 ranks", "got 5", "WORLD_SIZE"}};
  strangers[3].identity.world_size = 5;
  strangers[4] = {"rank beyond", job, {"got rank 4", "0 to 3"}};
  strangers[4].identity.rank = 4;
  strangers[5] = {"negative rank", job, {"got rank -1"}};
  strangers[5].identity.rank = -1;
  strangers[6] = {"duplicate", job, {"another process is rank 0", "RANK"}};
  strangers[7] = {"no token", job, {"wants a token", "HEDDLE_STORE_TOKEN"}};
  strangers[7].identity.token = "";
  strangers[8] = {"wrong token", job, {"tokens", "differ", "HEDDLE_STORE_TOKEN"}};
  strangers[8].identity.token = "gue55s";
  for (const Stranger& s : strangers) {
    SCOPED_TRACE(s.name);
    const StoreError e = failure_of([&] {
      StoreClient({"127.0.0.1", server.port()}, s.identity, quick(0.3));
    });
    EXPECT_EQ(e.kind(), Kind::kRefused);
    for (const std::string& part : s.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    EXPECT_THAT(e.what(), AllOf(Not(HasSubstr("s3cret")), Not(HasSubstr("gue55s"))));
  }
  EXPECT_THAT(server.refusals(), Not(IsEmpty()));
  for (const std::string& r : server.refusals()) EXPECT_THAT(r, Not(HasSubstr("s3cret")));
  EXPECT_THAT(rank0.members(), ElementsAre(MemberState::kJoined, MemberState::kAbsent,
                                           MemberState::kAbsent, MemberState::kAbsent));
}

TEST(Store, ARankThatLeftOrDiedIsNotReplaced) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient watcher({"127.0.0.1", server.port()}, identity(0), quick());
  StoreClient({"127.0.0.1", server.port()}, identity(1), quick()).leave();
  {
    store_wire::Hello hello{identity(2), 7};
    const Raw rank2(server.port());
    rank2.write(store_wire::encode_hello(hello));
    while (watcher.members()[2] == MemberState::kAbsent) std::this_thread::yield();
  }
  while (watcher.members()[2] == MemberState::kJoined) std::this_thread::yield();
  EXPECT_THAT(watcher.members(), ElementsAre(MemberState::kJoined, MemberState::kLeft,
                                             MemberState::kLost, MemberState::kAbsent));
  for (const int rank : {1, 2}) {
    const StoreError e = failure_of([&] {
      StoreClient({"127.0.0.1", server.port()}, identity(rank), quick());
    });
    EXPECT_THAT(e.what(), HasSubstr("another process was rank"));
  }
  EXPECT_FALSE(server.wait_until_left(Seconds(0.01)));
  watcher.leave();
  EXPECT_TRUE(server.wait_until_left(Seconds(10.0)));
}

TEST(Store, GarbageDoesNotStopIt) {
  StoreLimits limits;
  limits.unknown_peers = 4;
  StoreServer server({"127.0.0.1"}, 0, identity(0), limits);
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  std::mt19937 random(1);
  std::vector<std::unique_ptr<Raw>> silent;
  int connected = 0;
  for (int i = 0; i < 10000; ++i) {
    auto raw = std::make_unique<Raw>(server.port());
    connected += raw->connected();
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Some begin as we do: right magic, then a huge or a malformed hello.
    if (i % 5 == 1) bytes = std::string(store_wire::kMagic) + bytes;
    if (i % 5 == 2) {
      bytes = store_wire::encode_hello({identity(1), 1});
      bytes[bytes.size() - 20] = static_cast<char>(0xff);
    }
    raw->write(bytes);
    // Some stay and say nothing more.
    if (i % 100 == 0 && silent.size() < 64) silent.push_back(std::move(raw));
    if (i % 2500 == 0) a.set("alive", std::to_string(i));
  }
  EXPECT_EQ(connected, 10000);
  EXPECT_EQ(a.get("alive"), "7500");
  StoreClient b({"127.0.0.1", server.port()}, identity(1), quick());
  EXPECT_EQ(b.get("alive"), "7500");
}

TEST(Store, SilentPeersAreClosed) {
  StoreLimits limits;
  limits.hello_time = Seconds(0.05);
  StoreServer server({"127.0.0.1"}, 0, identity(0), limits);
  const Raw silent(server.port()), half(server.port());
  half.write("HEDD");
  EXPECT_EQ(silent.read_all(), "");  // returns: closed
  EXPECT_EQ(half.read_all(), "");
}

TEST(Store, AWellFormedPeerOfAnotherVersionIsToldWhy) {
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  std::string hello = store_wire::encode_hello({identity(1), 1});
  hello[8] = 9;
  const Raw peer(server.port());
  peer.write(hello);
  EXPECT_THAT(peer.read_all(), HasSubstr("version 1 of the protocol, got version 9"));
}

TEST(Store, LimitsOfSizes) {
  StoreLimits limits;
  limits.store_bytes = 1000;
  StoreServer server({"127.0.0.1"}, 0, identity(0), limits);
  StoreClient a({"127.0.0.1", server.port()}, identity(0), quick());
  a.set("a", std::string(900, 'x'));
  EXPECT_EQ(failure_of([&] { a.set("b", std::string(200, 'x')); }).kind(), Kind::kLimit);
  a.set("a", "small");
  a.set("b", std::string(200, 'x'));
  EXPECT_EQ(failure_of([&] { a.set("c", std::string(5 << 20, 'x')); }).kind(), Kind::kLimit);
  EXPECT_EQ(a.get("a"), "small");

  // A member that announces more than the limit is cut off, the others are not.
  const Raw member(server.port());
  member.write(store_wire::encode_hello({identity(1), 7}) + "\xff\xff\xff\x7f");
  member.read_all();
  EXPECT_EQ(a.get("a"), "small");
}

TEST(Store, LostServerIsNoticed) {
  auto server =
      std::make_unique<StoreServer>(std::vector<std::string>{"127.0.0.1"}, 0, identity(0));
  StoreClient a({"127.0.0.1", server->port()}, identity(0), quick());
  StoreClient b({"127.0.0.1", server->port()}, identity(1), quick());
  std::atomic<int> calls = 0;
  a.on_lost([&](const std::string& what) {
    EXPECT_THAT(what, HasSubstr("Rank 0 is lost"));
    ++calls;
  });
  EXPECT_EQ(a.lost(), "");
  Kind waiting = Kind::kLimit;
  std::thread waiter([&] { waiting = failure_of([&] { b.wait("never"); }).kind(); });
  while (b.members()[1] != MemberState::kJoined) std::this_thread::yield();
  server.reset();
  waiter.join();
  EXPECT_EQ(waiting, Kind::kLost);
  EXPECT_EQ(failure_of([&] { a.get("x"); }).kind(), Kind::kLost);
  EXPECT_THAT(a.lost(), HasSubstr("Rank 0 is lost"));
  a.on_lost([&](const std::string&) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(Store, FrozenServerIsToldFromALateKey) {
  // Answers the hello and then nothing.
  Listener frozen;
  std::thread server([&] {
    const int fd = accept(frozen.fd(), nullptr, nullptr);
    const std::string welcome = store_wire::encode_answer(store_wire::Verdict::kWelcome, "");
    EXPECT_GT(send(fd, welcome.data(), welcome.size(), MSG_NOSIGNAL), 0);
    char buffer[256];
    while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
    }
    close(fd);
  });
  {
    StoreClient a({"127.0.0.1", frozen.port()}, identity(0), quick());
    const StoreError e = failure_of([&] { a.get("x", Seconds(0.05)); });
    EXPECT_EQ(e.kind(), Kind::kNoAnswer);
    EXPECT_THAT(e.what(), HasSubstr("does not answer"));
  }
  server.join();
}

TEST(Store, ClientWaitsForALateServer) {
  Listener listener;
  const int port = listener.port();
  listener.stop();
  std::unique_ptr<StoreClient> client;
  std::thread early([&] {
    client = std::make_unique<StoreClient>(Endpoint{"127.0.0.1", port}, identity(1), quick(30));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  StoreServer server({"127.0.0.1"}, port, identity(0));
  early.join();
  client->set("x", "1");
}

TEST(Store, NobodyThere) {
  Listener listener;
  const int port = listener.port();
  listener.stop();
  const StoreError e = failure_of([&] {
    StoreClient({"127.0.0.1", port}, identity(1), quick(0.1));
  });
  EXPECT_EQ(e.kind(), Kind::kUnreachable);
  EXPECT_THAT(e.what(),
              AllOf(HasSubstr("127.0.0.1 (this host: Connection refused)"), HasSubstr(std::to_string(port)),
                    HasSubstr(host_name()), HasSubstr("firewall")));
}

TEST(Store, SomethingElseAnswers) {
  Listener other;
  std::thread server([&] {
    for (int i = 0; i < 1; ++i) {
      const int fd = accept(other.fd(), nullptr, nullptr);
      EXPECT_GT(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL), 0);
      char buffer[256];
      while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
      }
      close(fd);
    }
  });
  StoreClient::Options once = quick(5);
  once.final_failure_grace = Seconds(0.0);
  const StoreError e = failure_of([&] {
    StoreClient({"127.0.0.1", other.port()}, identity(1), once);
  });
  EXPECT_THAT(e.what(), HasSubstr("something else than a heddle store"));
  server.join();
}

TEST(Store, TriesAllEndpoints) {
  Listener listener;
  const int closed = listener.port();
  listener.stop();
  StoreServer server({"127.0.0.1"}, 0, identity(0));
  StoreClient a({Endpoint{"no-such-host.invalid", 1}, Endpoint{"127.0.0.1", closed},
                 Endpoint{"127.0.0.1", server.port()}},
                identity(0), quick());
  EXPECT_EQ(a.endpoint().port, server.port());
}

TEST(Store, NameThatDoesNotResolve) {
  const StoreError e = failure_of([&] {
    StoreClient({"no-such-host.invalid", 29500}, identity(1), quick(0.1));
  });
  EXPECT_EQ(e.kind(), Kind::kUnreachable);
  EXPECT_THAT(e.what(), AllOf(HasSubstr("no-such-host.invalid"), HasSubstr("does not resolve"),
                              HasSubstr("MASTER_ADDR")));
}

TEST(Store, PortInUse) {
  const Listener other;
  const StoreError e =
      failure_of([&] { StoreServer({"127.0.0.1"}, other.port(), identity(0), {}, Seconds(0.0)); });
  EXPECT_THAT(e.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(other.port())),
                              HasSubstr("in use"), HasSubstr("MASTER_PORT")));
  // Two stores never share one either.
  StoreServer first({"127.0.0.1"}, 0, identity(0));
  EXPECT_THROW(StoreServer({"127.0.0.1"}, first.port(), identity(0), {}, Seconds(0.0)), StoreError);
}

TEST(Store, AddressThatIsNotOurs) {
  const StoreError e =
      failure_of([] { StoreServer({"192.0.2.1"}, 0, identity(0), {}, Seconds(0.0)); });
  EXPECT_THAT(e.what(), HasSubstr("192.0.2.1"));
}

TEST(Store, BothFamiliesOnOnePort) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  StoreServer server({"127.0.0.1", "::1"}, 0, identity(0));
  ASSERT_EQ(server.endpoints().size(), 2u);
  EXPECT_EQ(to_string(server.endpoints()[1]), "[::1]:" + std::to_string(server.port()));
  StoreClient v4({"127.0.0.1", server.port()}, identity(0), quick());
  StoreClient v6({"::1", server.port()}, identity(1), quick());
  v6.set("from", v6.own_address());
  EXPECT_EQ(v4.get("from"), "::1");
  EXPECT_EQ(v4.own_address(), "127.0.0.1");
}

TEST(Store, OnlyTheAnnouncedInterfaceListens) {
  StoreServer server({"127.0.0.2"}, 0, identity(0));
  EXPECT_FALSE(Raw(server.port()).connected()) << "127.0.0.1 was not announced";
  StoreClient a({"127.0.0.2", server.port()}, identity(0), quick());
  EXPECT_EQ(a.peer_address(), "127.0.0.2");
}

TEST(Net, RouteAndOwnAddresses) {
  EXPECT_EQ(source_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_FALSE(is_own_address("192.0.2.1"));
  EXPECT_THAT(resolve_host("127.0.0.1").addresses, ElementsAre("127.0.0.1"));
  EXPECT_FALSE(resolve_host("").error.empty());
  bool loopback = false;
  for (const OwnAddress& own : own_addresses()) {
    loopback |= own.loopback;
    EXPECT_TRUE(is_own_address(own.address)) << own.address;
  }
  EXPECT_TRUE(loopback);
}

TEST(StoreWire, ReaderStopsAtTheEnd) {
  store_wire::Writer w;
  w.u32(7);
  w.string("abc");
  const std::string bytes = w.take();
  store_wire::Reader good(bytes);
  EXPECT_EQ(good.u32(), 7u);
  EXPECT_EQ(good.string(), "abc");
  EXPECT_TRUE(good.done());
  store_wire::Reader cut(std::string_view(bytes).substr(0, bytes.size() - 1));
  cut.u32();
  EXPECT_EQ(cut.string(), "");
  EXPECT_FALSE(cut.ok());
  EXPECT_EQ(cut.i64(), 0);
}

TEST(StoreWire, Comparison) {
  using store_wire::equal_in_constant_time;
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("token", "token"));
  EXPECT_FALSE(equal_in_constant_time("token", "tokem"));
  EXPECT_FALSE(equal_in_constant_time("token", "toke"));
  EXPECT_EQ(store_wire::printable("a\nb\x7f"), "a?b?");
}

}  // namespace
}  // namespace heddle
