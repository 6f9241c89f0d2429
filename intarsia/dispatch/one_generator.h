#pragma once
// Keeps the random generators of a mesh's ranks in one state.

#include <optional>

#include <ATen/core/Generator.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Note [One generator]
// Ranks draw the numbers of one device, so before a draw their generators must be in one state. A simulation has only
// one generator, and a mesh of one rank has nothing to compare. Otherwise, outside a RandomScope, a rank cannot know
// what others did to theirs, and the ranks of the mesh compare: 8 bytes to each of the others. If a rank's generator is
// in another state than the first rank's, all ranks raise an error that names it, before any of them has drawn.
//
// If no rank has ever seeded its default generator, LibTorch has given each a seed that nobody chose. Then all continue
// from the state of the first rank, once.
//
// Ranks outside the mesh take no part: their generators stay where they are, behind those that have drawn.

// What the ranks of a mesh do before a draw outside of a RandomScope.
enum class Generators {
  compare,  // the default: a rank whose generator differs is an error on all ranks
  follow,   // all continue from the first rank's state, 5 KB to each of the others: for programs that seed ranks
            // differently
};

// Sets the policy of the whole process. It must be the same on all ranks.
void set_generators(Generators policy);
Generators generators();

// Sets the generators of all ranks of the mesh, the default ones unless others are given, to the state of the first
// rank's. All ranks of the mesh call it.
void agree_on_generator(const DeviceMesh& mesh, const std::optional<at::Generator>& generator = std::nullopt);

// Whether the ranks of the mesh, of which this process hosts one, draw from separate generators.
bool have_several_generators(const DeviceMesh& mesh);

// Raises an error on all ranks of the mesh, in the name of `where`, unless their generators are in one state.
void compare_generators(const char* where, const DeviceMesh& mesh, const at::Generator& generator);

// A copy of the generator's state, taken under its lock.
at::Tensor state_of(const at::Generator& generator);

}  // namespace intarsia
