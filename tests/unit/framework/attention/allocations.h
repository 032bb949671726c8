// How often this program has called operator new.
#pragma once

#include <cstdint>

namespace heddle::test {

int64_t allocations();

}  // namespace heddle::test
