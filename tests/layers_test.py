#!/usr/bin/env python3
"""Folders of intarsia/ are layers: each includes only what the table below allows. Files stay short."""

import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What each folder may include, besides itself.
GROUND = ["core", "comm", "redistribute", "rules", "propagate", "tensor"]
MAY_INCLUDE = {
    "core": [],
    "comm": ["core"],
    "redistribute": ["core", "comm"],
    "rules": ["core", "comm", "redistribute"],
    "propagate": ["core", "comm", "redistribute", "rules"],
    "tensor": ["core", "comm", "redistribute", "rules", "propagate"],
    "ops": GROUND,
    "random": GROUND,
    "conv": GROUND,
    "nn": GROUND,
    "data_parallel": GROUND,
    "debug": [*GROUND, "nn"],
}
EXEMPT = ["intarsia.h", "pch.h"]  # directly in intarsia/: the umbrella and the precompiled header
MAX_LINES = 400

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]intarsia/([^">]+)[">]')


def complaints(library):
    """What is wrong with the files of the folder `library`, one line each."""
    for path in sorted(library.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        name = path.relative_to(library)
        lines = path.read_text().splitlines()
        if path.suffix == ".h" and "#pragma once" not in lines:
            yield f"intarsia/{name}: a header without #pragma once."
        if len(lines) > MAX_LINES:
            yield f"intarsia/{name}: {len(lines)} lines. The limit is {MAX_LINES}: split it."
        if str(name) not in EXEMPT:
            yield from include_complaints(name, lines)


def include_complaints(name, lines):
    folder = name.parts[0]
    if folder not in MAY_INCLUDE:
        yield f"intarsia/{name}: not in a layer. Move it, or add its folder to the table in layers_test.py."
        return
    allowed = [folder, *MAY_INCLUDE[folder]]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match and match[1].split("/")[0] not in allowed:
            yield f"intarsia/{name}:{number}: includes {match[1]}. {folder} may include {', '.join(allowed)}."


class Layers(unittest.TestCase):
    def test_the_library_keeps_its_layers(self):
        found = list(complaints(ROOT / "intarsia"))
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_a_folder_allows_only_what_its_neighbours_allow(self):
        for folder, allowed in MAY_INCLUDE.items():
            for lower in allowed:
                self.assertNotIn(folder, MAY_INCLUDE[lower], f"{folder} and {lower} may include each other")


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
            ["intarsia/comm/a.cpp:2: includes tensor/api.h. comm may include comm, core."],
        )

    def test_downward_includes_and_those_within_a_folder_pass(self):
        text = '#pragma once\n#include "intarsia/comm/a.h"\n#include <intarsia/core/b.h>\n'
        self.assertEqual(self.complaints_of("comm/c.h", text), [])

    def test_the_umbrella_may_include_everything(self):
        self.assertEqual(self.complaints_of("intarsia.h", '#pragma once\n#include "intarsia/nn/styles.h"\n'), [])

    def test_a_file_outside_the_layers_is_named(self):
        self.assertEqual(
            self.complaints_of("utils/a.cpp", ""),
            ["intarsia/utils/a.cpp: not in a layer. Move it, or add its folder to the table in layers_test.py."],
        )

    def test_a_header_without_pragma_once_is_named(self):
        self.assertEqual(self.complaints_of("core/a.h", "\n"), ["intarsia/core/a.h: a header without #pragma once."])

    def test_a_long_file_is_named(self):
        self.assertEqual(self.complaints_of("core/a.cpp", "\n" * 400), [])
        self.assertEqual(
            self.complaints_of("core/a.cpp", "\n" * 401),
            ["intarsia/core/a.cpp: 401 lines. The limit is 400: split it."],
        )


if __name__ == "__main__":
    unittest.main()
