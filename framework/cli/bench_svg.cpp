// The picture of bench_report.h, written by hand: one group of bars a case, one colour a plugin.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "framework/attention/names.h"
#include "framework/cli/bench_report.h"

namespace heddle {
namespace {

constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                    "#66ccee", "#aa3377", "#777777"};
constexpr double kBar = 26, kGap = 22, kLeft = 56, kTop = 52, kHeight = 240, kBottom = 96;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string text_at(double x, double y, const std::string& text, const std::string& more = {}) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y,
                     more.empty() ? "" : " " + more, escaped(text));
}

struct Plot {
  const BenchResult& result;
  std::vector<std::string> plugins;
  std::vector<std::vector<const BenchRow*>> groups;
  double top_share = 0.0;

  explicit Plot(const BenchResult& r) : result(r) {
    for (const BenchRow& row : r.rows) {
      if (std::find(plugins.begin(), plugins.end(), row.plugin) == plugins.end()) {
        plugins.push_back(row.plugin);
      }
      if (groups.empty() || !(groups.back().front()->shape == row.shape)) groups.emplace_back();
      groups.back().push_back(&row);
      top_share = std::max(top_share, r.share(row));
    }
    // Whole tenths, with room for the labels.
    top_share = std::max(0.1, std::ceil(top_share * 10.5) / 10.0);
  }

  double y(double share) const { return kTop + kHeight * (1.0 - share / top_share); }
  const char* colour(const std::string& plugin) const {
    const auto at = std::find(plugins.begin(), plugins.end(), plugin) - plugins.begin();
    return kColours[static_cast<size_t>(at) % std::size(kColours)];
  }
  double group_width(const std::vector<const BenchRow*>& group) const {
    return kBar * static_cast<double>(group.size()) + kGap;
  }
  double width() const {
    double w = kLeft + kGap;
    for (const auto& group : groups) w += group_width(group);
    return std::max(w, 640.0);
  }
};

std::string grid(const Plot& plot) {
  std::string text;
  const double step = plot.top_share > 0.5 ? 0.2 : plot.top_share > 0.2 ? 0.1 : 0.02;
  for (double share = 0.0; share <= plot.top_share + 1e-9; share += step) {
    text += fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" "
        "stroke=\"#dddddd\"/>\n",
        kLeft, plot.y(share), plot.width() - 8);
    text += text_at(kLeft - 6, plot.y(share) + 4, fmt::format("{:.0f}%", 100 * share),
                    "text-anchor=\"end\"");
  }
  return text;
}

std::string bar(const Plot& plot, const BenchRow& row, double x) {
  const double share = plot.result.share(row), top = plot.y(share);
  const std::string title =
      row.failed()
          ? row.last.failure
          : fmt::format("{}: {:.1f} us, {:.1f} {}, {:.0f}% of the limit", row.plugin,
                        row.median_us(), row.rate(),
                        row.shape.op == HEDDLE_OP_DECODE ? "GB/s" : "GFLOP/s", 100 * share);
  std::string text = fmt::format(
      "<g><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill=\"{}\"/>",
      escaped(title), x, top, kBar - 4, plot.y(0) - top, plot.colour(row.plugin));
  const std::string label = !row.failed()      ? fmt::format("{:.0f}", 100 * share)
                            : row.last.refused ? "no"
                                               : "x";
  return text + text_at(x + kBar / 2 - 2, top - 4, label, "text-anchor=\"middle\"") + "</g>\n";
}

std::string axis_label(const BenchCase& c, double x) {
  const std::string window =
      c.kind.window_left < 0 ? "all" : fmt::format("W {}", c.kind.window_left);
  const std::string middle = "text-anchor=\"middle\"", grey = middle + " fill=\"#666666\"";
  const double y = kTop + kHeight;
  return text_at(x, y + 16, op_name(c.op), middle) +
         text_at(x, y + 31, fmt::format("T {}", c.seq_len), grey) +
         text_at(x, y + 46, window, grey);
}

}  // namespace

std::string bench_svg(const BenchResult& result) {
  const Plot plot(result);
  const double height = kTop + kHeight + kBottom;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      plot.width(), height);
  text += text_at(kLeft, 20, "Share of what the machine can do", "font-size=\"14\"");
  text +=
      text_at(kLeft, 36,
              fmt::format("{}: peak {:.0f} GFLOP/s (forward, backward), reads {:.1f} GB/s "
                          "(decode)",
                          result.machine, result.peak_flops / 1e9, result.bytes_per_second / 1e9),
              "fill=\"#666666\"");
  text += grid(plot);
  double x = kLeft + kGap;
  for (const auto& group : plot.groups) {
    const double middle = x + (plot.group_width(group) - kGap) / 2 - 2;
    text += axis_label(group.front()->shape, middle);
    for (const BenchRow* row : group) {
      text += bar(plot, *row, x);
      x += kBar;
    }
    x += kGap;
  }
  double legend = kLeft;
  for (const std::string& plugin : plot.plugins) {
    text +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" fill=\"{}\"/>\n",
                    legend, height - 24, plot.colour(plugin));
    text += text_at(legend + 16, height - 14, plugin);
    legend += 34 + 7 * static_cast<double>(plugin.size());
  }
  return text + "</svg>\n";
}

}  // namespace heddle
