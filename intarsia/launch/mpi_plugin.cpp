#include "intarsia/launch/mpi_plugin.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <mutex>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

constexpr auto kPluginName = "libintarsia_mpi.so";

struct Loaded {
  std::mutex mutex;
  const MpiPlugin* plugin = nullptr;
  std::string path;
  std::shared_ptr<MpiPort> world;
  bool started = false;  // MPI, by us
};
Loaded& loaded() {
  static auto* instance = new Loaded;
  return *instance;
}

std::string plugin_path() {
  auto* given = getenv("INTARSIA_MPI_PLUGIN");
  if (given && *given) return given;
  Dl_info here{};
  if (!dladdr(reinterpret_cast<void*>(&mpi_plugin), &here) || !here.dli_fname) return kPluginName;
  std::string library = here.dli_fname;
  auto slash = library.rfind('/');
  return slash == library.npos ? kPluginName : library.substr(0, slash + 1) + kPluginName;
}

// Given the version text of an MPI: Open MPI, or one of the others, which share MPICH's binary interface.
bool is_open_mpi(const std::string& text) { return text.find("Open MPI") != text.npos; }

std::string first_line(const std::string& text) { return text.substr(0, text.find_first_of("\n,")); }

void check_fits(const MpiPlugin& plugin, const std::string& path) {
  TORCH_CHECK(plugin.version == kMpiPortVersion, "[init] the plugin ", path, " is of version ", plugin.version,
              ", but this library needs version ", kMpiPortVersion, ". Use the one that was installed with it.");
  std::string runs_on = plugin.runs_on();
  TORCH_CHECK(is_open_mpi(plugin.built_for) == is_open_mpi(runs_on), "[init] the plugin ", path, " was built for ",
              plugin.built_for, ", but the MPI in this process is ", first_line(runs_on),
              ". Two MPIs cannot be used together: build the plugin for that one, and name it in INTARSIA_MPI_PLUGIN.");
}

const MpiPlugin& load(const std::string& path) {
  auto* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK_NOT_IMPLEMENTED(library, "[init] the engine \"mpi\" needs the plugin ", path,
                              ", which cannot be loaded: ", first_line(dlerror()),
                              ". Build Intarsia where an MPI is installed (Debian: libopenmpi-dev), or name the "
                              "plugin in INTARSIA_MPI_PLUGIN.");
  auto* plugin = static_cast<const MpiPlugin*>(dlsym(library, "intarsia_mpi_plugin"));
  TORCH_CHECK(plugin, "[init] ", path,
              " is no plugin for MPI: it has no intarsia_mpi_plugin. Correct INTARSIA_MPI_PLUGIN.");
  check_fits(*plugin, path);
  return *plugin;
}

std::shared_ptr<MpiPort> open(const MpiQuestion& question) {
  auto& plugin = mpi_plugin();
  try {
    std::shared_ptr<MpiPort> port(plugin.open(question));
    loaded().started = port->started_here;
    return port;
  } catch (const MpiError& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "[init] ", first_line(plugin.runs_on()),
                     " cannot be used: ", error.what());
  }
}

}  // namespace

const MpiPlugin& mpi_plugin() {
  std::lock_guard lock(loaded().mutex);
  auto path = plugin_path();
  if (!loaded().plugin) {
    loaded().plugin = &load(path);
    loaded().path = path;
  }
  return *loaded().plugin;
}

bool mpi_plugin_serves(const std::string& launcher) {
  try {
    return is_open_mpi(mpi_plugin().built_for) == (launcher == "mpirun");
  } catch (const std::exception&) {
    return false;
  }
}

std::shared_ptr<MpiPort> open_mpi_world() {
  if (!loaded().world) loaded().world = open({});
  return loaded().world;
}

std::shared_ptr<MpiPort> open_mpi(int communicator, const std::string& library) {
  std::string ours = mpi_plugin().runs_on();
  TORCH_CHECK(ours == library, "[init_from_mpi] the program uses ", first_line(library), ", but the plugin ",
              loaded().path, " uses ", first_line(ours),
              ". Two MPIs cannot be used together: build the plugin for that one, and name it in INTARSIA_MPI_PLUGIN.");
  return open({false, communicator});
}

void end_mpi() {
  if (started_mpi()) loaded().plugin->end();
}

bool started_mpi() { return loaded().started; }

}  // namespace intarsia
