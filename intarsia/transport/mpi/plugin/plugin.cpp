// The plugin: MPI as port.h has it. The only file that is compiled against an MPI. For another MPI than the one that
// Intarsia was built with:
//   mpicxx -std=c++20 -O2 -fPIC -shared -I<prefix>/include plugin.cpp -o libintarsia_mpi.so

// Without the C++ bindings that MPI has dropped.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>
#include <memory>

#include "intarsia/launch/mpi_port.h"

namespace intarsia {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest));

bool started_here_ = false;

#define INTARSIA_TEXT_(x) #x
#define INTARSIA_TEXT(x) INTARSIA_TEXT_(x)
#if defined(OPEN_MPI)
constexpr auto kBuiltFor = "Open MPI " INTARSIA_TEXT(OMPI_MAJOR_VERSION) "." INTARSIA_TEXT(
    OMPI_MINOR_VERSION) "." INTARSIA_TEXT(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
constexpr auto kBuiltFor = "MPICH " MPICH_VERSION;
#else
constexpr auto kBuiltFor = "an MPI " INTARSIA_TEXT(MPI_VERSION) "." INTARSIA_TEXT(MPI_SUBVERSION);
#endif

[[noreturn]] void fail(const char* what, int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, kind = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  MpiError error(std::string(what) + ": " + std::string(text, length));
  error.truncated = kind == MPI_ERR_TRUNCATE;
  throw error;
}

void check(const char* what, int code) {
  if (code != MPI_SUCCESS) fail(what, code);
}

MpiRequest as_ours(MPI_Request request) {
  if (request == MPI_REQUEST_NULL) return 0;
  MpiRequest ours = 0;
  std::memcpy(&ours, &request, sizeof request);
  return ours;
}

MPI_Request as_theirs(MpiRequest request) {
  MPI_Request theirs = MPI_REQUEST_NULL;
  if (request) std::memcpy(&theirs, &request, sizeof theirs);
  return theirs;
}

bool has_ended() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag;
}

class Line final : public MpiLine {
 public:
  explicit Line(MPI_Comm comm) : comm_(comm) {}

  MpiRequest send(const void* from, int64_t bytes, int member, int stream) override {
    MPI_Request request;
    check("MPI_Isend", MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, member, stream, comm_, &request));
    return as_ours(request);
  }

  MpiRequest receive(void* to, int64_t bytes, int member, int stream) override {
    MPI_Request request;
    check("MPI_Irecv", MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, member, stream, comm_, &request));
    return as_ours(request);
  }

  int take(void* to, int64_t bytes, int stream) override {
    int there = 0;
    MPI_Message message;
    MPI_Status status;
    check("MPI_Improbe", MPI_Improbe(MPI_ANY_SOURCE, stream, comm_, &there, &message, &status));
    if (!there) return -1;
    check("MPI_Mrecv", MPI_Mrecv(to, static_cast<int>(bytes), MPI_BYTE, &message, &status));
    return status.MPI_SOURCE;
  }

  void leave() override {
    if (!has_ended()) MPI_Comm_free(&comm_);
  }

 private:
  MPI_Comm comm_;
};

class Port final : public MpiPort {
 public:
  explicit Port(MPI_Comm base) {
    int between = 0;
    check("MPI_Comm_test_inter", MPI_Comm_test_inter(base, &between));
    if (between) throw MpiError("the communicator connects two groups; give one of a single group");
    check("MPI_Comm_dup", MPI_Comm_dup(base, &comm_));
    check("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    check("MPI_Comm_rank", MPI_Comm_rank(comm_, &rank));
    check("MPI_Comm_size", MPI_Comm_size(comm_, &size));
    check("MPI_Comm_group", MPI_Comm_group(comm_, &group_));
    count_host();
    int level = MPI_THREAD_SINGLE;
    check("MPI_Query_thread", MPI_Query_thread(&level));
    threads = level == MPI_THREAD_MULTIPLE     ? MpiThreads::multiple
              : level == MPI_THREAD_SERIALIZED ? MpiThreads::serialized
              : level == MPI_THREAD_FUNNELED   ? MpiThreads::funneled
                                               : MpiThreads::single;
    started_here = started_here_;
  }

  ~Port() override {
    if (has_ended()) return;
    MPI_Group_free(&group_);
    MPI_Comm_free(&comm_);
  }

  MpiLine* make_line(const std::vector<int>& ranks, int tag) override {
    MPI_Group members;
    MPI_Comm comm;
    check("MPI_Group_incl", MPI_Group_incl(group_, static_cast<int>(ranks.size()), ranks.data(), &members));
    int code = MPI_Comm_create_group(comm_, members, tag, &comm);
    MPI_Group_free(&members);
    check("MPI_Comm_create_group", code);
    check("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    return new Line(comm);
  }

  bool test(MpiRequest* requests, size_t count) override {
    return count <= 2 ? test_each(requests, count) : test_many(requests, count);
  }

  void cancel(MpiRequest request) override {
    auto theirs = as_theirs(request);
    if (request) MPI_Cancel(&theirs);
  }

  void broadcast(void* bytes, int64_t count) override {
    check("MPI_Bcast", MPI_Bcast(bytes, static_cast<int>(count), MPI_BYTE, 0, comm_));
  }

  bool may_call() const override {
    int main = 0;
    if (threads < MpiThreads::serialized) MPI_Is_thread_main(&main);
    return threads >= MpiThreads::serialized || main;
  }

  bool ended() const override { return has_ended(); }

 private:
  void count_host() {
    MPI_Comm host;
    check("MPI_Comm_split_type", MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
    MPI_Comm_size(host, &on_this_host);
    MPI_Comm_free(&host);
  }

  // Faster than a list for the one or two requests of a small collective.
  bool test_each(MpiRequest* requests, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (!requests[i]) continue;
      auto theirs = as_theirs(requests[i]);
      int over = 0;
      int code = MPI_Test(&theirs, &over, MPI_STATUS_IGNORE);
      if (over || code != MPI_SUCCESS) requests[i] = 0;
      fail_with(i, code);
      any |= over != 0;
    }
    return any;
  }

  bool test_many(MpiRequest* requests, size_t count) {
    theirs_.resize(count);
    over_.resize(count);
    statuses_.resize(count);
    for (size_t i = 0; i < count; ++i) theirs_[i] = as_theirs(requests[i]);
    int number = 0;
    int code = MPI_Testsome(static_cast<int>(count), theirs_.data(), &number, over_.data(), statuses_.data());
    if (number == MPI_UNDEFINED) return false;
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) fail("MPI_Testsome", code);
    for (int k = 0; k < number; ++k) requests[over_[k]] = 0;
    for (int k = 0; k < number && code == MPI_ERR_IN_STATUS; ++k) fail_with(over_[k], statuses_[k].MPI_ERROR);
    return number > 0;
  }

  static void fail_with(int64_t request, int code) {
    if (code == MPI_SUCCESS) return;
    try {
      fail("MPI_Test", code);
    } catch (MpiError& error) {
      error.request = request;
      throw;
    }
  }

  MPI_Comm comm_;
  MPI_Group group_;
  std::vector<MPI_Request> theirs_;
  std::vector<int> over_;
  std::vector<MPI_Status> statuses_;
};

const char* runs_on() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

MpiPort* open(const MpiQuestion& question) {
  int started = 0;
  MPI_Initialized(&started);
  if (has_ended()) throw MpiError("MPI_Finalize was called before. Join before that.");
  if (!started && !question.world) throw MpiError("MPI_Init was not called yet. Call it first.");
  if (!started) {
    int provided = 0;
    check("MPI_Init_thread", MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // MPICH uses the world's handler for every request
    started_here_ = true;
  }
  auto base = question.world ? MPI_COMM_WORLD : MPI_Comm_f2c(question.communicator);
  if (base == MPI_COMM_NULL) throw MpiError("the communicator is MPI_COMM_NULL; only its members join");
  return new Port(base);
}

void end() {
  if (started_here_ && !has_ended()) MPI_Finalize();
}

}  // namespace
}  // namespace intarsia

extern "C" __attribute__((visibility("default"))) const intarsia::MpiPlugin intarsia_mpi_plugin;
const intarsia::MpiPlugin intarsia_mpi_plugin = {intarsia::kMpiPortVersion, intarsia::kBuiltFor, &intarsia::runs_on,
                                                 &intarsia::open, &intarsia::end};
