#pragma once

namespace intarsia::cli {

// intarsia ops: how every op is served.
int ops_main(int argc, char** argv);

}  // namespace intarsia::cli
