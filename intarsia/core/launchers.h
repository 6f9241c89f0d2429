#pragma once
// Rank, local rank and world size as a launcher (torchrun, Open MPI, MPICH, Slurm) sets them in the environment.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace intarsia {

using Environment = std::function<const char*(const char* name)>;  // like getenv

struct Launch {
  std::string by;  // torchrun, mpirun, srun, mpiexec; "init" if the program gave the numbers itself
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;  // among the ranks on this host
  bool one_host = false;   // all ranks are known to be on this host
  std::string job;         // differs between jobs, also between restarts of one; empty if unknown
};

// No launcher: no value. The order is torchrun, mpirun (Open MPI), srun, mpiexec (MPICH); the first whose variables are
// set wins. An error if they are incomplete, no numbers, or contradict an outer launcher: see Note [Launchers inside of
// one another].
std::optional<Launch> read_launch(const Environment& environment);

// The same, but only if the launcher started several ranks, of which this process is one. Incomplete or non-numeric
// variables belong to another program; those of a Slurm allocation (sbatch, salloc) only say how many ranks srun would
// start.
std::optional<Launch> read_launch_of_several(const Environment& environment);

// The launcher's name as users type it. "intarsia run" sets the variables of torchrun, and one more that identifies it.
std::string launcher_name(const Environment& environment, const Launch& launch);

// The variable as a whole number; none if it is not set. Other texts are an error that names the variable.
std::optional<int64_t> read_number(const Environment& environment, const char* name);

}  // namespace intarsia
