#pragma once
// Functions for what a program does once per job: print on one rank, write a file, start afresh or resume.

#include <cstdint>
#include <string>

#include <c10/util/StringUtil.h>

namespace intarsia {

// Whether this process hosts rank 0 of the current world. True in a simulation, which hosts all ranks, and without a
// launcher. `where` begins an error.
bool is_first_rank(const char* where = "is_first_rank");

// How often the launcher has restarted this job (intarsia run --max-restarts, torchrun); 0 the first time and without a
// launcher.
int64_t restart_count();

// Writes a line to stdout, and flushes it; on the first rank only.
void print_line_once(const std::string& line);
// The same on every rank, with its rank as a prefix: "[rank 2 of 4] ". A simulation writes one line for all: "[ranks 0
// to 3 of 4] ".
void print_line_with_rank(const std::string& line);

// print_once("step ", step, ": loss ", loss) on one rank, print_with_rank("has ", rows, " rows") on every rank.
template <class... Parts>
void print_once(const Parts&... parts) {
  if (is_first_rank("print_once")) print_line_once(c10::str(parts...));
}
template <class... Parts>
void print_with_rank(const Parts&... parts) {
  print_line_with_rank(c10::str(parts...));
}

}  // namespace intarsia
