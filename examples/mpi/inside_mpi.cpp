// Intarsia inside a program that uses MPI itself: distributed tensors over a communicator of the program, whose own
// messages go on.
//
//   mpirun -n 4 build/examples/inside_mpi [single|funneled|serialized|multiple]
//
// prints "4 ranks over mpi, and MPI is still the program's own".

#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "intarsia/job/init_from_mpi.h"

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int level_of(const std::string& text) {
  return text == "single"       ? MPI_THREAD_SINGLE
         : text == "funneled"   ? MPI_THREAD_FUNNELED
         : text == "serialized" ? MPI_THREAD_SERIALIZED
                                : MPI_THREAD_MULTIPLE;
}

// As many columns as there are ranks, and one more.
void multiply() {
  torch::manual_seed(1);
  auto a = torch::randn({5, 7}, torch::kDouble), b = torch::randn({7, intarsia::world_size() + 1}, torch::kDouble);
  auto mesh = intarsia::init_device_mesh(torch::kCPU, {intarsia::world_size()}, {"tp"});
  auto cut = torch::mm(intarsia::distribute_tensor(a, mesh, {intarsia::Shard(1)}),
                       intarsia::distribute_tensor(b, mesh, {intarsia::Shard(0)}));
  expect(torch::allclose(intarsia::full_tensor(cut), torch::mm(a, b)), "the product is that of one process");
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0, size = 1;
  MPI_Init_thread(&argc, &argv, level_of(argc > 1 ? argv[1] : ""), &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  // A message that takes whatever comes: if one of ours came, it would be the wrong one.
  int came = -1, next = (rank + 1) % size;
  MPI_Request any;
  MPI_Irecv(&came, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any);

  // Ranks are those of the communicator that is given, here the other way round.
  MPI_Comm reversed;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  intarsia::init_from_mpi(reversed);
  expect(intarsia::rank() == size - 1 - rank, "ranks are those of the communicator");
  multiply();
  MPI_Send(&rank, 1, MPI_INT, next, 17, MPI_COMM_WORLD);
  multiply();
  auto world = intarsia::current_world().text();
  intarsia::finalize();

  MPI_Wait(&any, MPI_STATUS_IGNORE);
  expect(came == (rank + size - 1) % size, "the program's message is its own");

  // Once more, with the handle that a Fortran program has.
  intarsia::init_from_mpi_fint(MPI_Comm_c2f(MPI_COMM_WORLD));
  expect(intarsia::rank() == rank, "ranks are those of the world");
  multiply();
  intarsia::finalize();

  int one = 1, all = 0;
  MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(world == "a job of " + std::to_string(size) + " ranks over mpi", world.c_str());
  if (rank == 0) std::printf("%d ranks over mpi, and MPI is still the program's own\n", all);
  MPI_Comm_free(&reversed);
  MPI_Finalize();
}
