#pragma once
// Checksums of tensor data: XXH3, 64 bits, per block of 1 MiB, so that a part of a tensor can be checked without
// reading all of it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::checkpoint {

constexpr int64_t kChecksumBlock = 1 << 20;

// XXH3 of these bytes.
uint64_t checksum_of(const void* data, int64_t bytes);
std::string checksum_text(uint64_t checksum);  // 16 hexadecimal digits, lower case
inline int64_t block_count(int64_t bytes) { return bytes / kChecksumBlock + (bytes % kChecksumBlock != 0); }

}  // namespace intarsia::checkpoint
