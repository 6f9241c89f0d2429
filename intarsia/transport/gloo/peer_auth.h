#pragma once
// Authenticates the members of a group to each other with the job's secret.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace intarsia {

// Gloo takes any peer that connects for the rank that it waits for. So every member sends every other a random number,
// and gets back an HMAC-SHA256 of it under the secret. All `ranks` call it, in the order of the backend; `name`
// distinguishes groups. The error names the rank that did not prove it.
void check_members(c10d::Backend& backend, const std::string& secret, const std::string& name,
                   const std::vector<int64_t>& ranks, int64_t position, std::chrono::milliseconds timeout);

}  // namespace intarsia
