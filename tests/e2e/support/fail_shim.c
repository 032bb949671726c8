/* LD_PRELOAD library that makes a folder fail, because root ignores permissions and a test cannot
 * fill a disk: opening for writing, mkdir and writes below HEDDLE_SHIM_PREFIX fail with
 * HEDDLE_SHIM_ERRNO once HEDDLE_SHIM_BYTES bytes were written there (ENOSPC), or at once (EROFS,
 * HEDDLE_SHIM_BYTES unset). Without HEDDLE_SHIM_ERRNO nothing fails. With HEDDLE_SHIM_DELAY_MS every
 * fsync below the prefix takes that much longer: a slow disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static long g_written = 0;

static int covered(const char* path) {
  const char* prefix = getenv("HEDDLE_SHIM_PREFIX");
  return prefix != NULL && path != NULL && strncmp(path, prefix, strlen(prefix)) == 0;
}

static int fd_covered(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return covered(path);
}

static int error_number(void) { return atoi(getenv("HEDDLE_SHIM_ERRNO")); }
static int fails(void) { return getenv("HEDDLE_SHIM_ERRNO") != NULL; }
static int at_once(void) { return getenv("HEDDLE_SHIM_BYTES") == NULL; }

static int refuse(const char* path, int flags) {
  if (!fails() || !covered(path) || !at_once() || (flags & O_ACCMODE) == O_RDONLY) return 0;
  errno = error_number();
  return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_any(const char* which, const char* path, int flags, mode_t mode) {
  if (refuse(path, flags)) return -1;
  return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, which))(path, flags, mode);
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(list, mode_t) : 0;
  va_end(list);
  return open_any("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(list, mode_t) : 0;
  va_end(list);
  return open_any("open64", path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  if (refuse(path, mode[0] == 'r' ? O_RDONLY : O_WRONLY)) return NULL;
  return NEXT(fopen)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  if (refuse(path, mode[0] == 'r' ? O_RDONLY : O_WRONLY)) return NULL;
  return NEXT(fopen64)(path, mode);
}

int mkdir(const char* path, mode_t mode) {
  if (refuse(path, O_WRONLY)) return -1;
  return NEXT(mkdir)(path, mode);
}

static int disk_full(int fd, size_t bytes) {
  if (!fails() || at_once() || !fd_covered(fd)) return 0;
  g_written += (long)bytes;
  if (g_written <= atol(getenv("HEDDLE_SHIM_BYTES"))) return 0;
  errno = error_number();
  return 1;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  if (disk_full(fd, bytes)) return -1;
  return NEXT(write)(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  if (disk_full(fd, bytes)) return -1;
  return NEXT(writev)(fd, parts, count);
}

int fsync(int fd) {
  const char* delay = getenv("HEDDLE_SHIM_DELAY_MS");
  if (delay != NULL && fd_covered(fd)) usleep((useconds_t)atol(delay) * 1000);
  return NEXT(fsync)(fd);
}
