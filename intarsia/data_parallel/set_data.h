#pragma once
// set_data on a parameter of a wrapped module: the program assigns other data, and the leaf's watcher may take it.

namespace intarsia {

// From now on set_data on a leaf asks its watcher first: see LeafWatcher::take_data.
void watch_set_data();

}  // namespace intarsia
