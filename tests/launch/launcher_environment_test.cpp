#include "intarsia/launch/launcher_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/error_text.h"

namespace intarsia::launch_launcher_environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string launch_text(const Variables& variables) {
  auto launch = read_launch(environment_of(variables));
  if (!launch) return "none";
  return c10::str(launch->by, " ", launch->rank, "/", launch->size, " local ", launch->local_rank,
                  launch->one_host ? " one host" : "", launch->job.empty() ? "" : " job " + launch->job);
}

std::string meeting_text(const Variables& variables) {
  auto environment = environment_of(variables);
  auto launch = read_launch(environment).value();
  auto meeting = read_meeting(environment, launch);
  return meeting.text() + (meeting.serves(launch.rank) ? " served here" : "") + " via \"" +
         read_interface(environment, meeting, launch) + "\"";
}

const Variables kTorchrun = {{"RANK", "0"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "0"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSrun = {{"SLURM_PROCID", "1"},        {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NTASKS", "64"},
                         {"SLURM_LOCALID", "1"},       {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "3"},
                         {"SLURM_STEP_NUM_NODES", "1"}};

const Variables kMpiexec = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "6"}};

Variables with(Variables variables, const Variables& more) {
  for (auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(Launch, WithoutALauncherThereIsNone) {
  EXPECT_EQ(launch_text({}), "none");
  EXPECT_EQ(launch_text({{"SLURM_NTASKS", "8"}}), "none");
}

// For `auto`: variables that another program has left are no launcher.
TEST(Launch, OnlyALauncherOfMpiThatIsThereServesMpi) {
  auto serves = [](const Variables& variables) {
    auto environment = environment_of(variables);
    return serves_mpi(environment, read_launch(environment).value());
  };
  EXPECT_FALSE(serves(kMpirun));
  EXPECT_TRUE(serves(with(kMpirun, {{"PMIX_SERVER_URI4", "x"}})));
  EXPECT_TRUE(serves(kMpiexec));
  EXPECT_FALSE(serves(with(kTorchrun, {{"PMIX_SERVER_URI4", "x"}})));
}

TEST(Launch, APlaceToMeetIsKnownOrNot) {
  auto knows = [](const Variables& variables) {
    auto environment = environment_of(variables);
    return knows_meeting(environment, read_launch(environment).value());
  };
  EXPECT_TRUE(knows(kTorchrun));
  EXPECT_TRUE(knows(kSrun));
  EXPECT_FALSE(knows(kMpirun));
  EXPECT_FALSE(knows(with(kMpirun, {{"MASTER_ADDR", "node1"}})));
  EXPECT_TRUE(knows(with(kMpirun, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}})));
  EXPECT_TRUE(knows(with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "prte@1"}})));
  EXPECT_TRUE(knows(with(kMpiexec, {{"INTARSIA_RENDEZVOUS", "file:///x"}})));
  EXPECT_FALSE(knows(kMpiexec));
}

TEST(Launch, ReadsWhatEachLauncherSets) {
  EXPECT_EQ(launch_text(kMpiexec), "mpiexec 1/3 local 0");
  EXPECT_EQ(launch_text(kTorchrun), "torchrun 0/4 local 0");
  EXPECT_EQ(
      launch_text(with(kTorchrun,
                       {{"LOCAL_WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "a"}, {"TORCHELASTIC_RESTART_COUNT", "2"}})),
      "torchrun 0/4 local 0 one host job a-2");
  EXPECT_EQ(launch_text(kMpirun), "mpirun 3/4 local 1");
  EXPECT_EQ(launch_text(with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "prte@1"}})),
            "mpirun 3/4 local 1 one host job prte@1");
  EXPECT_EQ(launch_text(kSrun), "srun 1/2 local 1 one host job 77-3");
  EXPECT_EQ(launch_text({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}}), "srun 1/2 local 0");
}

// What makes a process without init() an error: that it really is one of several ranks.
TEST(Launch, ARankOfSeveralIsToldFromAProcessThatOnlyInheritsVariables) {
  auto several = [](const Variables& variables) {
    auto launch = read_launch_of_several(environment_of(variables));
    return launch ? c10::str(launch->by, " ", launch->rank, "/", launch->size) : "none";
  };
  struct Row {
    Variables variables;
    const char* found;
  };
  const Variables in_allocation = {{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}, {"SLURM_NNODES", "1"}};
  const Row rows[] = {
      {{}, "none"},
      {kTorchrun, "torchrun 0/4"},
      {kMpirun, "mpirun 3/4"},
      {kSrun, "srun 1/2"},
      {kMpiexec, "mpiexec 1/3"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "none"},
      {with(kSrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "none"},
      {{{"RANK", "1"}}, "none"},
      {{{"RANK", "captain"}, {"WORLD_SIZE", "4"}}, "none"},
      {with(kMpirun, {{"RANK", "captain"}}), "mpirun 3/4"},
      {in_allocation, "none"},                                 // salloc
      {with(in_allocation, {{"SLURM_PROCID", "0"}}), "none"},  // the script of sbatch
      {with(in_allocation, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}}),
       "none"},  // the shell of salloc, as a step
      {with(in_allocation, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}), "srun 0/4"},
      {with(kSrun, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}),
       "none"},  // srun -n 1 in a larger allocation
  };
  for (size_t i = 0; i < std::size(rows); ++i) EXPECT_EQ(several(rows[i].variables), rows[i].found) << "row " << i;
}

TEST(Launch, TheInnermostLauncherCounts) {
  auto torchrun = with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "a"}});
  EXPECT_EQ(launch_text(with(with(kSrun, kMpirun), torchrun)), "torchrun 0/4 local 0 job a");
  EXPECT_EQ(launch_text(with(kSrun, kMpirun)), "mpirun 3/4 local 1");
}

TEST(Launch, VariablesSetByHandMustNotContradictALauncher) {
  auto by_hand = [](const char* rank, const char* size) { return Variables{{"RANK", rank}, {"WORLD_SIZE", size}}; };
  const Variables srun = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "7"}};
  auto text = [](const Variables& variables) { return error_text<c10::ValueError>([&] { launch_text(variables); }); };
  EXPECT_EQ(
      text(with(srun, by_hand("0", "2"))),
      "[init] RANK and WORLD_SIZE say that this is rank 0 of 2, but srun started it as rank 1 of 4. Unset RANK and "
      "WORLD_SIZE, or set them for each rank as srun counts.");
  EXPECT_EQ(text(with(kMpirun, by_hand("0", "4"))),
            "[init] RANK and WORLD_SIZE say that this is rank 0 of 4, but mpirun started it as rank 3 of 4. Unset RANK "
            "and WORLD_SIZE, or set them for each rank as mpirun counts.");
  EXPECT_EQ(text(with(kMpiexec, by_hand("0", "1"))).substr(0, 64),
            "[init] RANK and WORLD_SIZE say that this is rank 0 of 1, but mpi");
  EXPECT_EQ(launch_text(with(srun, by_hand("1", "4"))), "torchrun 1/4 local 0");    // as srun counts
  EXPECT_EQ(launch_text(with(srun, by_hand("9", "16"))), "torchrun 9/16 local 0");  // a launcher on each host
  auto allocation = srun;
  allocation.erase("SLURM_STEP_ID");
  EXPECT_EQ(launch_text(with(allocation, by_hand("0", "2"))), "torchrun 0/2 local 0");
  EXPECT_EQ(launch_text(with(with(srun, by_hand("0", "2")), {{"INTARSIA_RUN_ID", "x"}})), "torchrun 0/2 local 0");
}

TEST(Launch, RankZeroServesTheStoreUnlessTheLauncherDoes) {
  EXPECT_EQ(meeting_text(kTorchrun), "tcp://node1:29500 served here via \"\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"RANK", "1"}})), "tcp://node1:29500 via \"\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})), "tcp://node1:29500 via \"\"");
}

TEST(Launch, RanksOnOneHostTalkOverLoopbackUnlessToldOtherwise) {
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"MASTER_ADDR", "127.0.0.1"}})),
            "tcp://127.0.0.1:29500 served here via \"127.0.0.1\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}})),
            "tcp://node1:29500 served here via \"127.0.0.1\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"GLOO_SOCKET_IFNAME", "eth1,eth2"}})),
            "tcp://node1:29500 served here via \"eth1\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"GLOO_SOCKET_IFNAME", "eth1"}, {"INTARSIA_INTERFACE", "ib0"}})),
            "tcp://node1:29500 served here via \"ib0\"");
}

TEST(Launch, JobsOfOneHostMeetAtAPortOfTheirOwn) {
  auto first = meeting_text(kSrun), second = meeting_text(with(kSrun, {{"SLURM_STEP_ID", "4"}}));
  EXPECT_EQ(first.substr(0, 16), "tcp://127.0.0.1:");
  EXPECT_NE(first, second);
  EXPECT_EQ(first, meeting_text(kSrun));
}

TEST(Launch, AFileOrAnAddressMayBeNamedInstead) {
  EXPECT_EQ(meeting_text(with(kMpirun, {{"INTARSIA_RENDEZVOUS", "file:///shared/meet"}})),
            "file:///shared/meet via \"\"");
  EXPECT_EQ(meeting_text(with(kTorchrun, {{"INTARSIA_RENDEZVOUS", "tcp://node2:1234"}})),
            "tcp://node2:1234 served here via \"\"");
}

TEST(Launch, WhatIsMissingOrWrongIsNamed) {
  auto text = [](const Variables& variables) { return error_text<c10::ValueError>([&] { meeting_text(variables); }); };
  EXPECT_EQ(text({{"RANK", "1"}}), "[init] of RANK and WORLD_SIZE only RANK is set. Set both or neither.");
  EXPECT_EQ(text({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
            "[init] RANK is \"x\", which is not a whole number. Correct or unset it.");
  EXPECT_EQ(text({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "[init] RANK is 2, but WORLD_SIZE is 2. Ranks count from 0 to 1.");
  EXPECT_EQ(text(kMpirun),
            "[init] mpirun started 4 ranks, but nothing says where they meet: MASTER_ADDR is not set. Set MASTER_ADDR "
            "and MASTER_PORT to the host of rank 0 and a free port on it, or "
            "INTARSIA_RENDEZVOUS=file:///a/path/that/all/ranks/see.");
  EXPECT_EQ(text(with(kTorchrun, {{"MASTER_PORT", "70000"}})),
            "[init] MASTER_PORT is 70000. Give a port from 1 to 65535.");
  EXPECT_EQ(text(with(kTorchrun, {{"INTARSIA_RENDEZVOUS", "file://relative"}})),
            "[init] INTARSIA_RENDEZVOUS is \"file://relative\". Give file:///a/path/that/all/ranks/see or "
            "tcp://host:port.");
}

}  // namespace
}  // namespace intarsia::launch_launcher_environment_test
