// How ranks talk. All ranks call the same operations in the same order; every call blocks until the
// caller's buffers may be used again. Failures throw comm_error (exit code 6).
//
// Sums run in rank order: element i of a sum is ((x_0[i] + x_1[i]) + x_2[i]) + ..., whatever
// backend, transport or split of the buffer. So backends agree to the bit, and a reduce-scatter
// followed by an all-gather gives the bits of an all-reduce, however the pieces are cut.
//
// counts has one entry per rank and is the same on all ranks: rank r owns elements
// [counts[0] + ... + counts[r-1], + counts[r]) of the buffer, possibly none. The counts add up to
// the size of the buffer.
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

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return info_.rank; }
  int world_size() const { return info_.world_size; }
  int local_rank() const { return info_.local_rank; }
  int local_size() const { return info_.local_size; }
  // "self" | "mpi"
  virtual std::string_view backend() const = 0;
  // For people: "mpi (Open MPI 4.1.4), rank 1 of 3, local 1 of 3".
  virtual std::string description() const = 0;

  // In place, on all ranks.
  virtual void all_reduce_sum(std::span<float> data) = 0;
  virtual void all_reduce_sum(std::span<double> data) = 0;
  // In place: the own piece becomes its sum over ranks, the other pieces keep their values.
  virtual void reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts) = 0;
  virtual void reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts) = 0;
  // In place: every piece becomes what its owner has there.
  virtual void all_gather(std::span<float> data, std::span<const int64_t> counts) = 0;
  virtual void all_gather(std::span<double> data, std::span<const int64_t> counts) = 0;
  virtual void all_gather(std::span<std::byte> data, std::span<const int64_t> counts) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;

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
  explicit Communicator(const RankInfo& info) : info_(info) {}

 private:
  template <class T>
  std::vector<T> gather_values(T value);

  RankInfo info_;
};

// Consecutive pieces of n elements on `parts` ranks that differ by at most one.
std::vector<int64_t> even_counts(int64_t n, int parts);

// dist.backend `auto`: mpi for ranks that mpirun or srun started, self for a process alone. Throws
// comm_error when several processes were started and nothing here can connect them (never N copies
// that each take themselves for the whole run), when the backend that the user named cannot serve,
// and when it sees another rank or size than the launcher's environment.
std::unique_ptr<Communicator> make_communicator(const DistConfig& config,
                                                const LaunchContext& launch);

// Ends this process with `exit_code`, and with it all ranks of the job. For main(), after the error
// was printed: also when the communicator is gone already.
[[noreturn]] void abort_job(int exit_code);

}  // namespace heddle
