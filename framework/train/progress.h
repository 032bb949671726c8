// What a person sees while a run goes on: a bar that redraws itself on a terminal, plain lines
// every log.every steps in a file or a pipe.
#pragma once

#include <cstdint>
#include <string>

namespace heddle {

struct StepReport {
  int64_t step = 0;   // steps done
  int64_t total = 0;  // steps of the run
  double loss = 0;    // nats per token
  double bits_per_byte = 0;
  double lr_multiplier = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // 0..1; negative: unknown
  double seconds_left = 0;
};

// "1:02:03", "4:05"
std::string format_duration(double seconds);
// "12.3k", "1.25M"
std::string format_count(double value);
std::string format_step(const StepReport& report);

class Progress {
 public:
  // every: steps between plain lines. Writes to stdout; a bar only where that is a terminal and
  // `bar` allows it: mpirun gives its ranks a terminal even when its own output goes to a file.
  Progress(int64_t every, bool bar);
  ~Progress();
  void step(const StepReport& report);
  // Ends a bar's line, so that other output starts on a fresh one.
  void clear();

 private:
  int64_t every_;
  bool terminal_;
  bool open_line_ = false;
};

}  // namespace heddle
