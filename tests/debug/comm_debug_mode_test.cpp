#include "intarsia/debug/comm_debug_mode.h"

#include <barrier>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/debug/explain_step.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"

namespace intarsia::debug_comm_debug_mode_test {
namespace {

using Counts = std::map<std::string, int64_t>;

// 4 ranks; a float tensor of shape [8, 6] whose sum is pending.
struct Job {
  Simulation world{4};
  DeviceMesh mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  at::Tensor whole = torch::arange(48.).reshape({8, 6}).to(at::kFloat);
  at::Tensor cut = distribute_tensor(whole, mesh, {Shard(0)});
  at::Tensor pending = from_local(whole, mesh, {Partial()});
};

TEST(CommDebugMode, NamesWhatMovedWithAxisAndBytes) {
  Job job;
  CommDebugMode comms;
  redistribute(job.pending, {Shard(0)});
  redistribute(job.cut, {Shard(1)});
  redistribute(job.cut, {Replicate()});
  EXPECT_EQ(comms.text(), "reduce_scatter(sum) tp 144B\nall_to_all tp 48B\nall_gather tp 144B\n");
}

TEST(CommDebugMode, CountsByKindAndInAll) {
  Job job;
  CommDebugMode comms;
  redistribute(job.pending, {Replicate()});
  redistribute(job.cut, {Replicate()});
  redistribute(job.cut, {Replicate()});
  EXPECT_EQ(comms.get_total_counts(), 3);
  EXPECT_EQ(comms.get_comm_counts(), (Counts{{"all_gather", 2}, {"all_reduce(sum)", 1}}));
  EXPECT_EQ(comms.total_bytes(), 2 * 144 + 2 * 144);  // an all-reduce of 192B moves 3/4 of it twice
}

TEST(CommDebugMode, TellsWhatDispatchChoseFromWhatTheCallerAskedFor) {
  Job job;
  CommDebugMode comms;
  full_tensor(job.cut);
  torch::mul(job.pending, job.pending);
  auto events = comms.events();
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].op, "full_tensor");
  EXPECT_FALSE(events[0].implicit);
  EXPECT_EQ(events[1].op, "aten::mul.Tensor");
  EXPECT_TRUE(events[1].implicit);
  EXPECT_GE(events[1].start, events[0].start + events[0].seconds);
}

TEST(CommDebugMode, RecordsOnlyBetweenEnterAndExit) {
  Job job;
  CommDebugMode comms(false);
  full_tensor(job.cut);
  EXPECT_EQ(comms.get_total_counts(), 0);
  comms.enter();
  full_tensor(job.cut);
  comms.exit();
  full_tensor(job.cut);
  EXPECT_EQ(comms.get_total_counts(), 1);
}

TEST(CommDebugMode, EnteringAgainStartsAnew) {
  Job job;
  CommDebugMode comms;
  full_tensor(job.cut);
  comms.enter();
  EXPECT_EQ(comms.text(), "");
  full_tensor(job.pending);
  EXPECT_EQ(comms.text(), "all_reduce(sum) tp 288B\n");
}

TEST(CommDebugMode, NestedModesBothSeeWhatMoves) {
  Job job;
  CommDebugMode outer;
  full_tensor(job.cut);
  {
    CommDebugMode inner;
    full_tensor(job.cut);
    EXPECT_EQ(inner.get_total_counts(), 1);
  }
  EXPECT_EQ(outer.get_total_counts(), 2);
}

TEST(CommDebugMode, ListsOpsThatRanOnWholeTensors) {
  Job job;
  CommDebugMode comms;
  at::hash_tensor(torch::mm(job.cut.t(), job.cut), {1});
  ASSERT_GE(comms.fallbacks().size(), 1);
  EXPECT_EQ(comms.fallbacks()[0].op, "aten::hash_tensor");
  EXPECT_NE(comms.table().find("aten::hash_tensor has no rule: ran on whole tensors, 1 time\n"), std::string::npos);
}

TEST(CommDebugMode, TheTableGroupsByKindAxisAndOp) {
  Job job;
  CommDebugMode comms;
  full_tensor(job.cut);
  full_tensor(job.cut);
  redistribute(job.pending, {Shard(0)});
  auto table = comms.table();
  auto has = [&](const char* line) { return table.find(line) != std::string::npos; };
  EXPECT_TRUE(has("collective           axis  for           chosen by   count  bytes     ms\n")) << table;
  EXPECT_TRUE(has("\nall_gather           tp    full_tensor   the caller      2    288  ")) << table;
  EXPECT_TRUE(has("\nreduce_scatter(sum)  tp    redistribute  the caller      1    144  ")) << table;
  EXPECT_TRUE(has("\ntotal                                                    3    432  ")) << table;
}

TEST(CommDebugMode, TheChromeTraceIsJsonWithALaneForEveryAxis) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "a \"quoted\"\n axis"});
  auto tensor = distribute_tensor(torch::ones({4, 4}), mesh, {Shard(0), Shard(1)});
  CommDebugMode comms;
  redistribute(tensor, {Replicate(), Shard(1)});
  redistribute(tensor, {Shard(0), Replicate()});
  auto path = testing::TempDir() + "intarsia_trace.json";
  comms.write_chrome_trace(path);
  auto check =
      "python3 -c 'import json, sys\n"
      "events = json.load(open(sys.argv[1]))[\"traceEvents\"]\n"
      "done = [e for e in events if e[\"ph\"] == \"X\"]\n"
      "assert len(done) == 2 and len({e[\"tid\"] for e in done}) == 2, events\n"
      "assert all(e[\"dur\"] >= 0 and e[\"args\"][\"op\"] == \"redistribute\" for e in done), events' " +
      path;
  EXPECT_EQ(std::system(check.c_str()), 0);
  std::remove(path.c_str());
}

TEST(CommDebugMode, ATraceThatCannotBeWrittenIsAnError) {
  CommDebugMode comms;
  EXPECT_EQ(error_text<c10::Error>([&] { comms.write_chrome_trace("/no/such/folder/trace.json"); }),
            "[write_chrome_trace] cannot write the file \"/no/such/folder/trace.json\". "
            "Check its folder and the free space.");
}

// Calls body(number) on two threads, which begin together.
template <class Body>
void on_two_threads(Body body) {
  std::barrier together(2);
  std::vector<std::thread> threads;
  for (int64_t number : {1, 2}) {
    threads.emplace_back([&, number] {
      together.arrive_and_wait();
      body(number);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(CommDebugMode, CountsWhatItsOwnSimulationDoes) {
  for (int64_t ranks : {1, 4}) {
    on_two_threads([&](int64_t number) {
      CommDebugMode outside;
      auto world = simulate(ranks);
      auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      CommDebugMode comms;
      for (int64_t i = 0; i < 100 * number; ++i) {
        auto x = distribute_tensor(torch::ones({4, number}), mesh, {Shard(0)}, std::nullopt).requires_grad_();
        full_tensor(x).sum().backward();
        std::this_thread::yield();
      }
      EXPECT_EQ(comms.get_total_counts(), ranks > 1 ? 100 * number : 0);
      EXPECT_EQ(outside.get_total_counts(), comms.get_total_counts());
      EXPECT_EQ(comms.total_bytes(), ranks > 1 ? 100 * number * 12 * number : 0);
    });
  }
}

TEST(CommDebugMode, StepsAreExplainedOnTwoThreads) {
  on_two_threads([](int64_t number) {
    auto world = simulate(2);
    auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    for (int64_t i = 0; i < 5; ++i) {
      torch::nn::Linear layer(4 * number, 4);
      auto step = explain(layer, mesh, [&](auto& stage) { replicate(layer, stage); }, {{{2, 4 * number}}});
      EXPECT_EQ(step.bytes(Phase::backward), (4 * number * 4 + 4) * 4) << step.text();
    }
  });
}

// Backward passes inside of one another, so many that autograd goes on with them on threads of its own.
struct Inside : torch::autograd::Function<Inside> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t depth) {
    context->saved_data["depth"] = depth;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    at::AutoGradMode records(true);
    auto depth = context->saved_data["depth"].toInt();
    auto x = at::ones({4}).requires_grad_();
    if (depth > 0) {
      Inside::apply(x, depth - 1).sum().backward();
    } else {
      auto cut = distribute_tensor(at::ones({4}), mesh, {Shard(0)}, std::nullopt);
      full_tensor(cut);
      threads.insert(std::this_thread::get_id());
    }
    return {grads[0], at::Tensor()};
  }
  static inline DeviceMesh mesh;
  static inline std::set<std::thread::id> threads;
};

TEST(CommDebugMode, SeesTheThreadsOfItsBackwardPass) {
  Job job;
  CommDebugMode comms;
  Inside::mesh = job.mesh;
  Inside::apply(at::ones({4}).requires_grad_(), 100).sum().backward();
  EXPECT_EQ(comms.get_total_counts(), 1);
  EXPECT_EQ(Inside::threads.count(std::this_thread::get_id()), 0);
}

}  // namespace
}  // namespace intarsia::debug_comm_debug_mode_test
