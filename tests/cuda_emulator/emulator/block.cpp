// Threads of a block as fibers: barriers, meetings of lanes, the order in which they run.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "cuda_runtime.h"
#include "internal.h"

namespace heddle::emulator {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

thread_local Thread* current [[gnu::tls_model("initial-exec")]] = nullptr;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kStackSlot = kStackBytes + kPage;  // below each stack a page without access

char* map_stacks() {
  void* base = ::mmap(nullptr, kStackSlot * kMostThreads, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  for (unsigned n = 0; n < kMostThreads; ++n) {
    ::mprotect(static_cast<char*>(base) + n * kStackSlot, kPage, PROT_NONE);
  }
  return static_cast<char*>(base);
}

Index3 unflatten(unsigned n, Index3 size) {
  return {n % size.x, n / size.x % size.y, n / size.x / size.y};
}

std::string lanes_text(uint32_t lanes) {
  char text[40];
  std::snprintf(text, sizeof text, "lanes 0x%08x", lanes);
  return text;
}

}  // namespace

void Clocks::start(unsigned warps, uint32_t first) {
  base = first;
  for (unsigned w = 0; w < warps; ++w) {
    tick[w] = first;
    std::fill(seen[w], seen[w] + warps, first - 1);
  }
}

void Clocks::join(const std::vector<unsigned>& warps) {
  uint32_t joined[kMostWarps] = {};
  for (const unsigned w : warps) {
    for (unsigned u = 0; u < kMostWarps; ++u) joined[u] = std::max(joined[u], seen[w][u]);
  }
  for (const unsigned w : warps) joined[w] = tick[w];
  for (const unsigned w : warps) {
    std::copy(joined, joined + kMostWarps, seen[w]);
    ++tick[w];
  }
}

int Machine::run(const Launch& launch) {
  launch_ = &launch;
  failed_ = false;
  ++counters.launches;
  launch_serial_ = block_serial_ + 1;
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  random_.seed(seed);
  // A permutation of any number of blocks without a table: n * odd + shift, modulo a power of two.
  uint64_t room = 1;
  while (room < blocks) room *= 2;
  const uint64_t factor = seed == 0 ? 1 : random_() | 1, shift = seed == 0 ? 0 : random_();
  for (uint64_t n = 0; n < room && !failed_; ++n) {
    const uint64_t at = (n * factor + shift) & (room - 1);
    if (at >= blocks) continue;
    block_index_ = {static_cast<unsigned>(at % launch.grid.x),
                    static_cast<unsigned>(at / launch.grid.x % launch.grid.y),
                    static_cast<unsigned>(at / launch.grid.x / launch.grid.y)};
    run_block();
  }
  current = nullptr;
  return failed_ ? cudaErrorLaunchFailure : cudaSuccess;
}

void Machine::run_block() {
  ++counters.blocks;
  ++block_serial_;
  start_threads();
  while (alive_ > 0 && !failed_) {
    if (!run_ready_warp()) report_deadlock();
  }
  for (const Thread& t : threads_) last_tick_ = std::max(last_tick_, clocks_.tick[t.warp]);
}

void Machine::start_threads() {
  if (!stacks_) stacks_ = map_stacks();
  const Index3 size = launch_->block;
  const unsigned count = size.x * size.y * size.z, warps = (count + kWarp - 1) / kWarp;
  if (threads_.size() != count) threads_ = std::vector<Thread>(count);
  for (unsigned n = 0; n < count; ++n) {
    Thread& t = threads_[n];
    t.index = unflatten(n, size);
    t.number = n, t.lane = n % kWarp, t.warp = n / kWarp;
    t.state = State::kReady;
    t.open.clear();
    t.groups.clear();
    t.context = make_fcontext(stacks_ + (n + 1) * kStackSlot, kStackBytes, &Machine::enter);
  }
  alive_ = count;
  done_ = 0;
  std::fill(std::begin(barriers_), std::end(barriers_), Waiting{});
  if (last_tick_ > (1u << 30)) last_tick_ = 0;
  clocks_.start(warps, last_tick_ + 1);
  shared.start(launch_->shared_bytes, warps, clocks_);
}

void Machine::enter(transfer_t from) {
  Machine& m = machine();
  m.scheduler_ = from.fctx;
  m.launch_->invoke(m.launch_->arguments);
  m.finish(*current);
}

void Machine::finish(Thread& thread) {
  check_finish(thread);
  thread.state = State::kDone;
  --alive_;
  ++done_;
  // Lanes that wait for this one wait no longer.
  if (unsigned lanes = lanes_of(thread.warp); lanes != 0) {
    for (unsigned l = 0; l < kWarp; ++l) {
      if (!(lanes >> l & 1u)) continue;
      Thread& other = threads_[thread.warp * kWarp + l];
      if (other.state == State::kMeeting && (other.meeting.mask >> thread.lane & 1u)) {
        fail(FaultKind::kDivergentCollective,
             "ends although lane " + std::to_string(l) + " waits for it at " +
                 text_of(other.meeting.place),
             {});
      }
    }
  }
  suspend();
}

void Machine::check_finish(const Thread& thread) {
  const AsyncCopy* lost = thread.open.empty() ? nullptr : &thread.open.front();
  for (const std::vector<AsyncCopy>& group : thread.groups) {
    if (!group.empty()) lost = &group.front();
  }
  if (lost) fail(FaultKind::kLostCopy, "ends with a cp.async that nobody waited for", lost->place);
  for (const Thread& other : threads_) {
    if (other.state != State::kAtBarrier || barriers_[other.barrier_id].count != 0) continue;
    fail(FaultKind::kDivergentBarrier,
         "ends although thread " + std::to_string(other.number) + " waits at the barrier of " +
             text_of(other.waits_at),
         {});
  }
}

void Machine::suspend() {
  scheduler_ = jump_fcontext(scheduler_, nullptr).fctx;
}

void Machine::resume(Thread& thread) {
  current = &thread;
  thread.context = jump_fcontext(thread.context, nullptr).fctx;
  current = nullptr;
}

unsigned Machine::lanes_of(unsigned warp) const {
  unsigned lanes = 0;
  for (unsigned l = 0; l < kWarp && warp * kWarp + l < threads_.size(); ++l) {
    if (threads_[warp * kWarp + l].state != State::kDone) lanes |= 1u << l;
  }
  return lanes;
}

// Runs every ready lane of one warp until it waits. False when no thread is ready.
bool Machine::run_ready_warp() {
  const auto warps = static_cast<unsigned>((threads_.size() + kWarp - 1) / kWarp);
  const unsigned first_warp = seed == 0 ? 0 : static_cast<unsigned>(random_() % warps);
  const unsigned first_lane = seed == 0 ? 0 : static_cast<unsigned>(random_() % kWarp);
  for (unsigned i = 0; i < warps; ++i) {
    const unsigned w = (first_warp + i) % warps;
    bool any = false;
    for (unsigned j = 0; j < kWarp && !failed_; ++j) {
      const unsigned n = w * kWarp + (first_lane + j) % kWarp;
      if (n >= threads_.size() || threads_[n].state != State::kReady) continue;
      any = true;
      resume(threads_[n]);
    }
    if (any) return true;
  }
  return false;
}

void Machine::wait_at_barrier(unsigned id, unsigned count, const Place& place) {
  Thread& self = *current;
  if (id > 15) fail(FaultKind::kDivergentBarrier, "barrier ids lie in 0..15", place);
  if (count == 0 && done_ > 0) {
    fail(FaultKind::kDivergentBarrier, "waits although threads of its block have ended", place);
  }
  Waiting& barrier = barriers_[id];
  if (barrier.arrived > 0 && barrier.count != count) {
    fail(FaultKind::kDivergentBarrier, "waits for another number of threads than others", place);
  }
  for (const Thread& other : threads_) {
    if (count != 0 || other.state != State::kAtBarrier || other.barrier_id != id) continue;
    if (other.waits_at == place) break;
    fail(FaultKind::kDivergentBarrier,
         "waits here, thread " + std::to_string(other.number) + " at the barrier of " +
             text_of(other.waits_at),
         place);
  }
  self.state = State::kAtBarrier;
  self.barrier_id = id;
  self.waits_at = place;
  barrier.count = count;
  ++barrier.arrived;
  if (barrier.arrived == (count == 0 ? alive_ : count)) {
    release_barrier(id);
    return;
  }
  suspend();
}

void Machine::release_barrier(unsigned id) {
  std::vector<unsigned> warps;
  for (Thread& t : threads_) {
    if (t.state != State::kAtBarrier || t.barrier_id != id) continue;
    t.state = State::kReady;
    if (warps.empty() || warps.back() != t.warp) warps.push_back(t.warp);
  }
  barriers_[id] = {};
  clocks_.join(warps);
}

void Machine::meet(const Meeting& meeting) {
  Thread& self = *current;
  if (!(meeting.mask >> self.lane & 1u)) {
    fail(FaultKind::kDivergentCollective, "its mask does not name the calling lane", meeting.place);
  }
  const unsigned lanes = lanes_of(self.warp);
  const size_t in_warp = std::min<size_t>(threads_.size() - self.warp * kWarp, kWarp);
  const unsigned born = in_warp == kWarp ? ~0u : (1u << in_warp) - 1;
  if ((meeting.mask & born & ~lanes) != 0) {
    fail(FaultKind::kDivergentCollective,
         "its mask names " + lanes_text(meeting.mask & born & ~lanes) + ", which have ended",
         meeting.place);
  }
  self.meeting = meeting;
  self.state = State::kMeeting;
  unsigned here = 0;
  for (unsigned l = 0; l < kWarp; ++l) {
    if (!(meeting.mask & lanes & (1u << l))) continue;
    const Thread& other = threads_[self.warp * kWarp + l];
    if (other.state != State::kMeeting) continue;
    here |= 1u << l;
    const Meeting& theirs = other.meeting;
    if (theirs.place == meeting.place && theirs.mask == meeting.mask &&
        theirs.execute == meeting.execute) {
      continue;
    }
    fail(FaultKind::kDivergentCollective,
         "meets here, lane " + std::to_string(l) + " at " + text_of(theirs.place), meeting.place);
  }
  if (here != (meeting.mask & lanes)) return suspend();
  void* arguments[kWarp] = {};
  for (unsigned l = 0; l < kWarp; ++l) {
    if (here >> l & 1u) arguments[l] = threads_[self.warp * kWarp + l].meeting.arguments;
  }
  meeting.execute(arguments, here);
  for (unsigned l = 0; l < kWarp; ++l) {
    if (here >> l & 1u) threads_[self.warp * kWarp + l].state = State::kReady;
  }
}

void Machine::sync_warp(uint32_t mask, const Place& place) {
  // Only this orders the memory accesses of lanes; other operations of a warp do not promise it.
  struct Order {
    Clocks* clocks;
    unsigned warp;
    bool whole;
  } order{&clocks_, current->warp, (lanes_of(current->warp) & ~mask) == 0};
  meet({mask,
        [](void* const* arguments, uint32_t lanes) {
          const auto& o = *static_cast<Order*>(arguments[__builtin_ctz(lanes)]);
          if (o.whole) ++o.clocks->tick[o.warp];
        },
        &order, place});
}

void Machine::access(const void* address, unsigned bytes, Access access, const Place& place) {
  if (shared.contains(address)) return shared.access(*current, address, bytes, access, place);
  if (device.contains(address)) {
    if (access == Access::kRead) counters.device_bytes_loaded += bytes;
    return device.access(*current, address, bytes, access, place, block_serial_, launch_serial_);
  }
  const auto* p = static_cast<const char*>(address);
  if (p >= stacks_ && p < stacks_ + kStackSlot * kMostThreads) return;
  const auto* arguments = static_cast<const char*>(launch_->arguments);
  if (p >= arguments && p < arguments + launch_->argument_bytes) return;
  if (host_memory_allowed) {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
      fail(FaultKind::kMisaligned, "address is not a multiple of " + std::to_string(bytes), place);
    }
    return;
  }
  if (function_at(address).empty()) {  // not a constant of the program either
    fail(FaultKind::kHostMemory,
         (access == Access::kRead ? "reads " : "writes ") + std::to_string(bytes) +
             " bytes that are not the device's",
         place);
  }
}

void Machine::fail(FaultKind kind, std::string what, const Place& place) {
  if (!failed_) fault = describe(kind, std::move(what), place, *current);
  failed_ = true;
  for (;;) suspend();  // never resumed: the launch is over
}

void Machine::report_deadlock() {
  std::string text;
  const Thread* first = nullptr;
  const Place* last = nullptr;
  for (const Thread& t : threads_) {
    if (t.state == State::kDone) continue;
    const Place& place = t.state == State::kMeeting ? t.meeting.place : t.waits_at;
    if (!first) first = &t;
    if (last && *last == place) continue;
    text += (text.empty() ? "thread " : "; thread ") + std::to_string(t.number) +
            (t.state == State::kMeeting ? " waits for its warp at " : " waits at the barrier of ") +
            text_of(place);
    last = &place;
  }
  const FaultKind kind = first->state == State::kMeeting ? FaultKind::kDivergentCollective
                                                         : FaultKind::kDivergentBarrier;
  fault = describe(kind, "nobody can go on: " + text, *last, *first);
  failed_ = true;
}

Machine& machine() {
  static auto& m = *new Machine;
  return m;
}

// ---- what kernels ask ----

Index3 thread_index() {
  return current->index;
}
Index3 block_index() {
  return machine().block_index();
}
Index3 block_size() {
  return machine().launch().block;
}
Index3 grid_size() {
  return machine().launch().grid;
}
unsigned char* dynamic_shared() {
  return machine().shared.data();
}
void barrier(unsigned id, unsigned count, Location where) {
  machine().wait_at_barrier(id, count, where);
}
void sync_warp(uint32_t mask, Location where) {
  machine().sync_warp(mask, where);
}
void touch(const void* address, unsigned bytes, bool write, Location where) {
  machine().access(address, bytes, write ? Access::kWrite : Access::kRead, where);
}

}  // namespace heddle::emulator
