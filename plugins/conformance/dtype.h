// Numbers of the ABI's data types as bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::conformance {

int64_t element_bytes(uint32_t dtype);
// To nearest, ties to even.
void store_element(uint32_t dtype, float value, std::byte* target);
float load_element(uint32_t dtype, const std::byte* source);
// The nearest number of the type.
float rounded(uint32_t dtype, float value);

}  // namespace heddle::conformance
