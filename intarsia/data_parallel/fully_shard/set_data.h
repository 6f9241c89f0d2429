#pragma once
// set_data on a fully_shard parameter: the program assigns other data, and the parameter's owner takes it.

namespace intarsia {

// From now on set_data on a leaf whose watcher is a ParamOwner calls take_value.
void watch_set_data();

}  // namespace intarsia
