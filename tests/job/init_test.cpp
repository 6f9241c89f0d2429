#include "intarsia/job/init.h"

#include <gtest/gtest.h>

#include <stdlib.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "intarsia/checkpoint/resume.h"
#include "intarsia/core/mesh.h"
#include "intarsia/job/engines.h"
#include "intarsia/job/first_rank.h"
#include "intarsia/job/from_group.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/over_ranks.h"
#include "tests/support/error_text.h"

namespace intarsia::job_init_test {
namespace {

using std::chrono::milliseconds;

// Whatever a test made of the process's world ends with it.
class Init : public testing::Test {
 protected:
  void TearDown() override {
    finalize();
    unsetenv("INTARSIA_ENGINE");
  }
};

// A process group that carries nothing.
c10::intrusive_ptr<c10d::Backend> group_of_two() {
  struct Silent final : c10d::Backend {
    using c10d::Backend::Backend;
    const std::string getBackendName() const override { return "silent"; }
  };
  return c10::make_intrusive<Silent>(0, 2);
}

TEST_F(Init, WithoutALauncherItIsAWorldOfOneRank) {
  auto& world = init();
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(&init(), &world);
  EXPECT_EQ(&world, &world_of_one());
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(world_size(), 1);
  EXPECT_EQ(local_rank(), 0);
  barrier();
}

// The variables of a launcher, as long as it lives.
class Launched {
 public:
  explicit Launched(std::vector<std::pair<const char*, const char*>> variables) : variables_(std::move(variables)) {
    for (auto& [name, value] : variables_) setenv(name, value, 1);
  }
  ~Launched() {
    for (auto& [name, value] : variables_) unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, const char*>> variables_;
};

constexpr auto kNotJoined =
    " as rank 1 of 2, but it has not joined the job, or has left it. Call init() first and finalize() last. A "
    "process that is no rank of the job, such as a tool that a rank starts, opens simulate(1).";

TEST_F(Init, ARankThatForgetsItHasNoWorldUnderAnyLauncher) {
  const std::pair<const char*, std::vector<std::pair<const char*, const char*>>> launchers[] = {
      {"torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}},
      {"mpirun", {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}},
      {"srun", {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}},
      {"mpiexec", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}},
      {"intarsia run", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "a"}, {"INTARSIA_RUN_ID", "a"}}},
      {"torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "b"}, {"INTARSIA_RUN_ID", "a"}}},
  };
  for (auto& [name, variables] : launchers) {
    Launched launched(variables);
    auto text = [&, by = name](const char* where) {
      return c10::str("[", where, "] ", by, " started this process", kNotJoined);
    };
    EXPECT_EQ(error_text<c10::Error>([] { rank(); }), text("rank"));
    EXPECT_EQ(error_text<c10::Error>([] { world_size(); }), text("world_size"));
    EXPECT_EQ(error_text<c10::Error>([] { barrier(); }), text("barrier"));
    EXPECT_EQ(error_text<c10::Error>([] { current_world(); }), text("current_world"));
    EXPECT_EQ(error_text<c10::Error>([] { is_first_rank(); }), text("is_first_rank"));
    EXPECT_EQ(error_text<c10::Error>([] { print_once("step"); }), text("print_once"));
    EXPECT_EQ(error_text<c10::Error>([] { print_with_rank("step"); }), text("print_with_rank"));
    EXPECT_EQ(error_text<c10::Error>([] { mean_over_ranks(1); }), text("mean_over_ranks"));
    EXPECT_EQ(error_text<c10::Error>([] { checkpoint::resume("/nowhere", {}); }), text("checkpoint::resume"));
    EXPECT_EQ(error_text<c10::Error>([] { init_device_mesh(c10::kCPU, {1}); }), text("init_device_mesh"));
    EXPECT_EQ(error_text<c10::Error>([] { init_device_mesh(c10::kCPU, {2}); }), text("init_device_mesh"));
    EXPECT_EQ(error_text<c10::Error>([] { DeviceMesh(c10::kCPU, {1}, {0}); }), text("DeviceMesh"));
  }
}

TEST_F(Init, AProcessThatIsNoRankOfTheJobAroundItSaysSo) {
  Launched launched({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  {
    auto alone = simulate(1);
    EXPECT_EQ(rank(), 0);
  }
  {
    auto world = simulate(3);
    EXPECT_EQ(world_size(), 3);
  }
  InitOptions options;
  options.rank = 0;
  options.world_size = 1;
  init(options);
  EXPECT_EQ(world_size(), 1);
  finalize();
  EXPECT_EQ(error_text<c10::Error>([] { rank(); }), c10::str("[rank] torchrun started this process", kNotJoined));
}

TEST_F(Init, InASimulationThereIsNoOneRank) {
  auto world = simulate(4);
  EXPECT_EQ(world_size(), 4);
  EXPECT_EQ(error_text<c10::Error>([] { rank(); }),
            "[rank] the world is a simulation of 4 ranks, and this process plays 4 ranks. Ask is_first_rank() to do "
            "something once, or "
            "loop over current_world().hosted() or the mesh's slots().");
}

TEST_F(Init, ARankThatDoesNotArriveIsNamed) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("arrived/2", std::vector<uint8_t>{1});
  const std::string expected =
      "[init] rank 0 waited 0.02 s for 4 ranks: ranks 1, 3 did not arrive. See whether they were started and what they "
      "print; INTARSIA_TIMEOUT sets the wait in seconds.";
  auto text = error_text<c10::DistStoreError>([&] { arrive("init", *store, 0, {0, 1, 2, 3}, milliseconds(20)); });
  EXPECT_EQ(text.substr(0, expected.size()), expected);  // what follows names strangers that other tests have sent
  arrive("init", *store, 0, {0, 2}, milliseconds(20));
}

TEST_F(Init, AFailedInitLeavesNoWorld) {
  InitOptions options;
  options.rank = 0;
  options.world_size = 2;
  options.rendezvous = "file:///tmp/intarsia-init-test-" + std::to_string(getpid());
  options.timeout = milliseconds(20);
  EXPECT_EQ(error_text<c10::DistStoreError>([&] { init(options); }).substr(0, 71),
            "[init] rank 0 waited 0.02 s for 2 ranks: rank 1 did not arrive. See whe");
  unlink(options.rendezvous.substr(7).c_str());
  EXPECT_EQ(process_world(), nullptr);
}

TEST_F(Init, AStoreThatNobodyServesIsNamed) {
  InitOptions options;
  options.rank = 1;
  options.world_size = 2;
  options.rendezvous = "tcp://127.0.0.1:9";
  options.timeout = milliseconds(20);
  EXPECT_EQ(error_text<c10::DistNetworkError>([&] { init(options); }),
            "[init] rank 1 waited 0.02 s for the store at tcp://127.0.0.1:9, which rank 0 serves: Connection refused. "
            "Rank 0 did not arrive, or MASTER_ADDR and MASTER_PORT are wrong.");
}

TEST_F(Init, APortThatIsTakenIsNamed) {
  auto first = serve_store("127.0.0.1", 0, milliseconds(1000));
  auto port = std::to_string(first.port);
  EXPECT_EQ(error_text<c10::DistNetworkError>([&] { serve_store("127.0.0.1", first.port, milliseconds(20)); }),
            "[init] cannot serve a store at 127.0.0.1:" + port +
                ": Address already in use. Set MASTER_PORT to a free "
                "port, MASTER_ADDR to an address of this host.");
}

TEST_F(Init, WrongOptionsAreNamed) {
  auto text = [](InitOptions options) { return error_text<c10::ValueError>([&] { init(options); }); };
  InitOptions half, outside;
  half.rank = 1;
  outside.rank = 2;
  outside.world_size = 2;
  EXPECT_EQ(text(half), "[init] only the rank was given. Give both or neither.");
  EXPECT_EQ(text(outside), "[init] rank 2 does not exist in a world of 2.");
}

TEST_F(Init, AnEngineThatDoesNotExistIsNamedBeforeAnyoneWaits) {
  auto text = "[init] there is no engine \"shmm\". Known: auto, gloo, mpi, shm.";
  InitOptions alone, of_two;
  alone.engine = of_two.engine = "shmm";
  of_two.rank = 0;
  of_two.world_size = 2;
  of_two.rendezvous = "file:///not/there";
  EXPECT_EQ(error_text<c10::ValueError>([&] { init(alone); }), text);
  EXPECT_EQ(error_text<c10::ValueError>([&] { init(of_two); }), text);
  auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(error_text<c10::ValueError>([&] { init_from(store, 0, 2, alone); }), text);
  auto group = group_of_two();
  EXPECT_EQ(error_text<c10::ValueError>([&] { init_from_group(group, alone); }), text);
  EXPECT_EQ(process_world(), nullptr);
}

TEST_F(Init, TheEnvironmentMayNameTheEngine) {
  auto group = group_of_two();
  setenv("INTARSIA_ENGINE", "shmm", 1);
  auto text = "[init] there is no engine \"shmm\" (INTARSIA_ENGINE). Known: auto, gloo, mpi, shm.";
  EXPECT_EQ(error_text<c10::ValueError>([] { init(); }), text);
  EXPECT_EQ(error_text<c10::ValueError>([&] { mesh_from_group(group, c10::DeviceType::CPU); }), text);
  InitOptions options;
  options.engine = "gloo";  // comes first
  EXPECT_EQ(init(options).size(), 1);
}

TEST_F(Init, AnEngineWhosePluginIsNotThereIsAnErrorOfItsOwn) {
  setenv("INTARSIA_MPI_PLUGIN", "/not/there.so", 1);
  InitOptions options;
  options.engine = "mpi";
  auto text =
      "[init] the engine \"mpi\" needs the plugin /not/there.so, which cannot be loaded: /not/there.so: cannot open "
      "shared object file: "
      "No such file or directory. Build Intarsia where an MPI is installed (Debian: libopenmpi-dev), or name the "
      "plugin in "
      "INTARSIA_MPI_PLUGIN.";
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] { init(options); }), text);
  setenv("INTARSIA_ENGINE", "mpi", 1);
  EXPECT_EQ(error_text<c10::NotImplementedError>([] { init(); }), text);
  unsetenv("INTARSIA_MPI_PLUGIN");
}

TEST_F(Init, TheEngineIsTheOneNamedElseThatOfTheEnvironmentElseAuto) {
  auto name = [](const char* given) { return std::string(choose_engine(given).name); };
  EXPECT_EQ(name("shm"), "shm");
  EXPECT_EQ(name(""), "auto");
  setenv("INTARSIA_ENGINE", "", 1);
  EXPECT_EQ(name(""), "auto");
  setenv("INTARSIA_ENGINE", "gloo", 1);
  EXPECT_EQ(name(""), "gloo");
  EXPECT_EQ(name("shm"), "shm");
}

TEST_F(Init, TheWorldTellsWhatCarriesIt) {
  auto text = [](const char* name) { return choose_engine(name)({0, 2, nullptr, "", milliseconds(20)})->text(); };
  EXPECT_EQ(text("gloo"), "a job of 2 ranks over gloo");
  EXPECT_EQ(text("shm"), "a job of 2 ranks over shm");
  EXPECT_EQ(text("auto"), "a job of 2 ranks over shm and gloo");
  EXPECT_EQ(init_from_group(group_of_two()).text(), "a job of 2 ranks over silent");
}

TEST_F(Init, AWorldThatWasClosedIsNamed) {
  auto& engine = engine_of(init_from_group(group_of_two()));
  finalize();
  EXPECT_EQ(error_text<c10::Error>([&] { engine.barrier(); }),
            "[barrier] failed on rank 0 along axis \"world\" (ranks [0, 1], over silent) for barrier(): [finalize] the "
            "world was closed, but a mesh of it is still in use. Call finalize() last.");
}

TEST_F(Init, RanksThatNoGroupConnectsAreNamed) {
  auto engine = choose_engine("gloo")({0, 2, nullptr, "", milliseconds(20)});
  EXPECT_EQ(
      error_text<c10::Error>([&] { engine->barrier(); }),
      "[barrier] failed on rank 0 along axis \"world\" (ranks [0, 1], over gloo) for barrier(): [mesh] no process "
      "group connects the ranks [0, 1], and without a store none can be made. Call init_from with a store, or pass a "
      "group of these ranks to mesh_from_group.");
}

TEST_F(Init, ASimulationHasNoGroupsToAdopt) {
  auto world = simulate(2);
  EXPECT_EQ(error_text<c10::Error>([] {
              mesh_from_groups(std::vector<c10::intrusive_ptr<c10d::Backend>>{}, c10::DeviceType::CPU, {2}, {0, 1});
            }),
            "[mesh_from_groups] the world is a simulation of 2 ranks, which has no process groups. Use "
            "init_device_mesh.");
}

}  // namespace
}  // namespace intarsia::job_init_test
