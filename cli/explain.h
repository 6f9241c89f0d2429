#pragma once

namespace intarsia::cli {

// intarsia explain: prints what dispatch would do with a call.
int explain_main(int argc, char** argv);

}  // namespace intarsia::cli
