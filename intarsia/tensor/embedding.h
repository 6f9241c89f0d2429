#pragma once
// embedding with a gradient that lies as the table does: a table cut by words gets a gradient cut by words.

#include <torch/library.h>

namespace intarsia {

void register_embedding(torch::Library& aten_autograd);

}  // namespace intarsia
