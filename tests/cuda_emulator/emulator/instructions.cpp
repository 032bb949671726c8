// Shuffles, votes, matrix fragments, asynchronous copies and atomics. Fragment layouts are those of
// the PTX ISA for m16n8k16: with g = lane / 4, t = lane % 4,
//   A register i, half h: row g + 8 (i & 1),  column 2 t + h + 8 (i >> 1)
//   B register i, half h: row 2 t + h + 8 i,  column g
//   D register i:         row g + 8 (i >> 1), column 2 t + (i & 1)
#include <cstring>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "internal.h"

namespace heddle::emulator {
namespace {

template <class T>
T& of(void* const* arguments, unsigned lane) {
  return *static_cast<T*>(arguments[lane]);
}
template <class F>
void for_lanes(uint32_t lanes, F&& f) {
  for (unsigned l = 0; l < kWarp; ++l) {
    if (lanes >> l & 1u) f(l);
  }
}

void need_whole_warp(uint32_t lanes, const Place& place) {
  if (lanes == ~0u) return;
  machine().fail(FaultKind::kDivergentCollective, "needs all 32 lanes of a warp", place);
}

struct ShuffleArguments {
  uint64_t value;
  unsigned source;
  uint64_t result;
  Place place;
};

struct BallotArguments {
  bool predicate;
  uint32_t result;
};

struct LoadArguments {
  uint32_t* registers;
  const unsigned char* row;
  bool transposed;
  Place place;
};

struct ProductArguments {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  Half type;
  Place place;
};

float half_of(uint32_t pair, unsigned which, Half type) {
  const auto bits = static_cast<uint16_t>(which ? pair >> 16 : pair);
  return type == Half::kBf16 ? __bfloat162float({bits}) : __half2float({bits});
}

void execute_loads(void* const* arguments, uint32_t lanes) {
  const Place place = of<LoadArguments>(arguments, 0).place;
  need_whole_warp(lanes, place);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    uint16_t values[8][8];
    for (unsigned r = 0; r < 8; ++r) {
      std::memcpy(values[r], of<LoadArguments>(arguments, matrix * 8 + r).row, 16);
    }
    for (unsigned l = 0; l < kWarp; ++l) {
      LoadArguments& mine = of<LoadArguments>(arguments, l);
      const unsigned g = l / 4, t = l % 4;
      const bool turn = mine.transposed;
      const uint32_t low = turn ? values[2 * t][g] : values[g][2 * t];
      const uint32_t high = turn ? values[2 * t + 1][g] : values[g][2 * t + 1];
      mine.registers[matrix] = low | high << 16;
    }
  }
}

void execute_product(void* const* arguments, uint32_t lanes) {
  const Place place = of<ProductArguments>(arguments, 0).place;
  need_whole_warp(lanes, place);
  const Half type = of<ProductArguments>(arguments, 0).type;
  float a[16][16], b[8][16];  // b: [column][row]
  for (unsigned l = 0; l < kWarp; ++l) {
    const ProductArguments& mine = of<ProductArguments>(arguments, l);
    const unsigned g = l / 4, t = l % 4;
    for (unsigned h = 0; h < 2; ++h) {
      for (unsigned i = 0; i < 4; ++i) {
        a[g + 8 * (i & 1)][2 * t + h + 8 * (i >> 1)] = half_of(mine.a[i], h, type);
      }
      for (unsigned i = 0; i < 2; ++i) b[g][2 * t + h + 8 * i] = half_of(mine.b[i], h, type);
    }
  }
  for (unsigned l = 0; l < kWarp; ++l) {
    ProductArguments& mine = of<ProductArguments>(arguments, l);
    const unsigned g = l / 4, t = l % 4;
    for (unsigned i = 0; i < 4; ++i) {
      const float* row = a[g + 8 * (i >> 1)];
      const float* column = b[2 * t + (i & 1)];
      float sum = 0.0f;
      for (unsigned k = 0; k < 16; ++k) sum += row[k] * column[k];
      mine.d[i] += sum;
    }
  }
  ++machine().counters.matrix_products;
}

template <class T, class F>
T atomic(T* address, Location where, F&& update) {
  machine().access(address, sizeof(T), Access::kAtomic, where);
  const T old = *address;
  *address = update(old);
  return old;
}

void land_oldest(Thread& thread) {
  for (const AsyncCopy& copy : thread.groups.front()) machine().shared.land(thread, copy);
  thread.groups.pop_front();
}

}  // namespace

uint64_t shuffle(uint32_t mask, uint64_t value, unsigned source, Location where) {
  ShuffleArguments arguments{value, source, 0, where};
  machine().meet({mask,
                  [](void* const* all, uint32_t lanes) {
                    for_lanes(lanes, [&](unsigned l) {
                      auto& mine = of<ShuffleArguments>(all, l);
                      if (mine.source >= kWarp || !(lanes >> mine.source & 1u)) {
                        machine().fail(FaultKind::kDivergentCollective,
                                       "reads lane " + std::to_string(mine.source) +
                                           ", which does not take part",
                                       mine.place);
                      }
                      mine.result = of<ShuffleArguments>(all, mine.source).value;
                    });
                  },
                  &arguments, where});
  return arguments.result;
}

uint32_t ballot(uint32_t mask, bool predicate, Location where) {
  BallotArguments arguments{predicate, 0};
  machine().meet({mask,
                  [](void* const* all, uint32_t lanes) {
                    uint32_t votes = 0;
                    for_lanes(lanes, [&](unsigned l) {
                      if (of<BallotArguments>(all, l).predicate) votes |= 1u << l;
                    });
                    for_lanes(lanes, [&](unsigned l) {
                      of<BallotArguments>(all, l).result = votes;
                    });
                  },
                  &arguments, where});
  return arguments.result;
}

void ldmatrix(uint32_t registers[4], const void* row, bool transposed, Location where) {
  if (!machine().shared.contains(row)) {
    machine().fail(FaultKind::kOutOfBounds, "ldmatrix reads a row outside of shared memory", where);
  }
  machine().access(row, 16, Access::kRead, where);
  LoadArguments arguments{registers, static_cast<const unsigned char*>(row), transposed, where};
  machine().meet({~0u, execute_loads, &arguments, where});
}

void mma(float d[4], const uint32_t a[4], const uint32_t b[2], Half type, Location where) {
  ProductArguments arguments{d, a, b, type, where};
  machine().meet({~0u, execute_product, &arguments, where});
}

void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, Location where) {
  Machine& m = machine();
  if (!m.shared.contains(shared)) {
    m.fail(FaultKind::kOutOfBounds, "cp.async writes outside of shared memory", where);
  }
  if (m.shared.contains(global)) {
    m.fail(FaultKind::kOutOfBounds, "cp.async reads shared memory", where);
  }
  if (valid > bytes || (bytes != 4 && bytes != 8 && bytes != 16)) {
    m.fail(FaultKind::kOutOfBounds, "cp.async copies 4, 8 or 16 bytes", where);
  }
  if (reinterpret_cast<uintptr_t>(global) % bytes != 0) {
    m.fail(FaultKind::kMisaligned,
           "cp.async reads " + std::to_string(bytes) + " bytes at an address that is no multiple",
           where);
  }
  for (unsigned n = 0; n < valid; n += 2) {  // what is not valid is not read
    m.access(static_cast<const unsigned char*>(global) + n, 2, Access::kRead, where);
  }
  const AsyncCopy copy{static_cast<unsigned char*>(shared),
                       static_cast<const unsigned char*>(global), bytes, valid, where};
  m.shared.begin_copy(*current, copy);
  current->open.push_back(copy);
}

void commit_async(Location) {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void wait_async(unsigned newest_left, Location) {
  while (current->groups.size() > newest_left) land_oldest(*current);
}

float atomic_add(float* address, float value, Location where) {
  return atomic(address, where, [&](float old) { return old + value; });
}
unsigned atomic_add(unsigned* address, unsigned value, Location where) {
  return atomic(address, where, [&](unsigned old) { return old + value; });
}
int atomic_add(int* address, int value, Location where) {
  return atomic(address, where, [&](int old) { return old + value; });
}
int atomic_max(int* address, int value, Location where) {
  return atomic(address, where, [&](int old) { return old > value ? old : value; });
}

}  // namespace heddle::emulator
