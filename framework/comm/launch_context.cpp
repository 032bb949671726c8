#include "framework/comm/launch_context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "framework/comm/launch_values.h"

namespace heddle {
namespace launch_values {

bool has(const Environment& env, const char* name) {
  return env.count(name) != 0;
}

Error bad_value(const char* name, const std::string& value, const std::string& expected) {
  return comm_error(
      fmt::format("{} from the launch environment: got '{}', expected {}", name, value, expected),
      fmt::format("Start heddle through mpirun or srun, which set it, or unset {}", name));
}

std::optional<int> parse_count(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') return {};
  return value;
}

int read_count(const Environment& env, const char* name, int min, int max) {
  const std::string& text = env.at(name);
  const auto value = parse_count(text);
  if (!value || *value < min || *value > max) {
    throw bad_value(name, text, fmt::format("a whole number from {} to {}", min, max));
  }
  return *value;
}

}  // namespace launch_values

namespace {

using launch_values::bad_value;
using launch_values::has;
using launch_values::parse_count;
using launch_values::read_count;

constexpr int kMaxProcesses = 1 << 20;

// The names under which a launcher hands over its four values, and what else it always sets.
struct Contract {
  Launcher launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
  std::vector<const char*> also;

  std::vector<const char*> required() const {
    std::vector<const char*> names = {rank, world_size, local_rank, local_size};
    names.insert(names.end(), also.begin(), also.end());
    return names;
  }
};

// In order of precedence.
const std::vector<Contract>& contracts() {
  static const std::vector<Contract> all = {
      {Launcher::kTorchrun,
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
      {Launcher::kOpenMpi,
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       {"PMIX_NAMESPACE"}},
      {Launcher::kHydra, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {}},
      {Launcher::kSrun,
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "SLURM_STEP_TASKS_PER_NODE",
       {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_NODEID"}},
      {Launcher::kEnvironment,
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       {"MASTER_ADDR", "MASTER_PORT"}},
  };
  return all;
}

// Slurm numbers the batch script, the shell of salloc and the extern container as steps too.
bool is_srun_step(const Environment& env) {
  const auto it = env.find("SLURM_STEP_ID");
  if (it == env.end()) return false;
  for (const char* other :
       {"batch", "interactive", "extern", "4294967290", "4294967291", "4294967292"}) {
    if (it->second == other) return false;
  }
  return true;
}

// Does this environment hold values that only this launcher writes?
bool begun(const Contract& c, const Environment& env) {
  switch (c.launcher) {
    case Launcher::kSrun:
      return is_srun_step(env);
    case Launcher::kTorchrun:
      if (!has(env, "TORCHELASTIC_RUN_ID")) return false;
      break;
    case Launcher::kEnvironment:
      if (has(env, "TORCHELASTIC_RUN_ID")) return false;
      break;
    default:
      break;
  }
  return has(env, c.rank) || has(env, c.world_size) || has(env, c.local_rank) ||
         has(env, c.local_size);
}

std::vector<std::string> pick(const Contract& c, const Environment& env, bool present) {
  std::vector<std::string> names;
  for (const char* name : c.required()) {
    if (has(env, name) == present) names.emplace_back(name);
  }
  return names;
}

// Tasks of one node out of Slurm's compressed list: "2(x3),1" is 2, 2, 2, 1.
int tasks_on_node(const Environment& env, const char* name, int node) {
  const std::string& text = env.at(name);
  std::string_view rest = text;
  for (int64_t first = 0; !rest.empty();) {
    const size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    int repeat = 1;
    if (const size_t open = item.find("(x"); open != std::string_view::npos && item.back() == ')') {
      const auto count = parse_count(item.substr(open + 2, item.size() - open - 3));
      if (!count) break;
      repeat = *count;
      item = item.substr(0, open);
    }
    const auto tasks = parse_count(item);
    if (!tasks || *tasks < 1) break;
    first += repeat;
    if (node < first) return *tasks;
  }
  throw bad_value(name, text, fmt::format("a task count for node {}, such as 2(x3),1", node));
}

LaunchContext read_contract(const Contract& c, const Environment& env) {
  LaunchContext context;
  context.launcher = c.launcher;
  context.world_size = read_count(env, c.world_size, 1, kMaxProcesses);
  context.rank = read_count(env, c.rank, 0, context.world_size - 1);
  if (c.launcher == Launcher::kSrun) {
    const int node = read_count(env, "SLURM_NODEID", 0, kMaxProcesses);
    context.local_size = tasks_on_node(env, c.local_size, node);
    if (context.local_size > context.world_size) {
      throw bad_value(c.local_size, env.at(c.local_size),
                      fmt::format("at most {} tasks", context.world_size));
    }
  } else {
    context.local_size = read_count(env, c.local_size, 1, context.world_size);
  }
  context.local_rank = read_count(env, c.local_rank, 0, context.local_size - 1);
  context.origin.rank = c.rank;
  context.origin.world_size = c.world_size;
  context.origin.local_rank = c.local_rank;
  context.origin.local_size = c.local_size;
  context.pmi = c.launcher == Launcher::kOpenMpi || c.launcher == Launcher::kHydra ||
                (c.launcher == Launcher::kSrun &&
                 (has(env, "PMIX_NAMESPACE") || has(env, "PMI_RANK") || has(env, "PMI_FD")));
  return context;
}

int explicit_count(const char* key, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return static_cast<int>(value);
  throw config_error(fmt::format("{}: got {}, expected {} to {}", key, value, min, max));
}

// The keys of the configuration. False: none is set.
bool read_explicit(const DistConfig& config, LaunchContext* context) {
  const std::vector<std::pair<const char*, Auto<int64_t>>> keys = {
      {"dist.rank", config.rank},
      {"dist.world_size", config.world_size},
      {"dist.local_rank", config.local_rank},
      {"dist.local_size", config.local_size}};
  std::vector<std::string> set, missing;
  for (const auto& [key, value] : keys) (value ? set : missing).emplace_back(key);
  if (set.empty()) return false;
  if (!missing.empty()) {
    throw config_error(
        fmt::format("{} set without {}", fmt::join(set, ", "), fmt::join(missing, ", ")),
        "Set all four, or none and start heddle by a launcher");
  }
  context->launcher = Launcher::kExplicit;
  context->world_size = explicit_count("dist.world_size", *config.world_size, 1, kMaxProcesses);
  context->rank = explicit_count("dist.rank", *config.rank, 0, context->world_size - 1);
  context->local_size =
      explicit_count("dist.local_size", *config.local_size, 1, context->world_size);
  context->local_rank =
      explicit_count("dist.local_rank", *config.local_rank, 0, context->local_size - 1);
  context->origin.rank = "dist.rank";
  context->origin.world_size = "dist.world_size";
  context->origin.local_rank = "dist.local_rank";
  context->origin.local_size = "dist.local_size";
  return true;
}

bool equals(const Environment& env, const char* name, int value) {
  const auto it = env.find(name);
  return it != env.end() && it->second == std::to_string(value);
}

// Is `outer` the job that `inner`'s launcher itself runs in, so that their counts may differ?
bool contains(const LaunchContext& outer, const LaunchContext& inner, const Environment& env) {
  if (outer.world_size == 1) return true;  // one shell, from which the inner launcher was called
  if (inner.world_size == 1) return false;
  // The outer processes are torchrun's agents.
  if (inner.launcher == Launcher::kTorchrun) {
    return equals(env, "GROUP_WORLD_SIZE", outer.world_size);
  }
  // mpirun inside a Slurm job starts one daemon a node through srun.
  const bool mpirun = inner.launcher == Launcher::kOpenMpi || inner.launcher == Launcher::kHydra;
  return mpirun && outer.launcher == Launcher::kSrun &&
         equals(env, "SLURM_STEP_NUM_NODES", outer.world_size);
}

Error disagreement(const LaunchContext& a, const LaunchContext& b) {
  return comm_error(
      fmt::format("Two launchers disagree about this process: got [{}] and [{}], expected one view",
                  a.description(), b.description()),
      fmt::format("Start heddle by one launcher only, or unset {} and {} of the one that did not",
                  b.origin.rank, b.origin.world_size));
}

Error incomplete(const Contract& c, const Environment& env) {
  const auto present = pick(c, env, true);
  return comm_error(
      fmt::format("Incomplete launch environment ({}): {} missing, although {} is set",
                  launcher_name(c.launcher), fmt::join(pick(c, env, false), ", "),
                  fmt::join(present, ", ")),
      fmt::format("Set what is missing, start heddle through mpirun or srun, or unset {} to run "
                  "one process",
                  fmt::join(present, " ")));
}

// Inside sbatch or salloc, but not started by srun: says so, since N processes may be meant.
void note_batch_script(const Environment& env, std::vector<std::string>* notes) {
  if (is_srun_step(env) || !has(env, "SLURM_JOB_ID")) return;
  const auto tasks = env.find("SLURM_NTASKS");
  notes->push_back(fmt::format(
      "Inside Slurm job {} but not an srun step: SLURM_PROCID is not used{}",
      env.at("SLURM_JOB_ID"),
      tasks == env.end() || tasks->second == "1"
          ? std::string()
          : fmt::format("; for the {} tasks of the job put srun before heddle", tasks->second)));
}

}  // namespace

const char* launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kSingle:
      return "single";
    case Launcher::kExplicit:
      return "explicit";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "openmpi";
    case Launcher::kHydra:
      return "hydra";
    case Launcher::kSrun:
      return "srun";
    case Launcher::kEnvironment:
      return "environment";
  }
  return "unknown";
}

std::string LaunchContext::description() const {
  return fmt::format("{}: rank {} of {} ({}, {}), local {} of {} ({}, {})", launcher_name(launcher),
                     rank, world_size, origin.rank, origin.world_size, local_rank, local_size,
                     origin.local_rank, origin.local_size);
}

Environment process_environment() {
  Environment env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equal = line.find('=');
    if (equal == std::string_view::npos) continue;
    env.emplace(line.substr(0, equal), line.substr(equal + 1));
  }
  return env;
}

namespace {

LaunchContext resolve_contracts(const Environment& env) {
  std::vector<LaunchContext> complete;
  std::vector<const Contract*> partial;
  for (const Contract& c : contracts()) {
    if (!begun(c, env)) continue;
    if (pick(c, env, false).empty()) {
      complete.push_back(read_contract(c, env));
    } else {
      partial.push_back(&c);
    }
  }
  if (complete.empty() && !partial.empty()) throw incomplete(*partial.front(), env);

  LaunchContext chosen = complete.empty() ? LaunchContext() : complete.front();
  for (size_t i = 1; i < complete.size(); ++i) {
    const LaunchContext& other = complete[i];
    if (other.rank == chosen.rank && other.world_size == chosen.world_size) continue;
    if (!contains(other, chosen, env)) throw disagreement(chosen, other);
    chosen.notes.push_back(fmt::format("Around it and not used: {}", other.description()));
  }
  for (const Contract* c : partial) {
    chosen.notes.push_back(fmt::format(
        "Left over and not used: {} ({} without {})", fmt::join(pick(*c, env, true), ", "),
        launcher_name(c->launcher), fmt::join(pick(*c, env, false), ", ")));
  }
  note_batch_script(env, &chosen.notes);
  return chosen;
}

}  // namespace

LaunchContext resolve_launch(const Environment& env, const DistConfig& config) {
  LaunchContext context;
  if (read_explicit(config, &context)) {
    context.pmi = has(env, "PMIX_NAMESPACE") || has(env, "PMI_RANK");
    for (const Contract& c : contracts()) {
      if (!begun(c, env)) continue;
      context.notes.push_back(fmt::format("Not used, the dist keys count: {} ({})",
                                          fmt::join(pick(c, env, true), ", "),
                                          launcher_name(c.launcher)));
    }
  } else {
    context = resolve_contracts(env);
  }
  launch_values::read_endpoint(env, config, &context);
  launch_values::read_job(env, &context);
  return context;
}

}  // namespace heddle
