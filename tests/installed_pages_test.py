#!/usr/bin/env python3
"""What `cmake --install` puts into share/doc/intarsia: pages whose links lead somewhere, and examples.

The argument is the folder of the install."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INSTALLED = pathlib.Path(sys.argv.pop()) / "share/doc/intarsia"


def files(root, *folders):
    return {path.relative_to(root) for folder in folders for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}


class InstalledPages(unittest.TestCase):
    def test_all_pages_and_examples_are_there(self):
        self.assertEqual(files(INSTALLED, "docs", "examples"), files(ROOT, "docs", "examples"))
        self.assertTrue((INSTALLED / "examples/10_a_training_job.cpp").exists())

    def test_their_links_lead_to_files(self):
        for page in [INSTALLED / "README.md", *sorted((INSTALLED / "docs").rglob("*.md"))]:
            prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
            for target in re.findall(r"\]\(([^)#\s]+)", prose):
                if "://" not in target:
                    self.assertTrue((page.parent / target).exists(), f"{page.relative_to(INSTALLED)} links to {target}")


if __name__ == "__main__":
    unittest.main()
