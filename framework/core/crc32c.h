// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as in checkpoint manifests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle {

// Continues `crc` over `bytes` bytes; start with 0. crc32c("123456789") = 0xe3069283.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace heddle
