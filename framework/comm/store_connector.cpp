#include "framework/comm/store_connector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <thread>

#include "framework/comm/net.h"

namespace heddle {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace store_wire;
using Kind = StoreError::Kind;
using Clock = StoreConnector::Clock;

Clock::duration to_duration(Seconds s) {
  return std::chrono::duration_cast<Clock::duration>(std::min(s, Seconds(1e8)));
}

uint64_t random_instance() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

const char* remedy_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kToken:
      return "Give all ranks the same HEDDLE_STORE_TOKEN, or none";
    case Verdict::kOtherVersion:
      return "Run the same heddle binary on all hosts";
    case Verdict::kOtherJob:
      return "Another job uses this port: give each job its own MASTER_PORT (dist.master_port), "
             "and "
             "all ranks of a job the same HEDDLE_JOB_ID";
    case Verdict::kStalePeer:
      return "This process belongs to an earlier attempt of the job: end it";
    case Verdict::kStaleServer:
      return "Rank 0 still belongs to an earlier attempt of the job: end it";
    case Verdict::kWorldSize:
      return "Start all ranks with the same number of ranks (WORLD_SIZE, dist.world_size)";
    case Verdict::kRank:
    case Verdict::kDuplicate:
      return "Give each process its own rank (RANK, dist.rank) from 0 to the number of ranks - 1";
    default:
      return "Run the same heddle binary on all hosts";
  }
}

}  // namespace

StoreConnector::StoreConnector(asio::io_context& io, std::vector<Endpoint> endpoints,
                               const StoreIdentity& identity, const StoreClient::Options& options)
    : io_(io),
      endpoints_(std::move(endpoints)),
      identity_(identity),
      options_(options),
      instance_(random_instance()),
      socket_(io) {
  HEDDLE_CHECK(!endpoints_.empty(), "no endpoint to connect to");
}

void StoreConnector::connect() {
  const auto begin = Clock::now();
  const auto deadline = begin + to_duration(options_.connect_timeout);
  const auto final_deadline = std::min(deadline, begin + to_duration(options_.final_failure_grace));
  Seconds pause(0.02);
  for (;;) {
    Failure failure;
    if (try_all(&failure)) return;
    const auto next = Clock::now() + to_duration(pause);
    if (next >= (failure.final ? final_deadline : deadline) || failure.at_once) {
      const Seconds spent = Clock::now() - begin;
      throw StoreError(failure.kind,
                       fmt::format("{} (gave up after {:.1f} s)", failure.message, spent.count()),
                       failure.remedy);
    }
    std::this_thread::sleep_for(to_duration(pause));
    pause = std::min(pause * 1.5, Seconds(0.5));
  }
}

bool StoreConnector::try_all(Failure* failure) {
  std::vector<std::string> tried;
  size_t unresolved = 0;
  for (const Endpoint& endpoint : endpoints_) {
    endpoint_ = endpoint;
    const Resolved resolved = resolve_host(endpoint.host);
    if (!resolved.error.empty()) {
      ++unresolved;
      tried.push_back(fmt::format("'{}' ({})", endpoint.host, resolved.error));
    }
    for (const std::string& address : resolved.addresses) {
      std::string problem = try_connect(address);
      if (problem.empty() && greet(failure)) {
        peer_address_ = address;
        return true;
      }
      if (failure->kind == Kind::kRefused) return false;
      if (problem.empty()) problem = failure->message;
      const char* whose = is_own_address(address) ? "this host: " : "";
      tried.push_back(fmt::format("{} ({}{})", address, whose, problem));
    }
  }
  if (unresolved == endpoints_.size()) {
    failure->final = true;
    failure->message = fmt::format("The address of rank 0 does not resolve on host {}: tried {}",
                                   host_name(), fmt::join(tried, ", "));
    failure->remedy =
        "Set MASTER_ADDR (dist.master_addr) to a name that all hosts know, or to an address";
    return false;
  }
  failure->message =
      fmt::format("No connection from host {} to rank 0's rendezvous store at {}; tried {}",
                  host_name(), to_string(endpoints_.front()), fmt::join(tried, ", "));
  failure->remedy =
      "See whether rank 0 runs, whether MASTER_ADDR is its host, and whether a firewall is "
      "between them";
  return false;
}

bool StoreConnector::run_until(Clock::time_point deadline, const bool& done) {
  io_.restart();
  while (!done && Clock::now() < deadline) io_.run_one_until(deadline);
  if (done) return true;
  error_code ignored;
  socket_.close(ignored);
  io_.restart();
  io_.run();
  return false;
}

std::string StoreConnector::try_connect(const std::string& address) {
  error_code error;
  const auto ip = asio::ip::make_address(address, error);
  if (error) return error.message();
  socket_ = tcp::socket(io_);
  const tcp::endpoint to(ip, static_cast<uint16_t>(endpoint_.port));
  socket_.open(to.protocol(), error);
  if (error) return error.message();
  fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  bool done = false;
  error_code result;
  socket_.async_connect(to, [&](error_code e) {
    result = e;
    done = true;
  });
  if (!run_until(Clock::now() + to_duration(options_.try_timeout), done)) return "no answer";
  if (result) return result.message();
  // A port of this host that nobody listens on can connect to itself.
  if (socket_.local_endpoint(error) == socket_.remote_endpoint(error)) {
    socket_.close(error);
    return "Connection refused";
  }
  socket_.set_option(tcp::no_delay(true), error);
  return {};
}

template <class F>
std::string StoreConnector::transfer(Clock::time_point deadline, F start) {
  bool done = false;
  error_code result;
  start([&](error_code error, size_t) {
    result = error;
    done = true;
  });
  if (!run_until(deadline, done)) return "connected, but no answer";
  if (result == asio::error::eof) return "connected, but closed by the other side";
  return result ? result.message() : std::string();
}

std::string StoreConnector::exchange_hello(Failure* failure, std::string* answer) {
  const std::string hello = encode_hello({identity_, instance_});
  const auto deadline = Clock::now() + to_duration(std::max(options_.try_timeout, Seconds(5.0)));
  std::string problem = transfer(
      deadline, [&](auto handler) { asio::async_write(socket_, asio::buffer(hello), handler); });
  if (!problem.empty()) return problem;
  std::string bytes(kPreambleBytes, '\0');
  const auto read = [&](std::string* to) {
    return transfer(deadline,
                    [&](auto handler) { asio::async_read(socket_, asio::buffer(*to), handler); });
  };
  problem = read(&bytes);
  if (!problem.empty()) return problem;
  const Preamble head = decode_preamble(bytes);
  if (!head.ours || head.length > kMaxHelloBytes) {
    failure->final = true;
    return "something else than a heddle store answers";
  }
  answer->resize(head.length);
  return read(answer);
}

bool StoreConnector::greet(Failure* failure) {
  std::string answer;
  failure->message = exchange_hello(failure, &answer);
  if (!failure->message.empty()) return false;
  Verdict verdict = Verdict::kMalformed;
  std::string reason;
  if (!decode_answer(answer, &verdict, &reason)) reason = "its answer is malformed";
  if (verdict == Verdict::kWelcome) {
    error_code error;
    own_address_ = socket_.local_endpoint(error).address().to_string();
    return true;
  }
  explain_refusal(verdict, reason, failure);
  return false;
}

void StoreConnector::explain_refusal(Verdict verdict, const std::string& reason, Failure* failure) {
  failure->kind = Kind::kRefused;
  failure->message =
      fmt::format("The rendezvous store at {} refuses rank {} on host {}: {}", to_string(endpoint_),
                  identity_.rank, host_name(), printable(reason, 300));
  failure->remedy = remedy_of(verdict);
  failure->final = verdict == Verdict::kOtherJob || verdict == Verdict::kToken;
  failure->at_once = !failure->final && verdict != Verdict::kStaleServer;
}

}  // namespace heddle
