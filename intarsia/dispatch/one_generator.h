#pragma once
// The ranks of a mesh draw from generators in one state.

#include <optional>

#include <ATen/core/Generator.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Note [One generator]
// Ranks draw the numbers of one device, so before a draw they must have the generator of one device. A simulation has
// but one, and on a mesh of one rank there is nothing to agree on. Else, outside of a RandomScope, a rank cannot know
// what others did to theirs, and the ranks of the mesh compare: 8 bytes to each of the others. A rank whose generator
// is in another state than the first one's is named, in an error on all of them, before anybody has drawn.
//
// Where no rank has ever seeded its default generator, LibTorch has given each a seed that nobody chose. There is
// nothing to contradict, and all go on from the state of the first, once.
//
// Ranks outside of the mesh take no part: their generators stay where they are, behind those that have drawn.

// What the ranks of a mesh do before a draw outside of a RandomScope.
enum class Generators {
  compare,  // the default: a rank whose generator differs is an error on all ranks
  follow,   // all go on from the state of the first rank's, 5 KB to each of the others: for programs that seed ranks
            // differently
};

// For the whole process, and the same on all ranks.
void set_generators(Generators policy);
Generators generators();

// All ranks of the mesh call it: their generators, the default ones unless others are given, go on from the state of
// the first's.
void agree_on_generator(const DeviceMesh& mesh, const std::optional<at::Generator>& generator = std::nullopt);

// Whether the ranks of the mesh, of which this process hosts one, draw from generators of their own.
bool have_several_generators(const DeviceMesh& mesh);

// Raises an error on all ranks of the mesh, in the name of `where`, unless their generators are in one state.
void compare_generators(const char* where, const DeviceMesh& mesh, const at::Generator& generator);

// A copy of it, taken under the generator's lock.
at::Tensor state_of(const at::Generator& generator);

}  // namespace intarsia
