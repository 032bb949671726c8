#include "framework/attention/probe_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "framework/attention/names.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

struct Place {
  int64_t batch = 0, row = 0, head = 0, dim = 0;
  double got = 0.0, want = 0.0;
};

[[noreturn]] void wrong(const heddle_attention_problem& problem, const std::string& name,
                        const std::string& where, double got, double want) {
  throw plugin_error(fmt::format("computes wrong numbers: {}: {} at {} is {:.6g}, expected {:.6g}",
                                 problem_text(problem), name, where, got, want),
                     "correct the plugin, or remove it");
}

template <class Visit>
void for_each(const TensorShape& shape, kernels::reference::View<const float> got,
              kernels::reference::View<const float> want, Visit&& visit) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const float *g = got.row(b, t, h), *w = want.row(b, t, h);
        for (int64_t d = 0; d < shape.dim; ++d) visit(Place{b, t, h, d, g[d], w[d]});
      }
    }
  }
}

}  // namespace

void compare_tensor(const heddle_attention_problem& problem, const std::string& name,
                    const TensorShape& shape, kernels::reference::View<const float> got,
                    kernels::reference::View<const float> want, const Gate& gate) {
  double largest = 1.0, norm = 0.0, error_norm = 0.0;
  for_each(shape, got, want, [&](const Place& p) {
    largest = std::max(largest, std::abs(p.want));
    norm += p.want * p.want;
    error_norm += (p.got - p.want) * (p.got - p.want);
  });
  const double limit = gate.abs * largest;
  const auto report = [&](const Place& p) {
    wrong(problem, name,
          fmt::format("batch {}, row {}, head {}, dim {}", p.batch, p.row, p.head, p.dim), p.got,
          p.want);
  };
  Place worst;
  for_each(shape, got, want, [&](const Place& p) {
    const double error = std::abs(p.got - p.want);
    if (!(error <= limit)) report(p);
    if (error > std::abs(worst.got - worst.want)) worst = p;
  });
  if (!(std::sqrt(error_norm) <= gate.rel * std::sqrt(norm))) report(worst);
}

void compare_lse(const heddle_attention_problem& problem, const float* got, const double* want) {
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.n_head; ++h) {
      for (int64_t i = 0; i < problem.q_len; ++i) {
        const double g = got[b * problem.lse_stride_batch + h * problem.lse_stride_head + i];
        const double w = want[(b * problem.n_head + h) * problem.q_len + i];
        if (g == w || std::abs(g - w) <= 1e-5 + 2e-6 * std::abs(w)) continue;
        wrong(problem, "lse", fmt::format("batch {}, row {}, head {}", b, i, h), g, w);
      }
    }
  }
}

}  // namespace heddle
