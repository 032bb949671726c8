#include "framework/train/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "framework/attention/catalog.h"
#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/comm/threads.h"
#include "framework/config/check.h"
#include "framework/config/dump.h"
#include "framework/core/error.h"
#include "framework/core/json.h"
#include "framework/core/log.h"
#include "framework/core/parallel_for.h"
#include "framework/core/version.h"
#include "framework/device/make_device.h"
#include "framework/train/fault.h"

namespace heddle {
namespace {

void choose_threads(const Config& config, Communicator& comm) {
  const ThreadBudget budget = default_threads(comm);
  const int threads =
      config.train.threads > 0 ? static_cast<int>(config.train.threads) : budget.threads;
  set_num_threads(threads);
  if (!budget.warning.empty() && comm.local_rank() == 0) log::warn("{}", budget.warning);
  if (threads > budget.processors && comm.local_rank() == 0) {
    log::warn("train.threads is {} but this rank may run on {} processors only", threads,
              budget.processors);
  }
}

// What keeps a rank from computing on CUDA: nothing, an error, or why device.kind: auto means its
// CPU (code 0).
json::array find_cuda(Run& run) {
  try {
    std::string note;
    run.device =
        make_device(run.config.device, run.comm->local_rank(), run.comm->local_size(), &note);
    if (run.device->type() != DeviceType::kCuda) return {0, "cuda", note, ""};
    run.device->check_links();
    return {};
  } catch (const Error& e) {
    return {static_cast<int>(e.code()), e.area(), e.message(), e.remedy()};
  }
}

// Several ranks compute on CUDA, a device each, or none does. Returns why they do not.
std::string choose_common_device(Run& run) {
  const bool must = run.config.device.kind == "cuda" || run.config.device.precision == "bf16";
  const std::vector<std::string> answers =
      run.comm->all_gather_strings(json::serialize(find_cuda(run)));
  bool some = false, all = true;
  std::string why;
  for (size_t r = 0; r < answers.size(); ++r) {
    const json::value answer = json::parse(answers[r]);
    const json::array& a = answer.as_array();
    some = some || a.empty();
    if (a.empty()) continue;
    all = false;
    const auto text = [&](size_t i) { return std::string(a.at(i).as_string()); };
    const std::string message = fmt::format("rank {}: {}", r, text(2));
    if (must) {
      throw Error(static_cast<ExitCode>(a.at(0).to_number<int>()), text(1), message, text(3));
    }
    if (why.empty() && !text(2).empty()) why = message;
  }
  if (all) return {};
  run.device = make_cpu_device();
  return why.empty() && some ? "some ranks have no CUDA" : why;
}

void choose_device(Run& run) {
  const std::string& backend = run.config.dist.backend;
  const bool alone = run.comm->world_size() == 1;
  std::string note;
  if (alone) {
    run.device = make_device(run.config.device, 0, 1, &note);
  } else if (backend == "auto" || backend == "nccl") {
    note = choose_common_device(run);
  } else if (run.config.device.kind == "cuda") {
    throw config_error(
        fmt::format("dist.backend {} moves memory of the host, and device.kind is cuda", backend),
        "set dist.backend: auto or nccl");
  } else {
    run.device = make_cpu_device();
  }
  if (!note.empty() && run.chief()) log::warn("training on the CPU: {}", note);
  const bool cuda = run.device->type() == DeviceType::kCuda;
  if (backend == "nccl" && !cuda) {
    throw config_error("dist.backend nccl moves memory of CUDA devices, and this run computes on " +
                           run.device->description(),
                       "set dist.backend: auto, or device.kind: cuda");
  }
  if (cuda && !alone) {
    run.comm = make_nccl_communicator(std::move(run.comm), run.rendezvous, *run.device);
  }
}

void choose_attention(Run& run) {
  run.attention = AttentionHost::create(run.config.attention, *run.device);
  run.attention->select(attention_kinds(run.spec), std::max<int64_t>(run.batch.micro_batch, 1),
                        run.spec.sequence_len, attention_layout(run.spec));
  require_agreement(*run.comm, "attention plugins", run.attention->fingerprint());
}

std::unique_ptr<Dataset> open(const Config& config) {
  return open_dataset(config.data, config.model.sequence_len, config.model.vocab_size);
}

void open_data(Run& run) {
  // The first rank of each host builds the token cache, the others then find it.
  if (run.comm->local_rank() == 0) {
    run.dataset = open(run.config);
  }
  run.comm->barrier();
  if (!run.dataset) run.dataset = open(run.config);
  require_agreement(*run.comm, "data", run.dataset->fingerprint());
}

}  // namespace

ShardOptions shard_options(const Config& config, int world_size) {
  ShardOptions options;
  options.level = world_size == 1 ? ShardLevel::kNone : parse_shard_level(config.dist.shard);
  options.reproducible = config.train.reproducible;
  options.micro_steps =
      plan_batch(config.train, config.model.sequence_len, 0, world_size).micro_steps();
  return options;
}

void require_agreement(Communicator& comm, const std::string& what, const std::string& text) {
  const std::vector<std::string> all = comm.all_gather_strings(text);
  std::vector<int> differ;
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) differ.push_back(static_cast<int>(r));
  }
  if (differ.empty()) return;
  const auto other = static_cast<size_t>(differ.front());
  throw comm_error(
      fmt::format("ranks disagree on {}: rank 0 has\n{}\nrank {} has\n{}\n(differing ranks: {})",
                  what, all[0], differ.front(), all[other], fmt::join(differ, ", ")),
      "start every rank with the same binary, configuration file, plugins and data");
}

std::string from_first_rank(Communicator& comm, const std::function<std::string()>& body) {
  std::string told;
  if (comm.rank() == 0) {
    json::object answer;
    try {
      answer = {{"text", body()}};
    } catch (const Error& e) {
      answer = {{"code", static_cast<int>(e.code())},
                {"area", e.area()},
                {"message", e.message()},
                {"remedy", e.remedy()}};
    }
    told = json::serialize(answer);
  }
  comm.broadcast(&told, 0);
  boost::json::parse_options any_path;
  any_path.allow_invalid_utf8 = true;
  const json::value answer = json::parse(told, {}, any_path);
  const auto text = [&](const char* key) { return std::string(answer.at(key).as_string()); };
  if (answer.as_object().contains("text")) return text("text");
  throw Error(static_cast<ExitCode>(answer.at("code").to_number<int>()), text("area"),
              text("message"), text("remedy"));
}

void open_run(const Config& config, const LaunchContext& launch, Watchdog& watchdog, Run* result) {
  Run& run = *result;
  run.config = config;
  run.launch = launch;
  // MPI may not be running when a plugin is tried out in a fresh process; the answers are kept.
  make_plugin_catalog(config.attention);
  Ranks ranks = connect_ranks(config.dist, run.launch);
  run.rendezvous = std::move(ranks.rendezvous);
  run.comm = std::move(ranks.comm);
  log::set_rank(run.comm->rank(), run.comm->world_size());
  if (run.rendezvous) watchdog.join(run.rendezvous);
  fault(FaultPoint::kInit, 0);
  Config shared = config;
  shared.dist = without_place(config.dist);
  require_agreement(*run.comm, "version and configuration",
                    fmt::format("heddle {}\n{}", kVersion, dump_config(shared)));
  choose_threads(config, *run.comm);
  choose_device(run);
  run.batch =
      plan_batch(config.train, config.model.sequence_len, run.comm->rank(), run.comm->world_size());
  if (run.batch.global_sequences < run.comm->world_size()) {
    throw config_error(
        fmt::format("train.total_batch_size {} is {} sequences of {} tokens, fewer than the {} "
                    "ranks",
                    config.train.total_batch_size, run.batch.global_sequences,
                    config.model.sequence_len, run.comm->world_size()),
        "raise train.total_batch_size or start fewer ranks");
  }
  const DataVocabulary vocabulary = data_vocabulary(config.data);
  check_vocab(config, vocabulary.vocab_size.value_or(0), vocabulary.tokenizer->name());
  run.spec = resolve_model(config.model, vocabulary.vocab_size.value_or(0));
  // A backend that the user named and that cannot serve is refused before any data is read.
  choose_attention(run);
  open_data(run);
}

}  // namespace heddle
