#include "framework/comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "framework/core/error.h"

namespace heddle {

bool Work::poll() {
  return comm_ == nullptr || comm_->finished(ticket_);
}

void Work::wait() {
  if (comm_ != nullptr) comm_->wait(ticket_);
}

template <class T>
Work Communicator::start(Collective collective, std::span<T> data,
                         std::span<const int64_t> counts) {
  HEDDLE_CHECK(static_cast<int>(counts.size()) == world_size(), "one count per rank");
  int64_t total = 0;
  for (const int64_t count : counts) {
    HEDDLE_CHECK(count >= 0, "negative count");
    total += count;
  }
  HEDDLE_CHECK(total == static_cast<int64_t>(data.size()), "counts do not add up to the buffer");
  constexpr Element kElement = std::is_same_v<T, float>    ? Element::kFloat
                               : std::is_same_v<T, double> ? Element::kDouble
                                                           : Element::kByte;
  start(++started_, collective, kElement, reinterpret_cast<std::byte*>(data.data()), counts);
  return Work(this, started_);
}

Work Communicator::start_reduce_scatter_sum(std::span<float> data,
                                            std::span<const int64_t> counts) {
  return start(Collective::kReduceScatter, data, counts);
}
Work Communicator::start_reduce_scatter_sum(std::span<double> data,
                                            std::span<const int64_t> counts) {
  return start(Collective::kReduceScatter, data, counts);
}
void Communicator::reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts) {
  start_reduce_scatter_sum(data, counts).wait();
}
void Communicator::reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts) {
  start_reduce_scatter_sum(data, counts).wait();
}

Work Communicator::start_all_gather(std::span<float> data, std::span<const int64_t> counts) {
  return start(Collective::kAllGather, data, counts);
}
Work Communicator::start_all_gather(std::span<double> data, std::span<const int64_t> counts) {
  return start(Collective::kAllGather, data, counts);
}
Work Communicator::start_all_gather(std::span<std::byte> data, std::span<const int64_t> counts) {
  return start(Collective::kAllGather, data, counts);
}
void Communicator::all_gather(std::span<float> data, std::span<const int64_t> counts) {
  start_all_gather(data, counts).wait();
}
void Communicator::all_gather(std::span<double> data, std::span<const int64_t> counts) {
  start_all_gather(data, counts).wait();
}
void Communicator::all_gather(std::span<std::byte> data, std::span<const int64_t> counts) {
  start_all_gather(data, counts).wait();
}

Work Communicator::start_all_reduce_sum(std::span<float> data) {
  const auto counts = even_counts(static_cast<int64_t>(data.size()), world_size());
  start_reduce_scatter_sum(data, counts);
  return start_all_gather(data, counts);
}
Work Communicator::start_all_reduce_sum(std::span<double> data) {
  const auto counts = even_counts(static_cast<int64_t>(data.size()), world_size());
  start_reduce_scatter_sum(data, counts);
  return start_all_gather(data, counts);
}
void Communicator::all_reduce_sum(std::span<float> data) {
  start_all_reduce_sum(data).wait();
}
void Communicator::all_reduce_sum(std::span<double> data) {
  start_all_reduce_sum(data).wait();
}

template <class T>
std::vector<T> Communicator::gather_values(T value) {
  std::vector<T> values(world_size());
  const std::vector<int64_t> counts(world_size(), sizeof(T));
  values[rank()] = value;
  all_gather(std::as_writable_bytes(std::span<T>(values)), counts);
  return values;
}

double Communicator::all_reduce_sum(double value) {
  const auto values = gather_values(value);
  return std::accumulate(values.begin() + 1, values.end(), values.front());
}

double Communicator::all_reduce_max(double value) {
  double max = value;
  for (const double v : gather_values(value)) {
    if (std::isnan(v) || v > max) max = v;
    if (std::isnan(max)) break;
  }
  return max;
}

int64_t Communicator::all_reduce_sum(int64_t value) {
  const auto values = gather_values(value);
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int64_t Communicator::all_reduce_max(int64_t value) {
  const auto values = gather_values(value);
  return *std::max_element(values.begin(), values.end());
}

std::vector<std::string> Communicator::all_gather_strings(std::string_view text) {
  const auto counts = gather_values(static_cast<int64_t>(text.size()));
  std::string all(std::accumulate(counts.begin(), counts.end(), int64_t{0}), '\0');
  const int64_t own = std::accumulate(counts.begin(), counts.begin() + rank(), int64_t{0});
  std::copy(text.begin(), text.end(), all.begin() + own);
  all_gather(std::as_writable_bytes(std::span<char>(all)), counts);
  std::vector<std::string> texts;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    texts.push_back(all.substr(offset, count));
    offset += count;
  }
  return texts;
}

void Communicator::broadcast(std::string* text, int root) {
  int64_t size = static_cast<int64_t>(text->size());
  broadcast(std::as_writable_bytes(std::span<int64_t>(&size, 1)), root);
  text->resize(size);
  broadcast(std::as_writable_bytes(std::span<char>(*text)), root);
}

std::vector<int64_t> even_counts(int64_t n, int parts) {
  std::vector<int64_t> counts(parts, n / parts);
  for (int r = 0; r < n % parts; ++r) ++counts[r];
  return counts;
}

}  // namespace heddle
