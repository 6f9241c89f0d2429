// The smallest program that uses an installed Intarsia. It cuts 5 rows over 4 simulated ranks and prints:
//   [S(0)] on DeviceMesh(cpu, tp=4)
//   rank 0 holds rows 0 to 1
//   rank 1 holds rows 2 to 3
//   rank 2 holds rows 4 to 4
//   rank 3 holds nothing
#include <iostream>

#include "intarsia/core/layout.h"
#include "intarsia/simulation/simulation.h"

int main() {
  auto world = intarsia::simulate(4);
  auto mesh = intarsia::init_device_mesh(c10::kCPU, {4}, {"tp"});
  auto* layout = intarsia::Layout::get(mesh, {intarsia::Shard(0)});
  std::cout << str(*layout) << '\n';
  for (auto& slot : mesh.slots()) {
    auto rows = intarsia::local_shape(*layout, {5, 3}, slot.coordinate)[0];
    auto first = intarsia::local_offset(*layout, {5, 3}, slot.coordinate)[0];
    std::cout << "rank " << slot.rank << " holds ";
    if (rows == 0) {
      std::cout << "nothing\n";
    } else {
      std::cout << "rows " << first << " to " << first + rows - 1 << '\n';
    }
  }
}
