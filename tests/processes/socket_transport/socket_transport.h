#pragma once
// A transport over plain sockets, as a program outside of the library would write one.

namespace intarsia {

// Adds the engine "sockets".
void add_socket_engine();

}  // namespace intarsia
