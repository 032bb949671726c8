#include "framework/checkpoint/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Clock ticks from boot to the start of a process (field 22 of /proc/PID/stat): tells a process
// from a later one with the same pid. 0 when there is none.
int64_t start_ticks(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t name_end = text.rfind(')');  // field 2 may hold spaces
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) rest >> field;
  int64_t ticks = 0;
  rest >> ticks;
  return ticks;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  ::gmtime_r(&now, &tm);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
  return text;
}

struct Record {
  int64_t pid = 0;
  int64_t ticks = 0;
  std::string host;
  std::string since;

  bool alive() const {
    if (pid <= 0) return false;
    if (host != host_name()) return true;
    return (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM) && start_ticks(pid) == ticks;
  }
  std::string text() const {
    if (pid <= 0) return "another process";
    return "pid " + std::to_string(pid) + " on host " + host + " since " + since;
  }
};

std::string encode(const Record& r) {
  return json::serialize(json::object{
             {"pid", r.pid}, {"start_ticks", r.ticks}, {"host", r.host}, {"since", r.since}}) +
         "\n";
}

// An empty or damaged record, as a process killed while writing it leaves it, names nobody.
Record read_record(int fd) {
  char text[1024];
  const ssize_t n = ::pread(fd, text, sizeof text, 0);
  Record r;
  if (n <= 0) return r;
  try {
    const json::value v = json::parse_strict({text, static_cast<size_t>(n)});
    Record parsed{v.at("pid").as_int64(), v.at("start_ticks").as_int64(),
                  std::string(v.at("host").as_string()), std::string(v.at("since").as_string())};
    r = parsed;
  } catch (const std::exception&) {
  }
  return r;
}

[[noreturn]] void fail(const std::string& operation, const std::string& path) {
  throw environment_error("lock", "cannot " + operation + " " + path + ": " + std::strerror(errno),
                          "set log.dir to a folder that can be written");
}

// Closes a descriptor on every way out until it is released.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

// The file may have been removed by its last holder between our open and our lock.
bool still_named(int fd, const std::string& path) {
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

enum class Outcome { kHeld, kFree, kUnsupported };

Outcome lock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Outcome::kFree;
  if (errno == EWOULDBLOCK) return Outcome::kHeld;
  if (errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP || errno == EINVAL) {
    return Outcome::kUnsupported;
  }
  fail("lock", path);
}

}  // namespace

std::optional<FileLock> FileLock::try_acquire(const std::string& path, std::string* holder,
                                              Method method) {
  for (;;) {
    Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
    if (file.fd < 0) fail("create the lock file", path);
    const Outcome outcome = method == Method::kFlock ? lock(file.fd, path) : Outcome::kUnsupported;
    const Record record = read_record(file.fd);
    if (outcome == Outcome::kHeld || (outcome == Outcome::kUnsupported && record.alive())) {
      if (holder != nullptr) *holder = record.text();
      return std::nullopt;
    }
    if (outcome == Outcome::kFree && !still_named(file.fd, path)) continue;
    const std::string text = encode({::getpid(), start_ticks(::getpid()), host_name(), utc_now()});
    const auto size = static_cast<ssize_t>(text.size());
    if (::ftruncate(file.fd, 0) != 0 || ::pwrite(file.fd, text.data(), text.size(), 0) != size) {
      fail("write", path);
    }
    return FileLock(path, file.release());
  }
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());  // before the lock goes, so that nobody locks a file about to vanish
  ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace heddle
