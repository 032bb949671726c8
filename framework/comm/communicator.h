// How ranks talk. All ranks start the same operations in the same order. Failures throw comm_error
// (exit code 6) from whatever call notices them; nothing may be called after that, the process ends
// (abort_job), and never by a call of the communication library.
//
// Sums run in rank order: element i of a sum is ((x_0[i] + x_1[i]) + x_2[i]) + ..., whatever
// backend, transport or split of the buffer. So backends agree to the bit, and a reduce-scatter
// followed by an all-gather gives the bits of an all-reduce, however the pieces are cut.
//
// counts has one entry per rank and is the same on all ranks: rank r owns elements
// [counts[0] + ... + counts[r-1], + counts[r]) of the buffer, possibly none. The counts add up to
// the size of the buffer. Payloads in bf16 are gathered as bytes.
//
// start_...() returns at once. Operations run one after the other in the order in which they were
// started; the buffer belongs to the operation from its start until Work::wait() has returned (or
// Work::poll() has said true), counts are copied. The blocking forms are a start and a wait.
// Host backends move data only inside calls of this class, so a thread that computes meanwhile
// calls poll() every now and then.
//
// Buffers are in the host's memory; for the nccl backend also in its device's, where an operation
// follows the compute stream's work so far, Work::wait() makes that stream wait and not the host,
// and poll() throws the errors that the library has met meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/comm/launch_context.h"
#include "framework/config/config.h"

namespace heddle {

// Place of this process: among all, and among those on its host.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
};

// What this rank has handed to the communicator since it was made.
struct CommCounters {
  int64_t bytes_sent = 0;        // to other ranks: payload of what was started
  double seconds_in_flight = 0;  // at least one operation was under way
  double seconds_inside = 0;     // of the calling thread in calls: starting, polling, waiting, sums
};

class Communicator;

// An operation that was started. Empty ones are finished.
class Work {
 public:
  Work() = default;
  // Is the operation finished? Moves all operations under way on.
  bool poll();
  void wait();

 private:
  friend class Communicator;
  Work(Communicator* comm, int64_t ticket) : comm_(comm), ticket_(ticket) {}
  Communicator* comm_ = nullptr;
  int64_t ticket_ = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return info_.rank; }
  int world_size() const { return info_.world_size; }
  int local_rank() const { return info_.local_rank; }
  int local_size() const { return info_.local_size; }
  // "self" | "mpi" | "gloo" | "nccl"
  virtual std::string_view backend() const = 0;
  // For people: "mpi (Open MPI 4.1.4), rank 1 of 3, local 1 of 3".
  virtual std::string description() const = 0;

  // In place: the own piece becomes its sum over ranks, the other pieces keep their values.
  Work start_reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts);
  Work start_reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts);
  void reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts);
  void reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts);
  // In place: every piece becomes what its owner has there.
  Work start_all_gather(std::span<float> data, std::span<const int64_t> counts);
  Work start_all_gather(std::span<double> data, std::span<const int64_t> counts);
  Work start_all_gather(std::span<std::byte> data, std::span<const int64_t> counts);
  void all_gather(std::span<float> data, std::span<const int64_t> counts);
  void all_gather(std::span<double> data, std::span<const int64_t> counts);
  void all_gather(std::span<std::byte> data, std::span<const int64_t> counts);
  // In place, on all ranks: a reduce-scatter of even pieces and an all-gather.
  Work start_all_reduce_sum(std::span<float> data);
  Work start_all_reduce_sum(std::span<double> data);
  void all_reduce_sum(std::span<float> data);
  void all_reduce_sum(std::span<double> data);

  // Moves the operations under way on, without blocking. False: none is left.
  bool poll() { return !finished(started_); }
  // Finishes all operations under way. So do broadcast() and barrier().
  void wait_all() { wait(started_); }
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;

  const CommCounters& counters() const { return counters_; }

  // Leaves the job in good order, together with all other ranks; nothing may be called after it.
  // A process that ends without it counts as failed.
  virtual void finish() = 0;

  // Single values, for metrics and agreement.
  double all_reduce_sum(double value);
  double all_reduce_max(double value);  // NaN on any rank gives NaN
  int64_t all_reduce_sum(int64_t value);
  int64_t all_reduce_max(int64_t value);
  // Entry r is rank r's text.
  std::vector<std::string> all_gather_strings(std::string_view text);
  // Afterwards every rank has the root's text.
  void broadcast(std::string* text, int root);

 protected:
  enum class Element { kByte, kFloat, kDouble };
  static int64_t element_bytes(Element element) {
    return element == Element::kByte ? 1 : element == Element::kFloat ? 4 : 8;
  }
  enum class Collective { kReduceScatter, kAllGather };

  explicit Communicator(const RankInfo& info) : info_(info) {}

  // Tickets count from 1. `counts` were checked. Operations with no bytes to move may be skipped.
  virtual void start(int64_t ticket, Collective collective, Element element, std::byte* data,
                     std::span<const int64_t> counts) = 0;
  // Is this operation, and with it every earlier one, finished?
  virtual bool finished(int64_t ticket) = 0;
  virtual void wait(int64_t ticket) = 0;
  int64_t started() const { return started_; }

  CommCounters counters_;

 private:
  friend class Work;
  template <class T>
  Work start(Collective collective, std::span<T> data, std::span<const int64_t> counts);
  template <class T>
  std::vector<T> gather_values(T value);

  RankInfo info_;
  int64_t started_ = 0;
};

// Consecutive pieces of n elements on `parts` ranks that differ by at most one.
std::vector<int64_t> even_counts(int64_t n, int parts);

// Ends this process with `exit_code`, and with it all ranks of the job. For main(), after the error
// was printed: also when the communicator is gone already.
[[noreturn]] void abort_job(int exit_code);

}  // namespace heddle
