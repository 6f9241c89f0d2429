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
ORDER = ["core", "comm", "redistribute", "rules", "propagate", "per_rank", "tensor", "dispatch", "random", "ops", "nn", "data_parallel", "checkpoint", "debug"]
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
            yield from inner_complaints(name, lines)
        yield from placement_complaints(name, lines)


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
    folder = name.parts[0]
    if folder not in ORDER:
        yield f"intarsia/{name}: not in a layer. Move it, or add its folder to the list in layers_test.py."
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match or match[1] in EXEMPT:
            continue
        if match[1].split("/")[0] not in [folder, *below(folder)]:
            yield f"intarsia/{name}:{number}: includes {match[1]}. {folder} may include {', '.join([*below(folder), folder])}."


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
    group = re.match(r"unity_(\w+?)-", path.name)
    if group:
        return group[1]
    below_target = path.parts[path.parts.index("intarsia.dir") + 1 :] if "intarsia.dir" in path.parts else ()
    return below_target[1] if len(below_target) > 2 and below_target[0] == "intarsia" else None


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

    def test_every_type_has_a_name_of_its_own(self):
        found = list(twin_complaints(ROOT / "intarsia"))
        self.assertFalse(found, "\n" + "\n".join(found))

    @unittest.skipUnless("INTARSIA_OBJECTS" in os.environ, "ctest names the object files")
    def test_no_layer_calls_one_above_it(self):
        found = list(symbols(os.environ["INTARSIA_OBJECTS"]))
        self.assertEqual({folder for folder, _, _ in found}, set(ORDER))
        wrong = sorted(set(symbol_complaints(found)))
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


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
            ["intarsia/comm/a.cpp:2: includes tensor/api.h. comm may include core, comm."],
        )

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
            self.assertEqual(folder_of(objects / "Unity/unity_comm-shm-1_cxx.cxx.o"), "comm")
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
