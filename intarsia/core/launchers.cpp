#include "intarsia/core/launchers.h"

#include <charconv>
#include <cstring>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

// The variables of a launcher. Of two names for the size, the first that is set wins; two names for the job are joined.
// Some launchers have only one.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size[2];
  const char* local_rank;
  const char* job[2];
  const char* step;  // set for the ranks only, where the other variables are set for a whole allocation
};

const Launcher kLaunchers[] = {
    {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}, nullptr},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     nullptr},
    {"srun",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     "SLURM_STEP_ID"},
    {"mpiexec", "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALRANKID", {"PMI_JOBID"}, nullptr},
};

// Slurm numbers the steps that srun starts from 0. Its internal steps, such as the shell of salloc, have numbers from
// here on.
constexpr int64_t kFirstStepOfSlurmItself = 0xfffffff0;

std::optional<int64_t> number_in(const char* text) {
  int64_t number = 0;
  auto* end = text + std::strlen(text);
  auto read = std::from_chars(text, end, number);
  bool whole = read.ec == std::errc() && read.ptr == end && end != text && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

std::optional<int64_t> number_or_none(const Environment& environment, const char* name) {
  auto* text = name ? environment(name) : nullptr;
  return text ? number_in(text) : std::nullopt;
}

bool on_one_host(const Environment& environment, const Launch& launch) {
  if (launch.by == "mpirun") return read_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == launch.size;
  if (launch.by == "srun") {
    auto nodes = read_number(environment, "SLURM_STEP_NUM_NODES");
    return (nodes ? nodes : read_number(environment, "SLURM_NNODES")) == 1;
  }
  if (launch.by == "mpiexec") return read_number(environment, "MPI_LOCALNRANKS") == launch.size;
  return read_number(environment, "LOCAL_WORLD_SIZE") == launch.size;
}

}  // namespace

std::optional<int64_t> read_number(const Environment& environment, const char* name) {
  auto* text = environment(name);
  if (!text) return std::nullopt;
  auto number = number_in(text);
  TORCH_CHECK_VALUE(number, "[init] ", name, " is \"", text, "\", which is not a whole number. Correct or unset it.");
  return number;
}

// Note [Launchers inside of one another]
// A launcher may start another one: srun starts a torchrun on each host, whose ranks find the variables of both, and
// the inner ones count. But RANK and WORLD_SIZE are also set by hand, and left behind in a shell: if an outer launcher
// has really started more ranks than they know of, or as many under other numbers, several processes would take
// themselves for one rank. Those that torchrun and `intarsia run` set come with the id of a run, and are believed.
static void check_outer_launcher(const Environment& environment, const Launch& launch) {
  if (launch.by != "torchrun" || environment("TORCHELASTIC_RUN_ID") || environment("INTARSIA_RUN_ID")) return;
  auto without = [&](const char* name) {
    return std::strcmp(name, "RANK") && std::strcmp(name, "WORLD_SIZE") ? environment(name) : nullptr;
  };
  auto outer = read_launch_of_several(without);
  if (!outer || (outer->size == launch.size ? outer->rank == launch.rank : outer->size < launch.size)) return;
  TORCH_CHECK_VALUE(false, "[init] RANK and WORLD_SIZE say that this is rank ", launch.rank, " of ", launch.size,
                    ", but ", outer->by, " started it as rank ", outer->rank, " of ", outer->size,
                    ". Unset RANK and WORLD_SIZE, or set them for each rank as ", outer->by, " counts.");
}

std::optional<Launch> read_launch(const Environment& environment) {
  for (auto& launcher : kLaunchers) {
    auto rank = read_number(environment, launcher.rank);
    auto size = read_number(environment, launcher.size[0]);
    if (!size && launcher.size[1]) size = read_number(environment, launcher.size[1]);
    if (!rank && (!size || launcher.size[1])) continue;  // a SLURM_NTASKS alone only says what was requested
    TORCH_CHECK_VALUE(rank && size, "[init] of ", launcher.rank, " and ", launcher.size[0], " only ",
                      rank ? launcher.rank : launcher.size[0], " is set. Set both or neither.");
    TORCH_CHECK_VALUE(*rank < *size, "[init] ", launcher.rank, " is ", *rank, ", but ", launcher.size[0], " is ", *size,
                      ". Ranks count from 0 to ", *size - 1, ".");
    Launch launch{launcher.name, *rank, *size};
    check_outer_launcher(environment, launch);
    launch.local_rank = read_number(environment, launcher.local_rank).value_or(0);
    launch.one_host = on_one_host(environment, launch);
    for (auto* name : launcher.job) {
      if (auto* value = name ? environment(name) : nullptr)
        launch.job += (launch.job.empty() ? "" : "-") + std::string(value);
    }
    return launch;
  }
  return std::nullopt;
}

std::optional<Launch> read_launch_of_several(const Environment& environment) {
  for (auto& launcher : kLaunchers) {
    auto rank = number_or_none(environment, launcher.rank), size = number_or_none(environment, launcher.size[0]);
    if (!size) size = number_or_none(environment, launcher.size[1]);
    if (!rank || !size || *rank >= *size) continue;
    auto step = launcher.step ? number_or_none(environment, launcher.step) : 0;
    if (!step || *step >= kFirstStepOfSlurmItself) continue;
    return *size > 1 ? std::optional(Launch{launcher.name, *rank, *size}) : std::nullopt;
  }
  return std::nullopt;
}

// The two ids agree only on the ranks of "intarsia run": a torchrun that such a rank starts gives its ranks another
// one.
std::string launcher_name(const Environment& environment, const Launch& launch) {
  auto *own = environment("INTARSIA_RUN_ID"), *job = environment("TORCHELASTIC_RUN_ID");
  return launch.by == "torchrun" && own && job && !std::strcmp(own, job) ? "intarsia run" : launch.by;
}

}  // namespace intarsia
