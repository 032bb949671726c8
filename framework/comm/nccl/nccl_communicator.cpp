#include "framework/comm/nccl/nccl_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <type_traits>

#include "framework/comm/call_timer.h"
#include "framework/core/activity.h"
#include "framework/core/error.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

// The host looks often at first: what it waits for is mostly there in no time.
class Patience {
 public:
  explicit Patience(Seconds limit)
      : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(limit)) {}
  bool over() const { return Clock::now() > deadline_; }
  void pause() {
    if (++looks_ > 200) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  Clock::time_point deadline_;
  int looks_ = 0;
};

// The links of this process, for cut_device_links().
class OpenLinks {
 public:
  static OpenLinks& get() {
    static auto& links = *new OpenLinks;
    return links;
  }
  void add(std::shared_ptr<DeviceLink> link) {
    const std::lock_guard lock(mutex_);
    links_.insert(std::move(link));
  }
  void remove(const std::shared_ptr<DeviceLink>& link) {
    const std::lock_guard lock(mutex_);
    links_.erase(link);
  }
  std::vector<std::shared_ptr<DeviceLink>> all() {
    const std::lock_guard lock(mutex_);
    return {links_.begin(), links_.end()};
  }

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<DeviceLink>> links_;
};

// On a thread of its own, which is left behind when it does not come back: libraries have been seen
// to block in this call.
void abort_links(std::vector<std::shared_ptr<DeviceLink>> links, Seconds patience) noexcept {
  if (links.empty()) return;
  try {
    struct Shared {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
    };
    const auto shared = std::make_shared<Shared>();
    std::thread([links = std::move(links), shared] {
      for (const auto& link : links) link->abort();
      const std::lock_guard lock(shared->mutex);
      shared->done = true;
      shared->changed.notify_all();
    }).detach();
    std::unique_lock lock(shared->mutex);
    shared->changed.wait_for(lock, patience, [&] { return shared->done; });
  } catch (const std::exception&) {
    // The process ends without it.
  }
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<Rendezvous> rendezvous,
                   Device& device, std::shared_ptr<DeviceLink> link, int64_t scratch_bytes)
      : Communicator({host->rank(), host->world_size(), host->local_rank(), host->local_size()}),
        host_(std::move(host)),
        rendezvous_(std::move(rendezvous)),
        device_(device),
        link_(std::move(link)) {
    const int64_t peers = world_size() - 1;
    slot_bytes_ =
        std::max<int64_t>(scratch_bytes / peers, sizeof(double)) / sizeof(double) * sizeof(double);
    scratch_ = device_.allocate(static_cast<size_t>(slot_bytes_ * peers), "communication");
    OpenLinks::get().add(link_);
    device_.before_wait([this] { finish_awaited(); });
  }
  ~NcclCommunicator() override {
    device_.before_wait({});
    cut(Seconds(2.0));
  }

  std::string_view backend() const override { return "nccl"; }
  std::string description() const override {
    return fmt::format("nccl ({}) on {}, for the host {}", link_->description(), device_.identity(),
                       host_->description());
  }

  void broadcast(std::span<std::byte> data, int root) override {
    on_host("broadcast", [&] { host_->broadcast(data, root); });
  }
  void barrier() override {
    on_host("barrier", [&] { host_->barrier(); });
  }
  using Communicator::broadcast;

  void finish() override {
    barrier();
    link_->finish();
    settle("closing the devices' connections");
    OpenLinks::get().remove(link_);
    host_->finish();
  }

 protected:
  void start(int64_t ticket, Collective collective, Element element, std::byte* data,
             std::span<const int64_t> counts) override {
    if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 0) return;
    if (!device_.holds(data)) return start_on_host(collective, element, data, counts);
    const CallTimer timer(&counters_);
    retire();
    if (under_way_.empty()) flight_started_ = Clock::now();
    Operation op;
    op.ticket = ticket;
    op.name = collective == Collective::kReduceScatter ? "reduce_scatter" : "all_gather";
    op.mark = free_mark();
    const int64_t size = element_bytes(element);
    plan_offsets(counts);
    link_->follow_compute();
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    if (collective == Collective::kReduceScatter) {
      const int64_t step = slot_bytes_ / size;
      for (int64_t begin = 0; begin < longest; begin += step) {
        reduce_round(op.name, element, data, size, begin, step);
      }
    } else {
      gather(op.name, data, size);
    }
    link_->set_mark(op.mark);
    under_way_.push_back(op);
  }

  bool finished(int64_t ticket) override {
    if (under_way_.empty()) return true;
    const CallTimer timer(&counters_);
    busy();  // throws what has gone wrong meanwhile
    retire();
    return under_way_.empty() || under_way_.front().ticket > ticket;
  }

  void wait(int64_t ticket) override {
    const CallTimer timer(&counters_);
    retire();
    const Operation* last = nullptr;
    for (const Operation& op : under_way_) {
      if (op.ticket <= ticket) last = &op;
    }
    if (last == nullptr || last->ticket <= awaited_) return;
    link_->hold_compute(last->mark);
    awaited_ = last->ticket;
  }

 private:
  struct Operation {
    int64_t ticket = 0;
    const char* name = "";
    size_t mark = 0;
  };
  void plan_offsets(std::span<const int64_t> counts) {
    counts_.assign(counts.begin(), counts.end());
    offsets_.resize(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), offsets_.begin(), int64_t{0});
  }
  int64_t offset(int rank) const { return offsets_[static_cast<size_t>(rank)]; }
  int64_t count(int rank) const { return counts_[static_cast<size_t>(rank)]; }

  // Elements [begin, begin + step) of every piece go to its owner, which adds them up.
  void reduce_round(const char* name, Element element, std::byte* data, int64_t size, int64_t begin,
                    int64_t step) {
    sends_.clear();
    receives_.clear();
    const auto length = [&](int r) { return std::clamp<int64_t>(count(r) - begin, 0, step); };
    auto* scratch = static_cast<std::byte*>(scratch_.get());
    const int64_t own = length(rank());
    for (int i = 1; i < world_size(); ++i) {
      const int to = (rank() + i) % world_size();
      const int from = (rank() + world_size() - i) % world_size();
      add_message(&sends_, data + (offset(to) + begin) * size, length(to) * size, to);
      add_message(&receives_, scratch + (from < rank() ? from : from - 1) * slot_bytes_, own * size,
                  from);
    }
    exchange(name);
    std::byte* at = data + (offset(rank()) + begin) * size;
    if (own == 0) return;
    if (element == Element::kFloat) {
      link_->sum_in_rank_order(reinterpret_cast<float*>(at), reinterpret_cast<float*>(scratch),
                               slot_bytes_ / size, own);
    } else {
      link_->sum_in_rank_order(reinterpret_cast<double*>(at), reinterpret_cast<double*>(scratch),
                               slot_bytes_ / size, own);
    }
  }

  void gather(const char* name, std::byte* data, int64_t size) {
    sends_.clear();
    receives_.clear();
    for (int i = 1; i < world_size(); ++i) {
      const int to = (rank() + i) % world_size();
      const int from = (rank() + world_size() - i) % world_size();
      add_message(&sends_, data + offset(rank()) * size, count(rank()) * size, to);
      add_message(&receives_, data + offset(from) * size, count(from) * size, from);
    }
    exchange(name);
  }

  static void add_message(std::vector<LinkMessage>* list, std::byte* data, int64_t bytes,
                          int peer) {
    if (bytes > 0) list->push_back({data, bytes, peer});
  }

  void exchange(const char* name) {
    if (sends_.empty() && receives_.empty()) return;
    for (const LinkMessage& m : sends_) counters_.bytes_sent += m.bytes;
    guarded([&] { link_->exchange(sends_, receives_); });
    settle(name);
  }

  // An error leaves nothing behind that waits: memory in use cannot be freed before it is over.
  template <class Body>
  std::invoke_result_t<Body> guarded(Body&& body) {
    try {
      return body();
    } catch (const Error&) {
      cut(Seconds(2.0));
      throw;
    }
  }
  bool busy() {
    return guarded([&] { return link_->busy(); });
  }

  // Until the library has done on the host what it was asked for.
  void settle(const char* name) {
    if (!busy()) return;
    const activity::CollectiveScope scope(name, started());
    Patience patience(limit());
    while (busy()) {
      if (patience.over()) give_up(name, started());
      patience.pause();
    }
  }

  // What the compute stream waits for is over: the host can wait for that stream.
  void finish_awaited() {
    if (awaited_ <= over_) return;
    const CallTimer timer(&counters_);
    finish_on_device(awaited_);
  }

  void finish_on_device(int64_t ticket) {
    retire();
    Patience patience(limit());
    while (!under_way_.empty() && under_way_.front().ticket <= ticket) {
      const Operation op = under_way_.front();
      const activity::CollectiveScope scope(op.name, op.ticket);
      while (!under_way_.empty() && under_way_.front().ticket == op.ticket) {
        busy();  // throws what has gone wrong meanwhile
        if (patience.over()) give_up(op.name, op.ticket);
        patience.pause();
        retire();
      }
    }
  }

  void retire() {
    while (!under_way_.empty() && link_->passed(under_way_.front().mark)) {
      over_ = under_way_.front().ticket;
      free_marks_.push_back(under_way_.front().mark);
      under_way_.pop_front();
      if (under_way_.empty()) counters_.seconds_in_flight += seconds_since(flight_started_);
    }
  }

  size_t free_mark() {
    if (free_marks_.empty()) return marks_++;
    const size_t mark = free_marks_.back();
    free_marks_.pop_back();
    return mark;
  }

  // A host operation keeps its place behind those of the device.
  template <class Body>
  void on_host(const char* name, Body&& body) {
    const CallTimer timer(&counters_);
    finish_on_device(started());
    const activity::CollectiveScope scope(name, started());
    const int64_t before = host_->counters().bytes_sent;
    body();
    counters_.bytes_sent += host_->counters().bytes_sent - before;
  }

  template <class T>
  void run_on_host(Collective collective, std::byte* data, std::span<const int64_t> counts) {
    const std::span<T> all(
        reinterpret_cast<T*>(data),
        static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
    if (collective == Collective::kAllGather) {
      host_->all_gather(all, counts);
    } else if constexpr (!std::is_same_v<T, std::byte>) {
      host_->reduce_scatter_sum(all, counts);
    }
  }
  void start_on_host(Collective collective, Element element, std::byte* data,
                     std::span<const int64_t> counts) {
    on_host(collective == Collective::kReduceScatter ? "reduce_scatter" : "all_gather", [&] {
      switch (element) {
        case Element::kByte:
          return run_on_host<std::byte>(collective, data, counts);
        case Element::kFloat:
          return run_on_host<float>(collective, data, counts);
        case Element::kDouble:
          return run_on_host<double>(collective, data, counts);
      }
    });
  }

  Seconds limit() const { return rendezvous_->data_timeout(); }
  [[noreturn]] void give_up(const char* name, int64_t number) {
    cut(Seconds(2.0));
    throw comm_error(
        fmt::format("{} #{} between the devices was not over after {:g} s (rank {} of {})", name,
                    number, limit().count(), rank(), world_size()),
        "See what the other ranks say, run with NCCL_DEBUG=INFO, or raise dist.timeout_s");
  }
  void cut(Seconds patience) noexcept {
    abort_links({link_}, patience);
    OpenLinks::get().remove(link_);
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Rendezvous> rendezvous_;
  Device& device_;
  std::shared_ptr<DeviceLink> link_;
  int64_t slot_bytes_ = 0;  // scratch for one peer
  DeviceBuffer scratch_;
  std::vector<int64_t> counts_, offsets_;  // of the operation that is being started, in elements
  std::vector<LinkMessage> sends_, receives_;
  std::deque<Operation> under_way_;
  std::vector<size_t> free_marks_;
  size_t marks_ = 0;
  int64_t over_ = 0, awaited_ = 0;  // tickets: the last finished, the last that compute waits for
  Clock::time_point flight_started_;
};

// What a rank tells the others before the devices are connected.
struct Introduction {
  std::string identity, description, problem, remedy;
};

Introduction introduce(const Device& device) {
  Introduction own{device.identity(), device.description(), {}, {}};
  try {
    device.check_links();
  } catch (const Error& e) {
    own.problem = e.message();
    own.remedy = e.remedy();
  }
  return own;
}

std::vector<Introduction> gather_introductions(Communicator& host, const Introduction& own) {
  const std::string text =
      json::serialize(json::array{own.identity, own.description, own.problem, own.remedy});
  std::vector<Introduction> all;
  for (const std::string& line : host.all_gather_strings(text)) {
    const json::value v = json::parse(line);
    const auto part = [&](size_t i) { return std::string(v.as_array().at(i).as_string()); };
    all.push_back({part(0), part(1), part(2), part(3)});
  }
  return all;
}

// The same verdict on all ranks.
void check_introductions(const std::vector<Introduction>& all) {
  std::map<std::string, size_t> owner;
  for (size_t r = 0; r < all.size(); ++r) {
    if (!all[r].problem.empty()) {
      throw environment_error("nccl", fmt::format("rank {}: {}", r, all[r].problem), all[r].remedy);
    }
    owner.emplace(all[r].identity, r);
  }
  if (owner.size() == all.size()) return;
  for (size_t r = 0; r < all.size(); ++r) {
    const size_t first = owner.at(all[r].identity);
    if (first == r) continue;
    throw environment_error(
        "nccl",
        fmt::format("ranks {} and {} have the same device {} ({}): {} ranks use {} devices", first,
                    r, all[r].identity, all[r].description, all.size(), owner.size()),
        "start at most one rank per device, and let the launcher show each rank its own "
        "(CUDA_VISIBLE_DEVICES) or all ranks all of them");
  }
}

std::string agree_on_id(Rendezvous& rendezvous, const std::string& group, Device& device) {
  if (rendezvous.rank() == 0) rendezvous.store().set(group + "/id", device.make_link_id());
  return rendezvous.store().wait(group + "/id", rendezvous.timeout());
}

std::string ranks_missing(Rendezvous& rendezvous, const std::string& prefix) {
  const auto there = rendezvous.store().scan(prefix);
  std::vector<int> missing;
  for (int r = 0; r < rendezvous.world_size(); ++r) {
    if (!there.contains(prefix + std::to_string(r))) missing.push_back(r);
  }
  return missing.empty() ? "none" : fmt::format("{}", fmt::join(missing, ", "));
}

std::shared_ptr<DeviceLink> connect(Rendezvous& rendezvous, Device& device) {
  const std::string group = rendezvous.next_group();
  const std::string id = agree_on_id(rendezvous, group, device);
  const std::string own = std::to_string(rendezvous.rank());
  std::shared_ptr<DeviceLink> link = device.connect(id, rendezvous.rank(), rendezvous.world_size());
  Patience patience(rendezvous.timeout());
  while (link->busy()) {
    if (patience.over()) {
      const std::string missing = ranks_missing(rendezvous, group + "/up/");
      throw comm_error(
          fmt::format("NCCL did not connect the devices within {:g} s: ranks not connected: {} "
                      "(rank {} of {})",
                      rendezvous.timeout().count(), missing, rendezvous.rank(),
                      rendezvous.world_size()),
          "Run with NCCL_DEBUG=INFO; NCCL_SOCKET_IFNAME names the network that the hosts share");
    }
    patience.pause();
  }
  rendezvous.store().set(group + "/up/" + own, "1");
  return link;
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<Rendezvous> rendezvous,
                                                     Device& device, int64_t scratch_bytes) {
  HEDDLE_CHECK(host->world_size() > 1 && rendezvous, "a rank alone has nobody to talk to");
  check_introductions(gather_introductions(*host, introduce(device)));
  auto link = connect(*rendezvous, device);
  return std::make_unique<NcclCommunicator>(std::move(host), std::move(rendezvous), device,
                                            std::move(link), scratch_bytes);
}

void cut_device_links(Seconds patience) noexcept {
  abort_links(OpenLinks::get().all(), patience);
}

}  // namespace heddle
