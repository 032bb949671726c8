// The part of NCCL that Heddle calls, between processes of one machine: what the CUDA device finds
// as libnccl on the emulator. Messages go over UNIX sockets by a thread of each communicator,
// streams wait for them as they do for NCCL's kernels, and calls return before they are done, as
// those of a non-blocking communicator do: a group is on its stream only once CommGetAsyncError has
// said so.
//
// Stricter than NCCL: sizes that differ between the two sides are an error, and no hang.
//
// HEDDLE_NCCL_DOUBLE, a list with commas:
//   error=RANK:N    the Nth group of this rank meets an error
//   deaf=RANK:N     ... is dropped without a word: the other ranks wait for it
//   abort_blocks    CommAbort does not come back
//   version=NUMBER  what GetVersion says
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda_emulator.h"
#include "framework/device/cuda/nccl_api.h"

namespace heddle::nccl {
namespace {

constexpr int kVersion = 22809;
constexpr int kBusyAnswers = 2;  // "in progress" after a group

std::string option(const std::string& name) {
  const char* text = std::getenv("HEDDLE_NCCL_DOUBLE");
  const std::string all = "," + std::string(text != nullptr ? text : "") + ",";
  const size_t at = all.find("," + name);
  if (at == std::string::npos) return {};
  const size_t begin = at + 1 + name.size();
  const std::string value = all.substr(begin, all.find(',', begin) - begin);
  return value.empty() ? "yes" : value;
}

struct Message {
  char* data;
  uint64_t bytes;
  bool send;
  cudaStream_t stream;
};

// Messages by peer, each list in its order.
struct Group {
  std::map<int, std::vector<Message>> sends, receives;
  cudaStream_t stream = nullptr;
  std::atomic<bool> done{false};
  bool begun = false;
};

// One direction to or from one peer: a size before every message.
class Lane {
 public:
  Lane(const std::vector<Message>& messages, bool send) : messages_(messages), send_(send) {}
  bool done() const { return at_ == messages_.size(); }

  // Moves what can be moved now. False: the other side is gone, or sends something else.
  bool move(int socket, std::string* why) {
    while (!done()) {
      const Message& m = messages_[at_];
      uint64_t expected = m.bytes;
      char* place = header_done_ ? m.data + moved_
                                 : reinterpret_cast<char*>(send_ ? &expected : &size_) + moved_;
      const uint64_t whole = header_done_ ? m.bytes : sizeof size_;
      if (moved_ < whole) {
        const ssize_t n = send_ ? ::send(socket, place, whole - moved_, MSG_NOSIGNAL)
                                : ::recv(socket, place, whole - moved_, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (n <= 0) {
          *why = "its process has gone";
          return false;
        }
        moved_ += static_cast<uint64_t>(n);
      }
      if (moved_ < whole) continue;
      moved_ = 0;
      if (header_done_) ++at_;
      header_done_ = !header_done_;
      if (header_done_ && !send_ && size_ != m.bytes) {
        *why = "it sends " + std::to_string(size_) + " bytes, " + std::to_string(m.bytes) +
               " were expected";
        return false;
      }
    }
    return true;
  }

 private:
  const std::vector<Message>& messages_;
  const bool send_;
  size_t at_ = 0;
  uint64_t moved_ = 0, size_ = 0;
  bool header_done_ = false;
};

class State {
 public:
  State(const UniqueId& id, int rank, int ranks)
      : rank_(rank), ranks_(ranks), sockets_(static_cast<size_t>(ranks), -1), wake_(eventfd(0, 0)) {
    constexpr const char* kDigits = "0123456789abcdef";
    for (int i = 0; i < 16; ++i) {
      const auto byte = static_cast<unsigned char>(id.internal[i]);
      name_ += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    read_fault("error=", &error_at_);
    read_fault("deaf=", &deaf_at_);
    worker_ = std::thread([this] { work(); });
  }
  ~State() {
    stop();
    for (const int s : sockets_) {
      if (s >= 0) ::close(s);
    }
    ::close(wake_);
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      const uint64_t one = 1;
      (void)!::write(wake_, &one, sizeof one);
      arrived_.notify_all();
    }
    if (worker_.joinable()) worker_.join();
  }
  bool stopped() const { return stopped_; }

  void submit(std::shared_ptr<Group> group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    arrived_.notify_all();
  }
  bool connected() const { return connected_; }
  bool quiet() {
    const std::lock_guard lock(mutex_);
    return groups_.empty();
  }
  Result error() const { return error_; }
  std::string last_error() {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  void read_fault(const char* name, int64_t* at) {
    const std::string text = option(name);
    int rank = -1;
    long long number = 0;
    if (std::sscanf(text.c_str(), "%d:%lld", &rank, &number) == 2 && rank == rank_) *at = number;
  }

  void fail(Result result, const std::string& why) {
    const std::lock_guard lock(mutex_);
    last_error_ = why;
    error_ = result;
  }

  sockaddr_un address_of(int rank, socklen_t* length) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = "heddle-nccl-" + name_ + "-" + std::to_string(rank);
    std::memcpy(address.sun_path + 1, text.data(), text.size());  // behind a 0: abstract
    *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    return address;
  }

  // Waits for input, or for stop().
  bool await_input(int socket) {
    pollfd fds[2] = {{socket, POLLIN, 0}, {wake_, POLLIN, 0}};
    while (!stopped_) {
      if (::poll(fds, 2, -1) > 0 && fds[0].revents != 0) return !stopped_;
    }
    return false;
  }

  // Every rank calls those below it and is called by those above.
  bool connect() {
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    const sockaddr_un own = address_of(rank_, &length);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&own), length) != 0 ||
        ::listen(listener, ranks_) != 0) {
      ::close(listener);
      fail(kInvalidUsage, "rank " + std::to_string(rank_) + " is there already");
      return false;
    }
    for (int peer = 0; peer < rank_; ++peer) {
      const int s = call(peer);
      if (s < 0) return ::close(listener), false;
      (void)!::write(s, &rank_, sizeof rank_);
      sockets_[static_cast<size_t>(peer)] = s;
    }
    for (int left = ranks_ - 1 - rank_; left > 0; --left) {
      if (!await_input(listener)) return ::close(listener), false;
      const int s = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = -1;
      if (!await_input(s) || ::read(s, &peer, sizeof peer) != sizeof peer || peer <= rank_ ||
          peer >= ranks_) {
        fail(kInvalidUsage, "an unknown rank");
        return ::close(listener), false;
      }
      sockets_[static_cast<size_t>(peer)] = s;
    }
    ::close(listener);
    for (const int s : sockets_) {
      if (s >= 0) ::fcntl(s, F_SETFL, O_NONBLOCK);
    }
    return true;
  }
  int call(int peer) {
    socklen_t length = 0;
    const sockaddr_un address = address_of(peer, &length);
    for (; !stopped_; ::usleep(2000)) {
      const int s = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(s, reinterpret_cast<const sockaddr*>(&address), length) == 0) return s;
      ::close(s);
    }
    return -1;
  }

  void work() {
    if (!connect()) return;
    connected_ = true;
    for (int64_t number = 1;; ++number) {
      std::shared_ptr<Group> group;
      {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [this] { return stopped_ || !groups_.empty(); });
        if (stopped_) return;
        group = groups_.front();
      }
      if (number == error_at_) return fail(kSystemError, "as HEDDLE_NCCL_DOUBLE asks");
      if (number == deaf_at_) {
        for (;;) {
          if (!await_input(wake_)) return;
        }
      }
      if (!exchange(*group)) return;
      group->done = true;
      const std::lock_guard lock(mutex_);
      groups_.pop_front();
    }
  }

  bool exchange(Group& group) {
    if (!copy_to_self(group)) return false;
    struct Ends {
      int peer;
      Lane lane;
      short events;
    };
    std::vector<Ends> ends;
    for (const auto& [peer, list] : group.sends) ends.push_back({peer, Lane(list, true), POLLOUT});
    for (const auto& [peer, list] : group.receives) {
      ends.push_back({peer, Lane(list, false), POLLIN});
    }
    while (!stopped_) {
      std::vector<pollfd> fds{{wake_, POLLIN, 0}};
      for (Ends& e : ends) {
        const int socket = sockets_[static_cast<size_t>(e.peer)];
        std::string why;
        if (!e.lane.move(socket, &why)) {
          fail(kRemoteError, "rank " + std::to_string(e.peer) + ": " + why);
          return false;
        }
        if (!e.lane.done()) fds.push_back({socket, e.events, 0});
      }
      if (fds.size() == 1) return true;
      ::poll(fds.data(), fds.size(), -1);
    }
    return false;
  }

  bool copy_to_self(Group& group) {
    const std::vector<Message> sends = group.sends[rank_], receives = group.receives[rank_];
    group.sends.erase(rank_);
    group.receives.erase(rank_);
    for (size_t i = 0; i < sends.size() || i < receives.size(); ++i) {
      if (i >= sends.size() || i >= receives.size() || sends[i].bytes != receives[i].bytes) {
        fail(kInvalidUsage, "messages to oneself do not match");
        return false;
      }
      std::memcpy(receives[i].data, sends[i].data, sends[i].bytes);
    }
    return true;
  }

  const int rank_, ranks_;
  std::string name_;
  std::vector<int> sockets_;
  int wake_;
  int64_t error_at_ = 0, deaf_at_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Group>> groups_;
  std::string last_error_;
  std::atomic<bool> stopped_{false}, connected_{false};
  std::atomic<Result> error_{kSuccess};
  std::thread worker_;
};

}  // namespace
}  // namespace heddle::nccl

using namespace heddle::nccl;  // NOLINT: this file is the other side of a C interface

struct ncclComm {
  std::shared_ptr<State> state;
  int ranks = 0;
  int busy = 0;  // answers
  std::vector<std::shared_ptr<Group>> launching;
  bool finalized = false;
};

namespace {

thread_local int depth = 0;
thread_local std::map<Comm, std::shared_ptr<Group>> collected;

Result end_group() {
  for (const auto& [comm, group] : collected) {
    comm->launching.push_back(group);
    comm->busy = kBusyAnswers;
  }
  const bool any = !collected.empty();
  collected.clear();
  return any ? kInProgress : kSuccess;
}

Result add(Comm comm, int peer, Message message) {
  if (peer < 0 || peer >= comm->ranks) return kInvalidArgument;
  if (comm->busy > 0 || comm->finalized) return kInvalidUsage;  // the call before is not over
  auto& group = collected[comm];
  if (!group) group = std::make_shared<Group>();
  group->stream = message.stream;
  (message.send ? group->sends : group->receives)[peer].push_back(message);
  return depth > 0 ? kSuccess : end_group();
}

void launch(Comm comm) {
  for (const auto& group : comm->launching) {
    heddle::emulator::enqueue_external(group->stream, [state = comm->state, group] {
      if (state->stopped()) return true;
      if (!group->begun) state->submit(group);
      group->begun = true;
      return group->done.load();
    });
  }
  comm->launching.clear();
}

}  // namespace

#define NCCL_CALL extern "C" __attribute__((visibility("default")))

NCCL_CALL Result ncclGetVersion(int* version) {
  const std::string asked = option("version=");
  *version = asked.empty() ? kVersion : std::atoi(asked.c_str());
  return kSuccess;
}
NCCL_CALL Result ncclGetUniqueId(UniqueId* id) {
  return ::getrandom(id->internal, sizeof id->internal, 0) == sizeof id->internal ? kSuccess
                                                                                  : kSystemError;
}
NCCL_CALL Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank,
                                        Config* config) {
  if (config->size < sizeof(Config) || config->magic != 0xcafebeef || config->blocking != 0 ||
      rank < 0 || rank >= ranks) {
    return kInvalidArgument;
  }
  *comm = new ncclComm;
  (*comm)->state = std::make_shared<State>(id, rank, ranks);
  (*comm)->ranks = ranks;
  return kInProgress;
}
NCCL_CALL Result ncclCommGetAsyncError(Comm comm, Result* error) {
  *error = comm->state->error();
  if (*error != kSuccess) return kSuccess;
  const bool busy = !comm->state->connected() || (comm->finalized && !comm->state->quiet());
  if (busy || (comm->busy > 0 && --comm->busy > 0)) {
    *error = kInProgress;
    return kSuccess;
  }
  launch(comm);
  return kSuccess;
}
NCCL_CALL Result ncclCommFinalize(Comm comm) {
  comm->finalized = true;
  return kInProgress;
}
NCCL_CALL Result ncclCommDestroy(Comm comm) {
  if (!comm->finalized) return kInvalidUsage;  // would wait for the others
  comm->state->stop();
  delete comm;
  return kSuccess;
}
NCCL_CALL Result ncclCommAbort(Comm comm) {
  if (!option("abort_blocks").empty()) {
    for (;;) ::sleep(1);
  }
  comm->state->stop();
  delete comm;
  return kSuccess;
}
NCCL_CALL Result ncclGroupStart() {
  ++depth;
  return kSuccess;
}
NCCL_CALL Result ncclGroupEnd() {
  if (depth == 0) return kInvalidUsage;
  return --depth > 0 ? kSuccess : end_group();
}
NCCL_CALL Result ncclSend(const void* data, size_t count, DataType type, int peer, Comm comm,
                          cudaStream_t stream) {
  if (type != kInt8) return kInvalidArgument;
  return add(comm, peer, {const_cast<char*>(static_cast<const char*>(data)), count, true, stream});
}
NCCL_CALL Result ncclRecv(void* data, size_t count, DataType type, int peer, Comm comm,
                          cudaStream_t stream) {
  if (type != kInt8) return kInvalidArgument;
  return add(comm, peer, {static_cast<char*>(data), count, false, stream});
}
NCCL_CALL const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}
NCCL_CALL const char* ncclGetLastError(Comm comm) {
  static thread_local std::string text;
  text = comm != nullptr ? comm->state->last_error() : std::string();
  return text.c_str();
}
