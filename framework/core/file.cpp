#include "framework/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "framework/core/error.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& operation, const std::string& path, int error) {
  std::string remedy = "check the path";
  if (error == ENOSPC || error == EDQUOT) remedy = "free space on the disk or move log.dir";
  if (error == EACCES || error == EROFS || error == EPERM) {
    remedy = "set log.dir to a folder that can be written";
  }
  throw environment_error("file", "cannot " + operation + " " + path + ": " + std::strerror(error),
                          remedy);
}

class PosixFile : public OutputFile {
 public:
  explicit PosixFile(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("create", path_, errno);
  }
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  void write(const void* data, size_t bytes) override {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, p, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write", path_, n < 0 ? errno : EIO);
      p += n;
      bytes -= static_cast<size_t>(n);
    }
  }
  void close() override {
    if (::fsync(fd_) != 0) fail("sync", path_, errno);
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail("close", path_, errno);
  }

 private:
  std::string path_;
  int fd_ = -1;
};

class PosixFileSystem : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<PosixFile>(path);
  }
  void create_directories(const std::string& path) override {
    std::error_code ec;
    fs::create_directories(path, ec);
    if (ec) fail("create the folder", path, ec.value());
  }
  bool create_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0755) == 0) return true;
    if (errno != EEXIST) fail("create the folder", path, errno);
    return false;
  }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename " + from + " to", to, errno);
  }
  void sync_directory(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail("open the folder", path, errno);
    const int rc = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (rc != 0) fail("sync the folder", path, error);
  }
  void remove_all(const std::string& path) override {
    std::error_code ec;
    fs::remove_all(path, ec);
    if (ec) fail("remove", path, ec.value());
  }
};

FileSystem* g_file_system = nullptr;

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem instance;
  return instance;
}

FileSystem& file_system() {
  return g_file_system != nullptr ? *g_file_system : posix_file_system();
}

std::shared_ptr<void> replace_file_system(FileSystem* replacement) {
  FileSystem* previous = std::exchange(g_file_system, replacement);
  return {nullptr, [previous](void*) { g_file_system = previous; }};
}

void write_file_atomically(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  try {
    auto out = file_system().create(temporary);
    out->write(contents.data(), contents.size());
    out->close();
    file_system().rename(temporary, path);
  } catch (const Error&) {
    try {
      file_system().remove_all(temporary);
    } catch (const Error&) {
      // The first error is the one to report.
    }
    throw;
  }
  file_system().sync_directory(parent_folder(path));
}

bool path_exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

bool folder_exists(const std::string& path) {
  std::error_code ec;
  return fs::is_directory(path, ec);
}

std::string parent_folder(const std::string& path) {
  fs::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  const std::string parent = p.parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string read_text_file(const std::string& path) {
  return std::string(MappedFile(path).text());
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("read", path, errno);
  struct stat st {};
  const bool known = ::fstat(fd, &st) == 0;
  if (!known || S_ISDIR(st.st_mode)) {
    const int error = known ? EISDIR : errno;
    ::close(fd);
    fail("read", path, error);
  }
  size_ = static_cast<size_t>(st.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      fail("map", path, error);
    }
    data_ = static_cast<const unsigned char*>(p);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace heddle
