// What waits on streams: nothing, mostly. Once a stream holds work that takes its time, all that
// comes after it on this stream, and on those that wait for it by events, queues up as tasks.
// Callers hold the runtime's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "internal.h"

// Says whether it is done; asked again until it is.
using HeddleStreamTask = std::function<bool()>;

struct CUgraph_st {
  std::vector<heddle::emulator::Work> work;
};
struct CUgraphExec_st {
  std::vector<heddle::emulator::Work> work;
};
struct CUstream_st {
  bool alive = true;
  std::unique_ptr<CUgraph_st> captured;  // while a capture goes on
  bool spoilt = false;
  bool running = false;  // its first task is being asked
  std::deque<HeddleStreamTask> tasks;
};
struct CUevent_st {
  int64_t recorded = 0;  // launches before it
  // Of the last recording.
  std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(true);
};

namespace heddle::emulator {

class Streams {
 public:
  // Streams are never deleted: a later use is seen.
  CUstream_st* make();

  // Runs what can run. nullptr: the default stream.
  void advance();
  bool idle(CUstream_st* stream);
  bool idle();  // all of them
  void push(CUstream_st* stream, HeddleStreamTask task);

  // Of work that was put off: the first error, until it is taken.
  void note_error(int error) {
    if (error_ == 0) error_ = error;
  }
  int take_error();

 private:
  static bool advance(CUstream_st& stream);
  CUstream_st& of(CUstream_st* stream) { return stream == nullptr ? default_ : *stream; }

  CUstream_st default_;
  std::vector<CUstream_st*> all_{&default_};
  int error_ = 0;
};
Streams& streams();

}  // namespace heddle::emulator
