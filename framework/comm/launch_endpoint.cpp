// Where rank 0 is met, and which attempt of which job this is.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "framework/comm/launch_values.h"

namespace heddle {
namespace launch_values {
namespace {

constexpr int kMaxRestarts = 1'000'000'000;
constexpr size_t kMaxJobId = 1024;

int read_port(const Environment& env, const char* name) {
  return read_count(env, name, 1, 65535);
}

// torchrun's agent may serve its own store at MASTER_PORT: then ours is one beside it.
void torchrun_port(const Environment& env, LaunchContext* c) {
  c->master_port = read_port(env, "MASTER_PORT");
  c->origin.master_port = "MASTER_PORT";
  const auto it = env.find("TORCHELASTIC_USE_AGENT_STORE");
  if (it == env.end() || (it->second != "True" && it->second != "1")) return;
  const bool last = c->master_port == 65535;
  c->master_port += last ? -1 : 1;
  c->origin.master_port =
      fmt::format("MASTER_PORT {} 1, torchrun's agent serves MASTER_PORT itself", last ? "-" : "+");
}

// All tasks derive the same port from the job; below the ephemeral ones.
int slurm_port(const Environment& env) {
  uint64_t hash = 0;
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const auto it = env.find(name);
    if (it == env.end()) continue;
    for (const char ch : it->second) hash = hash * 31 + static_cast<unsigned char>(ch);
  }
  return 20000 + static_cast<int>(hash % 10000);
}

void srun_endpoint(const Environment& env, LaunchContext* c) {
  if (has(env, "MASTER_ADDR")) {
    c->master_addr = env.at("MASTER_ADDR");
    c->origin.master_addr = "MASTER_ADDR";
  } else {
    c->master_addr = first_host(env.at("SLURM_STEP_NODELIST"));
    c->origin.master_addr = "SLURM_STEP_NODELIST, its first host";
  }
  if (has(env, "MASTER_PORT")) {
    c->master_port = read_port(env, "MASTER_PORT");
    c->origin.master_port = "MASTER_PORT";
  } else {
    c->master_port = slurm_port(env);
    c->origin.master_port = "SLURM_JOB_ID and SLURM_STEP_ID";
  }
}

}  // namespace

void read_endpoint(const Environment& env, const DistConfig& config, LaunchContext* c) {
  switch (c->launcher) {
    case Launcher::kTorchrun:
      torchrun_port(env, c);
      c->master_addr = env.at("MASTER_ADDR");
      c->origin.master_addr = "MASTER_ADDR";
      break;
    case Launcher::kEnvironment:
      c->master_addr = env.at("MASTER_ADDR");
      c->master_port = read_port(env, "MASTER_PORT");
      c->origin.master_addr = "MASTER_ADDR";
      c->origin.master_port = "MASTER_PORT";
      break;
    case Launcher::kSrun:
      srun_endpoint(env, c);
      break;
    default:
      break;
  }
  if (config.master_addr != "auto") {
    c->master_addr = config.master_addr;
    c->origin.master_addr = "dist.master_addr";
  }
  if (config.master_port) {
    c->master_port = static_cast<int>(*config.master_port);
    c->origin.master_port = "dist.master_port";
  }
  if (c->world_size > 1 && c->master_addr.empty() && c->origin.master_addr != "default") {
    throw comm_error(fmt::format("{} is empty, expected the name or address of rank 0's host",
                                 c->origin.master_addr),
                     "Set it, or leave it to the launcher");
  }
}

void read_job(const Environment& env, LaunchContext* c) {
  const auto take_id = [&](const char* name) {
    c->job_id = env.at(name);
    c->origin.job_id = name;
  };
  if (has(env, "HEDDLE_JOB_ID")) {
    take_id("HEDDLE_JOB_ID");
  } else if (c->launcher == Launcher::kTorchrun) {
    take_id("TORCHELASTIC_RUN_ID");
  } else if (c->launcher == Launcher::kOpenMpi) {
    take_id("PMIX_NAMESPACE");
  } else if (c->launcher == Launcher::kSrun && has(env, "SLURM_JOB_ID")) {
    c->job_id = fmt::format("{}.{}", env.at("SLURM_JOB_ID"), env.at("SLURM_STEP_ID"));
    c->origin.job_id = "SLURM_JOB_ID, SLURM_STEP_ID";
  }
  if (c->job_id.size() > kMaxJobId) {
    throw bad_value(c->origin.job_id.c_str(), c->job_id.substr(0, 40) + "...",
                    fmt::format("at most {} characters", kMaxJobId));
  }

  const auto take_count = [&](const char* name) {
    c->restart_count = read_count(env, name, 0, kMaxRestarts);
    c->origin.restart_count = name;
  };
  const auto agents = env.find("GROUP_WORLD_SIZE");
  if (has(env, "HEDDLE_RESTART_COUNT")) {
    take_count("HEDDLE_RESTART_COUNT");
  } else if (c->launcher == Launcher::kTorchrun && agents != env.end() && agents->second != "1") {
    // An agent counts the restarts that it caused itself, so healthy agents differ.
    c->origin.restart_count = "default, each of torchrun's agents counts on its own";
  } else if (c->launcher == Launcher::kTorchrun && has(env, "TORCHELASTIC_RESTART_COUNT")) {
    take_count("TORCHELASTIC_RESTART_COUNT");
  } else if (c->launcher != Launcher::kTorchrun && c->launcher != Launcher::kSingle &&
             has(env, "SLURM_RESTART_COUNT")) {
    take_count("SLURM_RESTART_COUNT");
  }
}

}  // namespace launch_values

std::string first_host(const std::string& nodelist) {
  std::string host;
  for (size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      host += nodelist[i];
      continue;
    }
    const size_t close = nodelist.find(']', i);
    if (close == std::string::npos) return host;
    const size_t end = nodelist.find_first_of("-,]", i);
    host += nodelist.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

DistConfig without_place(DistConfig config) {
  const DistConfig defaults;
  config.rank = defaults.rank;
  config.local_rank = defaults.local_rank;
  config.local_size = defaults.local_size;
  config.interface = defaults.interface;
  return config;
}

std::string LaunchContext::table() const {
  std::string text;
  const auto line = [&](const char* what, const std::string& value, const std::string& from) {
    text += fmt::format("{:<14} {:<24} {}\n", what, value, from);
  };
  line("value", "is", "from");
  line("launcher", launcher_name(launcher), pmi ? "serves MPI libraries" : "");
  line("rank", std::to_string(rank), origin.rank);
  line("world_size", std::to_string(world_size), origin.world_size);
  line("local_rank", std::to_string(local_rank), origin.local_rank);
  line("local_size", std::to_string(local_size), origin.local_size);
  const bool through_mpi = world_size > 1 && master_addr.empty();
  line("master_addr", master_addr.empty() ? "-" : master_addr,
       through_mpi ? "rank 0 tells it through MPI" : origin.master_addr);
  line("master_port", master_port == 0 ? "-" : std::to_string(master_port),
       through_mpi && master_port == 0 ? "rank 0 takes a free one" : origin.master_port);
  line("job_id", job_id, origin.job_id);
  line("restart_count", std::to_string(restart_count), origin.restart_count);
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace heddle
