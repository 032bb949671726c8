/* Right for the first LATER_CALLS forward calls of a process, then wrong in the way that
 * LATER_FAULT and LATER_FACTOR name: what a probe cannot find and attention.validate has to. With
 * FIXTURE_BAD_LEN it is calls of that q_len that go wrong, the first one already. */
#include <unistd.h>

static int calls;

__attribute__((unused)) static void write_where_the_last_call_did(void* out) {
  static float* kept;
  if (kept != 0) *kept = 1.0f;
  kept = out;
}

__attribute__((unused)) static void hang(void) {
  for (;;) sleep(1);
}

#ifdef FIXTURE_BAD_LEN
#define LATER_CALLS 0
#define LATER_WRONG (p->q_len == FIXTURE_BAD_LEN)
#else
#define LATER_WRONG (calls > LATER_CALLS)
#endif

#define FIXTURE_CALL \
  ++calls;           \
  if (LATER_WRONG) { \
    LATER_FAULT;     \
  }
#define FIXTURE_OUT_FACTOR (calls > LATER_CALLS ? LATER_FACTOR : 1.0)
#ifndef LATER_FACTOR
#define LATER_FACTOR 1.0
#endif
#ifndef LATER_FAULT
#define LATER_FAULT (void)calls
#endif

#include "tests/unit/framework/attention/plugins/naive.c"
