#!/usr/bin/env python3
"""The README shows the program that the tests run, and the links of the pages lead somewhere."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Readme(unittest.TestCase):
    def test_the_first_program_is_the_example(self):
        shown = re.search(r"^```cpp\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[1]
        example = (ROOT / "examples/0_first_program.cpp").read_text()
        self.assertEqual(shown, example[example.index("#include"):])  # without its header comment

    def test_links_within_the_project_lead_to_files(self):
        for page in PAGES:
            prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
            for target in re.findall(r"\]\(([^)#\s]+)", prose):
                if "://" not in target:
                    self.assertTrue((page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}")

    def test_every_decision_is_listed(self):
        listed = (ROOT / "docs/decisions/README.md").read_text()
        for page in (ROOT / "docs/decisions").glob("2*.md"):
            self.assertIn(f"({page.name})", listed)


if __name__ == "__main__":
    unittest.main()
