#include "framework/comm/mpi/mpi_communicator.h"

#include <fmt/format.h>
#include <mpi.h>

#include "framework/core/error.h"

namespace heddle {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw comm_error(fmt::format("{} failed: {}", call, std::string(text, length)),
                   "See what the other ranks say first; the last checkpoint can be resumed");
}

// "Open MPI v4.1.4" out of the library's one-paragraph description.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, length);
  return name.substr(0, name.find_first_of(",\n"));
}

// A communicator of our own, so that our messages never meet another library's.
class OwnComm {
 public:
  explicit OwnComm(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  OwnComm(const OwnComm&) = delete;
  OwnComm& operator=(const OwnComm&) = delete;
  ~OwnComm() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free(&comm_);
  }
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

void initialize() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED) {
    throw comm_error(fmt::format("MPI_Init_thread: got thread level {}, expected {} (FUNNELED)",
                                 provided, static_cast<int>(MPI_THREAD_FUNNELED)),
                     "Use an MPI library that is built with thread support");
  }
}

RankInfo world_info() {
  RankInfo info;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &info.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &info.world_size), "MPI_Comm_size");
  return info;
}

// A launcher of another MPI starts N processes that each find themselves alone.
void cross_check(const RankInfo& mpi, const LaunchContext& launch) {
  if (mpi.rank == launch.rank && mpi.world_size == launch.world_size) return;
  throw comm_error(
      fmt::format("MPI and the launch environment disagree: got rank {} of {} from {}, expected "
                  "[{}]",
                  mpi.rank, mpi.world_size, library_name(), launch.description()),
      launch.launcher == Launcher::kSrun
          ? "Try srun --mpi=pmix, or mpirun inside the allocation"
          : "Start heddle with the mpirun that belongs to this MPI library (mpirun --version)");
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return comm;
}

RankInfo with_local(RankInfo info) {
  MPI_Comm split = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, info.rank, MPI_INFO_NULL, &split),
        "MPI_Comm_split_type");
  const OwnComm host(split);
  check(MPI_Comm_rank(host.get(), &info.local_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(host.get(), &info.local_size), "MPI_Comm_size");
  return info;
}

class MpiCommunicator : public HostCommunicator {
 public:
  MpiCommunicator(const RankInfo& info, const MessageLimits& limits)
      : HostCommunicator(info, limits), comm_(duplicate_world()), library_(library_name()) {
    requests_.reserve(2 * info.world_size);
  }

  std::string_view backend() const override { return "mpi"; }
  std::string description() const override {
    return fmt::format("mpi ({}), rank {} of {}, local {} of {}", library_, rank(), world_size(),
                       local_rank(), local_size());
  }

  void finish() override {
    barrier();
    check(MPI_Finalize(), "MPI_Finalize");
  }

 protected:
  void start_exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    requests_.clear();
    for (const Message& m : receives) {
      check(MPI_Irecv(m.data, static_cast<int>(m.bytes), MPI_BYTE, m.peer, kTag, comm_.get(),
                      &requests_.emplace_back()),
            "MPI_Irecv");
    }
    for (const Message& m : sends) {
      check(MPI_Isend(m.data, static_cast<int>(m.bytes), MPI_BYTE, m.peer, kTag, comm_.get(),
                      &requests_.emplace_back()),
            "MPI_Isend");
    }
    statuses_.resize(requests_.size());
  }

  bool test_exchange() override {
    int done = 0;
    check_all(MPI_Testall(count(), requests_.data(), &done, statuses_.data()), "MPI_Testall");
    return done != 0;
  }

  void wait_exchange() override {
    check_all(MPI_Waitall(count(), requests_.data(), statuses_.data()), "MPI_Waitall");
  }

 private:
  int count() const { return static_cast<int>(requests_.size()); }
  void check_all(int code, const char* call) const {
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& status : statuses_) check(status.MPI_ERROR, call);
    }
    check(code, call);
  }

  static constexpr int kTag = 1;  // messages of a pair arrive in the order they were sent
  OwnComm comm_;
  std::string library_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace

bool mpi_available() {
  return true;
}

std::unique_ptr<Communicator> make_mpi_communicator(const LaunchContext& launch,
                                                    const MessageLimits& limits) {
  initialize();
  const RankInfo info = world_info();
  cross_check(info, launch);
  return std::make_unique<MpiCommunicator>(with_local(info), limits);
}

void abort_mpi(int exit_code) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace heddle
