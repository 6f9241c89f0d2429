#!/usr/bin/env python3
"""Folders of intarsia/ are layers: each includes, and calls, only what the table below allows. Headers pair with their
sources. Files stay short.

INTARSIA_OBJECTS names the library's object files, joined by ":"; their symbols tell who calls whom."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The layers, from the lowest. A folder may use what comes before it.
# A sub-folder that is named here is a layer of its own: what plays many ranks in one process is one room on several floors.
ORDER = ["libtorch", "core", "simulation/twins", "comm", "simulation", "watch", "launch", "transport", "job", "c10d_backend", "redistribute",
         "simulation/moves", "redistribute/run", "rules", "propagate", "simulation/per_rank", "tensor", "dispatch", "simulation/fan_out", "random", "ops",
         "nn", "data_parallel", "checkpoint", "debug"]
# Each transport is a folder that only the table of transports includes, and one of these others.
TABLE = "job/engines.cpp"
TRANSPORTS_IN_TRANSPORTS = {"transport/two_level": ["transport/gloo", "transport/shm"]}
EXEMPT = ["intarsia.h", "pch.h", "start.h"]  # directly in intarsia/
# The only calls that go up; see start.h.
SEAMS = ["intarsia::start()", "intarsia::add_all_ops(intarsia::RuleTable&)"]
# Headers whose functions are defined in many files, or above; each says so.
LISTS = ["ops/all.h", "start.h"]
# Folders inside a layer that do not know each other, nor does what is beside them know them.
APART = {"data_parallel": ["replicate", "fully_shard"]}
# Files of a folder that use only those before them in the list.
CHAINS = {"data_parallel/fully_shard": ["gradient_state", "sharded_param", "param_group", "fully_shard_state", "group_hooks", "fully_shard"]}
MAX_LINES = 400

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]intarsia/([^">]+)[">]')
DECLARATION = re.compile(r"^(?!using|template|inline|constexpr|static|extern|class|struct|enum|namespace|TORCH|typedef|return)"
                         r"[\w:<>,&*\[\] ]*[ &*](\w+)\([^;{}]*\)(?: const)?;$")

ANONYMOUS = re.compile(r"^namespace \{.*?^\}  // namespace$", re.S | re.M)
TYPE = re.compile(r"^(?:class|struct|enum class) (?:\[\[\w+\]\] )?(?:alignas\(\w+\) )?(\w+)(?: final)?(?: :[^;{]*)?\s*\{", re.M)


def layer_of(folder):
    """The layer of a folder, "transport/shm": the longest part of its path that is one, else its first part."""
    parts = str(folder).split("/")
    names = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in names if name in ORDER), parts[0])


def below(folder):
    return ORDER[: ORDER.index(folder)]


def complaints(library):
    """What is wrong with the files of the folder `library`, one line each."""
    for path in sorted(library.rglob("*")):
        if path.suffix not in (".h", ".cpp") or "gloo_compat" in path.parts:
            continue
        name = path.relative_to(library)
        lines = path.read_text().splitlines()
        if path.suffix == ".h" and "#pragma once" not in lines:
            yield f"intarsia/{name}: a header without #pragma once."
        if len(lines) > MAX_LINES:
            yield f"intarsia/{name}: {len(lines)} lines. The limit is {MAX_LINES}: split it."
        if path.suffix == ".h" and str(name) not in LISTS:
            yield from pairing_complaints(path, name, lines)
        if str(name) not in EXEMPT:
            yield from include_complaints(name, lines)
            yield from transport_complaints(name, lines)
            yield from inner_complaints(name, lines)
        yield from placement_complaints(name, lines)
        yield from op_name_complaints(name, lines)


def twin_complaints(library):
    """Types of one name in two files are one type to the linker, which takes the functions of either."""
    places = {}
    for path in sorted(library.rglob("*")):
        if path.suffix not in (".h", ".cpp") or "gloo_compat" in path.parts:
            continue
        named = ANONYMOUS.sub("", path.read_text())
        for name in TYPE.findall(named):
            places.setdefault(name, set()).add(str(path.relative_to(library)))
    for name, files in sorted(places.items()):
        if len(files) > 1:
            yield f"{name} is defined in {', '.join(sorted(files))}: types need names of their own."


def include_complaints(name, lines):
    folder = layer_of(name.parent.as_posix())
    if folder not in ORDER:
        yield f"intarsia/{name}: not in a layer. Move it, or add its folder to the list in layers_test.py."
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match or match[1] in EXEMPT:
            continue
        if layer_of(match[1].rpartition("/")[0]) not in [folder, *below(folder)]:
            yield f"intarsia/{name}:{number}: includes {match[1]}. {folder} may include {', '.join([*below(folder), folder])}."


def transport_complaints(name, lines):
    """A transport is reached through the interface that it implements."""
    folder = name.parent.as_posix()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        home = pathlib.PurePosixPath(match[1]).parent.as_posix() if match else ""
        if not home.startswith("transport/") or str(name) == TABLE:
            continue
        transport = "/".join(home.split("/")[:2])
        if not (folder + "/").startswith(transport + "/") and transport not in TRANSPORTS_IN_TRANSPORTS.get(folder, []):
            yield f"intarsia/{name}:{number}: includes {match[1]}. Only {TABLE} names a transport."


def includes_between_folders(library):
    """{folder: {folder: an include that leads there}}, sub-folders each for itself."""
    found = {}
    for path in sorted(library.rglob("*")):
        name = path.relative_to(library)
        if path.suffix not in (".h", ".cpp") or "gloo_compat" in path.parts or str(name) in EXEMPT:
            continue
        for line in path.read_text().splitlines():
            match = INCLUDE.match(line)
            to = pathlib.PurePosixPath(match[1]).parent.as_posix() if match and match[1] not in EXEMPT else name.parent.as_posix()
            if to != name.parent.as_posix():
                found.setdefault(name.parent.as_posix(), {}).setdefault(to, f"{name} includes {match[1]}")
    return found


def circle_complaints(library):
    """Folders that include each other in a circle, one line per circle that a search finds."""
    graph, over = includes_between_folders(library), set()

    def search(folder, way):
        if folder in way:
            circle = way[way.index(folder):] + [folder]
            yield "a circle of includes: " + ", ".join(graph[a][b] for a, b in zip(circle, circle[1:])) + "."
        elif folder not in over:
            for to in sorted(graph.get(folder, {})):
                yield from search(to, [*way, folder])
            over.add(folder)

    for folder in sorted(graph):
        yield from search(folder, [])
def inner_complaints(name, lines):
    """See APART and CHAINS. A file with a longer name, as param_group_gradients.cpp, stands where the shorter one does."""
    chain = CHAINS.get(str(name.parent), [])
    place = max((i for i, one in enumerate(chain) if name.stem == one or name.stem == one + "_gradients"), default=len(chain))
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        other = pathlib.Path(match[1])
        if other.parent == name.parent and other.stem in chain[place + 1 :]:
            yield f"intarsia/{name}:{number}: includes {other}. Calls go down: {' -> '.join(reversed(chain))}."
        if other.parts[0] == name.parts[0] and len(other.parts) > 2:
            apart = APART.get(other.parts[0], [])
            if other.parts[1] in apart and name.parent != other.parent:
                yield f"intarsia/{name}:{number}: includes {other}. Only {other.parent} does, and the layers above."


KIND = re.compile(r"(?:get_if|get|holds_alternative)<(?:Replicate|Shard|StridedShard|Partial)>")


def placement_complaints(name, lines):
    """See Note [Kinds of placements]."""
    for number, line in enumerate(lines, 1):
        if KIND.search(line):
            yield f"intarsia/{name}:{number}: looks for one kind of placement. Visit all kinds, or ask a function of core/placement.h."


OP_NAME = re.compile(r'"aten::\w|impl\("\w|_ops::[a-z_]|\bname\(?\)? [=!]= "')
GUIDE = re.compile(r"\b(?:is_guided|current_guide_number|UnguidedScope)\b")


def op_name_complaints(name, lines):
    """Ops are known in ops/, which declares to others what they have to know of single ones."""
    folder = layer_of(name.parent.as_posix())
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        if folder in ("dispatch", "simulation/fan_out") and OP_NAME.search(code):
            yield f"intarsia/{name}:{number}: names an op. Let its family declare a trait: see rules/traits.h."
        if folder not in ("rules", "propagate", "dispatch", "simulation/fan_out") and GUIDE.search(code):
            yield f"intarsia/{name}:{number}: asks for a guide. Give the table a row with if_advised, or a function for such calls."


def declared(lines):
    """The free functions that a header declares and does not define."""
    statement = ""
    for line in lines:
        text = line.split("//")[0].rstrip()
        if not statement and (not text or text[0] in " }#"):
            continue
        statement = (statement + " " + text.strip()).strip()
        if statement.endswith((";", "{", "}", ":")):
            match = DECLARATION.match(statement)
            if match:
                yield match[1]
            statement = ""


def pairing_complaints(path, name, lines):
    sources = [path.with_suffix(".cpp"), path.with_name(f"no_{path.stem}.cpp")]  # the second where an engine is left out
    text = "".join(source.read_text() for source in sources if source.exists())
    for function in declared(lines):
        if not re.search(rf"^[\w\[][^\n;]*\b{function}\(", text, re.M):
            yield f"intarsia/{name}: declares {function}, which {name.with_suffix('.cpp')} does not define."


def folder_of(path):
    """The layer that an object file belongs to: CMake puts the source's path, seen from the project, below <target>.dir. Not
    a matter of where the project itself is."""
    group = re.match(r"unity_([\w-]+)-\d+_cxx", path.name)
    if group:
        return layer_of(group[1].replace("-", "/"))
    below_target = path.parts[path.parts.index("intarsia.dir") + 1 :] if "intarsia.dir" in path.parts else ()
    return layer_of("/".join(below_target[1:-1])) if len(below_target) > 2 and below_target[0] == "intarsia" else None


def symbols(objects):
    """(folder, defined, used) of each object file: names of ours only."""
    for path in map(pathlib.Path, sorted(objects.split(":"))):
        folder = folder_of(path)
        if folder not in ORDER:
            continue
        out = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
        defined, used = set(), set()
        for line in out.splitlines():
            kind, _, name = line[17:].partition(" ")
            if "intarsia::" in name and "[clone" not in name:
                if kind in "TDBR":
                    defined.add(name)
                elif kind == "U":
                    used.add(name)
        yield folder, defined, used


def symbol_complaints(found):
    home = {}
    for folder, defined, _ in found:
        for name in defined:
            home.setdefault(name, folder)
    for folder, _, used in found:
        for name in sorted(used):
            above = home.get(name, folder)
            if above not in [folder, *below(folder)] and name not in SEAMS:
                yield f"{folder} calls {name}, which {above} defines: only start.h goes up."


class Layers(unittest.TestCase):
    def test_the_library_keeps_its_layers(self):
        found = list(complaints(ROOT / "intarsia"))
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_no_folders_include_each_other_in_a_circle(self):
        found = list(circle_complaints(ROOT / "intarsia"))
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_every_type_has_a_name_of_its_own(self):
        found = list(twin_complaints(ROOT / "intarsia"))
        self.assertFalse(found, "\n" + "\n".join(found))

    @unittest.skipUnless("INTARSIA_OBJECTS" in os.environ, "ctest names the object files")
    def test_no_layer_calls_one_above_it(self):
        found = list(symbols(os.environ["INTARSIA_OBJECTS"]))
        self.assertEqual({folder for folder, _, _ in found}, set(ORDER))
        wrong = sorted(set(symbol_complaints(found)))
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


    def test_the_page_about_ops_names_every_trait(self):
        text = (ROOT / "intarsia/rules/traits.h").read_text().partition("struct Traits {")[2].partition("};")[0]
        traits = re.findall(r"^  [\w:<>, ]+ (\w+)(?: = \w+)?;", text, re.M)
        self.assertGreater(len(traits), 10)
        page = (ROOT / "docs/adding_an_op.md").read_text()
        self.assertEqual([trait for trait in traits if f"`{trait}`" not in page], [])


class Complaints(unittest.TestCase):
    def complaints_of(self, name, text):
        with tempfile.TemporaryDirectory() as library:
            path = pathlib.Path(library) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return list(complaints(pathlib.Path(library)))

    def test_an_upward_include_is_named_with_its_line(self):
        self.assertEqual(
            self.complaints_of("comm/a.cpp", '#include <map>\n#include "intarsia/tensor/api.h"\n'),
            ["intarsia/comm/a.cpp:2: includes tensor/api.h. comm may include libtorch, core, simulation/twins, comm."],
        )

    def test_a_sub_folder_may_be_a_layer_of_its_own(self):
        self.assertEqual(self.complaints_of("comm/a.cpp", '#include "intarsia/simulation/twins/twins.h"\n'), [])
        found = "".join(self.complaints_of("comm/a.cpp", '#include "intarsia/simulation/fan_out/fan_out.h"\n'))
        self.assertIn("intarsia/comm/a.cpp:1: includes simulation/fan_out/fan_out.h. comm may include", found)

    def test_what_goes_up_inside_a_folder_is_named_with_its_line(self):
        self.assertEqual(
            self.complaints_of("data_parallel/fully_shard/param_group_gradients.cpp",
                               '#include "intarsia/data_parallel/fully_shard/fully_shard_state.h"\n'),
            ["intarsia/data_parallel/fully_shard/param_group_gradients.cpp:1: includes data_parallel/fully_shard/fully_shard_state.h. "
             "Calls go down: fully_shard -> group_hooks -> fully_shard_state -> param_group -> sharded_param -> gradient_state."],
        )
        self.assertEqual(
            self.complaints_of("data_parallel/leaf_hooks.cpp", '#include "intarsia/data_parallel/replicate/reducer.h"\n'),
            ["intarsia/data_parallel/leaf_hooks.cpp:1: includes data_parallel/replicate/reducer.h. Only data_parallel/replicate does, "
             "and the layers above."],
        )
        self.assertEqual(self.complaints_of("debug/a.cpp", '#include "intarsia/data_parallel/replicate/reducer.h"\n'), [])

    def test_the_layer_of_an_object_file_does_not_depend_on_the_folder_of_the_project(self):
        for project in ("/home/me/intarsia", "/home/core/intarsia/ops", "/srv/work"):
            objects = pathlib.Path(project) / "build/CMakeFiles/intarsia.dir"
            self.assertEqual(folder_of(objects / "intarsia/dispatch/run.cpp.o"), "dispatch")
            self.assertEqual(folder_of(objects / "Unity/unity_transport-shm-1_cxx.cxx.o"), "transport")
            self.assertEqual(folder_of(objects / "Unity/unity_c10d_backend-1_cxx.cxx.o"), "c10d_backend")
            self.assertEqual(folder_of(objects / "Unity/unity_simulation-fan_out-1_cxx.cxx.o"), "simulation/fan_out")
            self.assertEqual(folder_of(objects / "intarsia/simulation/moves/a.cpp.o"), "simulation/moves")
            self.assertIsNone(folder_of(objects / "intarsia/start.cpp.o"))

    def test_two_types_of_one_name_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder)
            (library / "a.h").write_text("struct Call {\n};\n")
            (library / "b.cpp").write_text("class Call final : public Other {\n};\nnamespace {\nstruct Own {\n};\n}  // namespace\n")
            (library / "c.cpp").write_text("namespace {\nstruct Own {\n};\n}  // namespace\n")
            self.assertEqual(list(twin_complaints(library)), ["Call is defined in a.h, b.cpp: types need names of their own."])

    def test_downward_includes_and_those_within_a_folder_pass(self):
        text = '#pragma once\n#include "intarsia/comm/a.h"\n#include <intarsia/core/b.h>\n'
        self.assertEqual(self.complaints_of("comm/c.h", text), [])

    def test_a_transport_that_another_file_than_the_table_includes_is_named(self):
        text = '#pragma once\n#include "intarsia/transport/shm/shm_group.h"\n'
        complaint = "includes transport/shm/shm_group.h. Only job/engines.cpp names a transport."
        for name in ("job/init.h", "transport/gloo/a.h", "transport/table.h"):
            self.assertIn(f"intarsia/{name}:2: {complaint}", self.complaints_of(name, text))
        for name in ("job/engines.cpp", "transport/shm/a.h", "transport/two_level/a.h"):
            self.assertEqual(self.complaints_of(name, text), [])

    def test_a_circle_of_sub_folders_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder)
            for name, included in (("ops/a/x.h", "ops/b/y.h"), ("ops/b/y.h", "core/z.h"), ("ops/b/w.cpp", "ops/a/v.h"), ("core/z.h", "core/u.h")):
                (library / name).parent.mkdir(parents=True, exist_ok=True)
                (library / name).write_text(f'#pragma once\n#include "intarsia/{included}"\n')
            self.assertEqual(list(circle_complaints(library)),
                             ["a circle of includes: ops/a/x.h includes ops/b/y.h, ops/b/w.cpp includes ops/a/v.h."])
            (library / "ops/b/w.cpp").unlink()
            self.assertEqual(list(circle_complaints(library)), [])

    def test_the_umbrella_may_include_everything(self):
        self.assertEqual(self.complaints_of("intarsia.h", '#pragma once\n#include "intarsia/nn/styles.h"\n'), [])

    def test_a_file_outside_the_layers_is_named(self):
        self.assertEqual(
            self.complaints_of("utils/a.cpp", ""),
            ["intarsia/utils/a.cpp: not in a layer. Move it, or add its folder to the list in layers_test.py."],
        )

    def test_a_header_without_pragma_once_is_named(self):
        self.assertEqual(self.complaints_of("core/a.h", "\n"), ["intarsia/core/a.h: a header without #pragma once."])

    def test_a_header_whose_function_another_source_defines_is_named(self):
        text = "#pragma once\nnamespace intarsia {\nint64_t count(\n    int of);  // how many\n}\n"
        self.assertEqual(self.complaints_of("core/a.h", text),
                         ["intarsia/core/a.h: declares count, which core/a.cpp does not define."])

    def test_code_that_looks_for_one_kind_of_placement_is_named(self):
        self.assertEqual(
            self.complaints_of("core/a.cpp", "if (auto* s = std::get_if<Shard>(&p)) return s->dim;\n"),
            ["intarsia/core/a.cpp:1: looks for one kind of placement. Visit all kinds, or ask a function of core/placement.h."],
        )

    def test_dispatch_that_names_an_op_is_named(self):
        for line in ['if (name == "aten::histc") return;', 'aten->impl("detach", kernel);', "List<at::_ops::mm>", 'op.name == "histc"']:
            found = "".join(self.complaints_of("dispatch/a.cpp", line + "\n"))
            self.assertIn("intarsia/dispatch/a.cpp:1: names an op", found, line)
        self.assertEqual(self.complaints_of("dispatch/a.cpp", '// as "aten::add" is\nname.rfind("aten::", 0);\n'), [])

    def test_an_op_that_asks_for_a_guide_is_named(self):
        found = "".join(self.complaints_of("ops/a.cpp", "if (is_guided()) return;\n"))
        self.assertIn("intarsia/ops/a.cpp:1: asks for a guide", found)

    def test_a_call_that_goes_up_is_named(self):
        found = [("core", {"intarsia::a()"}, {"intarsia::b()", "intarsia::start()"}), ("ops", {"intarsia::b()", "intarsia::start()"}, {"intarsia::a()"})]
        self.assertEqual(list(symbol_complaints(found)), ["core calls intarsia::b(), which ops defines: only start.h goes up."])

    def test_a_long_file_is_named(self):
        self.assertEqual(self.complaints_of("core/a.cpp", "\n" * 400), [])
        self.assertEqual(
            self.complaints_of("core/a.cpp", "\n" * 401),
            ["intarsia/core/a.cpp: 401 lines. The limit is 400: split it."],
        )


if __name__ == "__main__":
    unittest.main()
