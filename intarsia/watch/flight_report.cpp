#include "intarsia/watch/flight_report.h"

#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "intarsia/comm/quiet_thread.h"
#include "intarsia/watch/flight_files.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/ticks.h"

namespace intarsia {
namespace {

constexpr size_t kOnFailure = 8, kOnSignal = 40;  // entries to show, unless INTARSIA_FLIGHT_LINES is set

size_t lines_told(size_t usual) {
  auto* text = getenv("INTARSIA_FLIGHT_LINES");
  char* end = nullptr;
  auto number = text ? std::strtoul(text, &end, 10) : 0;
  return text && *text && !*end ? number : usual;
}

std::string folder_wanted() {
  auto* text = getenv("INTARSIA_FLIGHT_FOLDER");
  return text ? text : "";
}

std::string seconds_text(int64_t ns) {
  char text[32];
  if (ns < 10'000'000)
    std::snprintf(text, sizeof text, "%.1f us", static_cast<double>(ns) * 1e-3);
  else
    std::snprintf(text, sizeof text, "%.3f s", static_cast<double>(ns) * 1e-9);
  return text;
}

std::string line_of(const FlightEntry& flight, const TickScale& scale, uint64_t now) {
  auto begun = scale.ns(flight.begun), end = scale.ns(flight.ended ? flight.ended : now);
  auto* state = flight.state == FlightEntry::completed ? "done in "
                : flight.state == FlightEntry::failed  ? "failed after "
                                                       : "under way for ";
  return c10::str("  ", flight.id, ": collective ", flight.number, " on axis \"", flight.axis, "\" ",
                  c10::ArrayRef<int64_t>(flight.line->ranks), " over ", flight.line->carrier, ": ", flight.text(), ": ",
                  state, seconds_text(end - begun), ", begun ", seconds_text(scale.ns(now) - begun), " ago\n");
}

// In one call, so that the lines of ranks do not mix.
void say(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    auto written = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return;
    if (written > 0) done += written;
  }
}

void write_if_wanted() {
  auto folder = folder_wanted();
  if (folder.empty() || !entries_begun()) return;
  try {
    write_flights(folder);
  } catch (const c10::Error& error) {
    say(c10::str(error.what_without_backtrace(), "\n"));
  }
}

void report_all(size_t most) {
  static auto* mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  if (most) say(flight_report(most));
  write_if_wanted();
}

// Set by the handler, which may do next to nothing; a sleeping thread does the rest.
sem_t asked_;

void on_signal(int) {
  auto before = errno;
  sem_post(&asked_);
  errno = before;
}

void serve_signals() {
  while (true) {
    if (sem_wait(&asked_) == 0) report_all(lines_told(kOnSignal));
  }
}

std::atomic<int64_t> reported_{0};  // worlds whose failure was reported

}  // namespace

std::string flight_report(size_t most) {
  auto flights = last_entries(most);
  if (flights.empty()) return "[flight recorder] no collective was begun.\n";
  TickScale scale;
  auto now = ticks_now();
  auto text = c10::str("[flight recorder] rank ", flights.back().line->rank, ", the last ", flights.size(), " of ",
                       entries_begun(), " collectives:\n");
  for (auto& flight : flights) text += line_of(flight, scale, now);
  return text;
}

void write_flights(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  auto flights = last_entries();
  auto rank = std::to_string(flights.empty() ? 0 : flights.back().line->rank);
  TickScale scale;
  auto put = [&](const std::string& name, const std::string& bytes) {
    auto path = folder + "/" + name, unfinished = folder + "/." + name + ".new";
    std::ofstream(unfinished, std::ios::binary) << bytes;
    std::filesystem::rename(unfinished, path, failed);  // so that no reader sees half a file
    TORCH_CHECK(!failed, "[write_flights] cannot write ", path, ": ", failed.message(),
                ". See INTARSIA_FLIGHT_FOLDER.");
  };
  put("flight_" + rank, flights_as_pickle(flights, scale));
  put("timeline." + rank + ".json", flights_as_timeline(flights, scale));
}

void report_failure() noexcept {
  auto flights = last_entries(1);
  if (flights.empty() || reported_.exchange(flights[0].line->world + 1) == flights[0].line->world + 1) return;
  try {
    report_all(lines_told(kOnFailure));
  } catch (const std::exception&) {
    // The failure itself is reported anyway.
  }
}

void report_on_signal() {
  auto* text = getenv("INTARSIA_FLIGHT_SIGNAL");
  if (text && std::string(text) == "0") return;
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction now{};
    if (sigaction(SIGUSR1, nullptr, &now) != 0 || now.sa_handler != SIG_DFL || (now.sa_flags & SA_SIGINFO)) return;
    sem_init(&asked_, 0, 0);
    quiet_thread(serve_signals).detach();
    now = {};
    now.sa_handler = on_signal;
    now.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &now, nullptr);
  });
}

void write_last_flights() noexcept {
  try {
    write_if_wanted();
  } catch (const std::exception&) {
    // No rank is left to report to.
  }
}

}  // namespace intarsia
