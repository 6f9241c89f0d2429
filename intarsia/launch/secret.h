#pragma once
// The secret of a job, which keeps strangers out.

#include <cstddef>
#include <string>
#include <string_view>

namespace intarsia {

std::string sha256(std::string_view text);                             // 32 bytes
std::string hmac_sha256(std::string_view key, std::string_view text);  // 32 bytes
std::string random_bytes(size_t count);                                // from the kernel, for keys
std::string hex(std::string_view bytes);
bool equal_in_constant_time(std::string_view a,
                            std::string_view b);  // takes the same time wherever they differ

// INTARSIA_SECRET; empty: there is none, and every connection is accepted.
std::string job_secret();

}  // namespace intarsia
