#include "framework/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace heddle {
namespace {

constexpr int kBarWidth = 20;

std::string draw_bar(double done) {
  const int full = std::clamp(static_cast<int>(done * kBarWidth), 0, kBarWidth);
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) text += i < full ? "█" : "·";
  return text;
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string format_count(double value) {
  if (value >= 999.5e6) return fmt::format("{:.3g}G", value / 1e9);
  if (value >= 999.5e3) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 999.5) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

std::string format_step(const StepReport& r) {
  const int width = static_cast<int>(std::to_string(r.total).size());
  std::string text = fmt::format("step {:>{}}/{}  loss {:.4f}", r.step, width, r.total, r.loss);
  if (r.bits_per_byte > 0) text += fmt::format("  bpb {:.3f}", r.bits_per_byte);
  text += fmt::format("  lr {:.2f}  {} tok/s", r.lr_multiplier, format_count(r.tokens_per_second));
  if (r.mfu >= 0) text += fmt::format("  mfu {:.0f}%", 100 * r.mfu);
  return text + "  eta " + format_duration(r.seconds_left);
}

Progress::Progress(int64_t every, bool bar)
    : every_(every), terminal_(bar && isatty(STDOUT_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::step(const StepReport& report) {
  const std::string text = format_step(report);
  if (!terminal_) {
    if (report.step % every_ == 0 || report.step == report.total || report.step == 1) {
      std::printf("%s\n", text.c_str());
      std::fflush(stdout);
    }
    return;
  }
  std::string line = text;
  if (static_cast<int>(text.size()) + kBarWidth + 1 < terminal_columns()) {
    line =
        draw_bar(static_cast<double>(report.step) / static_cast<double>(report.total)) + " " + text;
  }
  std::printf("\r\033[K%s", line.c_str());
  std::fflush(stdout);
  open_line_ = true;
  if (report.step == report.total) clear();
}

void Progress::clear() {
  if (open_line_) std::printf("\n");
  std::fflush(stdout);
  open_line_ = false;
}

}  // namespace heddle
