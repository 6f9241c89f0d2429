#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "intarsia/watch/flight_files.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"

namespace intarsia::watch_flight_recorder_test {
namespace {

const RecordedLine* line_of_two() {
  static auto* line = recorded_line(1, {0, 1}, "shm");
  return line;
}

Collective a_call(uint64_t number) {
  Collective call;
  call.kind = Collective::all_reduce;
  call.op = ReduceOp::sum;
  call.type = c10::kFloat;
  call.count = call.all = static_cast<int64_t>(number) + 7;
  call.cause = "aten::mm";
  call.shape = {8, 8};
  call.axis = "tp";
  call.number = number;
  return call;
}

TEST(Flights, TheLastThousandAreKept) {
  for (uint64_t i = 0; i < 1500; ++i) {
    auto call = a_call(i);
    begin_entry(line_of_two(), call);
    end_entry(call);
  }
  auto flights = last_entries();
  ASSERT_EQ(flights.size(), kEntriesKept);
  EXPECT_EQ(flights.front().number, 500u);
  EXPECT_EQ(flights.back().number, 1499u);
  EXPECT_EQ(flights.back().state, FlightEntry::completed);
  EXPECT_LE(flights.back().begun, flights.back().ended);
}

TEST(Flights, SayWhatTheyAreAndHowFarTheyGot) {
  auto call = a_call(57);
  call.move = 1;
  call.from = Partial();
  call.to = Replicate();
  begin_entry(line_of_two(), call);
  EXPECT_EQ(last_entries(1)[0].text(), "all_reduce(sum) of 64 floats for aten::mm of [8, 8] from P(sum) to R");
  EXPECT_EQ(last_entries(1)[0].state, FlightEntry::under_way);
  end_entry(call, false);
  auto report = flight_report(1);
  EXPECT_NE(report.find("[flight recorder] rank 1, the last 1 of "), report.npos) << report;
  EXPECT_NE(report.find("57 on axis \"tp\" [0, 1] over shm: all_reduce(sum) of 64 floats for aten::mm of [8, 8] from "
                        "P(sum) to R: failed after "),
            report.npos)
      << report;
}

TEST(Flights, ThatWereOverwrittenAreNotTouchedByTheirEnd) {
  auto old = a_call(1);
  begin_entry(line_of_two(), old);
  for (uint64_t i = 0; i < kEntriesKept; ++i) {
    auto call = a_call(i);
    begin_entry(line_of_two(), call);
  }
  end_entry(old);
  for (auto& flight : last_entries()) EXPECT_EQ(flight.state, FlightEntry::under_way);
}

TEST(Flights, AreReadWholeWhileOthersAreWritten) {
  auto before = entries_begun();  // other tests have left theirs
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 2; ++t) {
    writers.emplace_back([&] {
      for (uint64_t i = 0; !stop; ++i) {
        auto call = a_call(i);
        begin_entry(line_of_two(), call);
        end_entry(call);
      }
    });
  }
  int64_t seen = 0, torn = 0;
  while (seen < 50 * static_cast<int64_t>(kEntriesKept)) {
    for (auto& flight : last_entries()) {
      if (flight.id <= before) continue;
      ++seen;
      torn += flight.mine != static_cast<int64_t>(flight.number) + 7;
    }
  }
  stop = true;
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(torn, 0);
}

TEST(Flights, LongNamesAreCutOff) {
  auto call = a_call(3);
  call.axis = "an axis with a name that is far too long";
  call.shape = {1, 2, 3, 4, 5, 6};
  begin_entry(line_of_two(), call);
  auto flight = last_entries(1)[0];
  EXPECT_STREQ(flight.axis, "an axis with a name tha");
  EXPECT_EQ(flight.text(), "all_reduce(sum) of 10 floats for aten::mm of [1, 2, 3, 4]");
}

TEST(Flights, AFolderThatCannotBeWrittenIsNamed) {
  try {
    write_flights("/proc/nowhere");
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("[write_flights] cannot write /proc/nowhere/flight_1"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace intarsia::watch_flight_recorder_test
