// MPI's own collectives, to compare the engine with: lines `all_reduce/8 0.5`, microseconds of the slowest rank in its
// best round.
//
//   mpirun -n 2 build/benchmarks/raw_mpi [all_reduce]

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

const MPI_Comm kAll = MPI_COMM_WORLD;
std::string only_;  // empty: all

template <class Call>
void measure(const char* what, long bytes, Call call) {
  if (!only_.empty() && only_ != what) return;
  int rank = 0, rounds = bytes > (1 << 22) ? 10 : 100;
  MPI_Comm_rank(kAll, &rank);
  auto calls = static_cast<int>(std::max(1L, std::min(50L, (4L << 20) / bytes)));
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    MPI_Barrier(kAll);
    double start = MPI_Wtime(), mine = 0, most = 0;
    for (int i = 0; i < calls; ++i) call();
    mine = (MPI_Wtime() - start) / calls * 1e6;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, kAll);
    best = std::min(best, most);
  }
  if (rank == 0) std::printf("%s/%ld %.3f\n", what, bytes, best);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, n = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
  MPI_Comm_size(kAll, &n);
  if (argc > 1) only_ = argv[1];
  for (long bytes : {8L, 1L << 10, 16L << 10, 64L << 10, 256L << 10, 1L << 20, 8L << 20, 64L << 20}) {
    int count = static_cast<int>(std::max(1L, bytes / 4 / n));
    bytes = 4L * count * n;
    std::vector<float> whole(count * n, 1), result(count * n), part(count, 1);
    measure("all_reduce", bytes,
            [&] { MPI_Allreduce(whole.data(), result.data(), count * n, MPI_FLOAT, MPI_SUM, kAll); });
    measure("all_gather", bytes,
            [&] { MPI_Allgather(part.data(), count, MPI_FLOAT, result.data(), count, MPI_FLOAT, kAll); });
    measure("reduce_scatter", bytes,
            [&] { MPI_Reduce_scatter_block(whole.data(), part.data(), count, MPI_FLOAT, MPI_SUM, kAll); });
    measure("all_to_all", bytes,
            [&] { MPI_Alltoall(whole.data(), count, MPI_FLOAT, result.data(), count, MPI_FLOAT, kAll); });
    measure("broadcast", bytes, [&] { MPI_Bcast(whole.data(), count * n, MPI_FLOAT, 0, kAll); });
  }
  MPI_Finalize();
}
