#!/usr/bin/env python3
"""Every test body runs somewhere: none is left out by all filters, and none is skipped in every world.

INTARSIA_RESULTS is the folder where the runs before this one left their results, INTARSIA_TEST_PROGRAMS the programs that hold the
bodies, joined by ":"."""

import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree


def bodies_in(listing):
    """The names in the output of --gtest_list_tests: a suite, then its tests, which are indented."""
    suite = ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if not line.startswith(" "):
            suite = name
        elif name:
            yield suite + name.strip()


def bodies_that_ran(folder):
    for path in pathlib.Path(folder).glob("*.xml"):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.get("result") == "completed":
                yield f"{case.get('classname')}.{case.get('name')}"


class Bodies(unittest.TestCase):
    @unittest.skipUnless("INTARSIA_RESULTS" in os.environ, "ctest names the results")
    def test_every_body_runs_somewhere(self):
        programs = os.environ["INTARSIA_TEST_PROGRAMS"].split(":")
        # Listing needs no ranks.
        listings = [subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout for program in programs]
        all_bodies = {body for listing in listings for body in bodies_in(listing)}
        self.assertGreater(len(all_bodies), 1000)
        nowhere = sorted(all_bodies - set(bodies_that_ran(os.environ["INTARSIA_RESULTS"])))
        self.assertEqual(nowhere, [], "these bodies ran nowhere: they are filtered out or skipped in every world")


class Reading(unittest.TestCase):
    def test_names_are_those_of_suites_and_tests(self):
        listing = "Mesh.\n  HasAxes\n  Prints\nShards/Ops.\n  Run/0  # GetParam() = 3\n"
        self.assertEqual(list(bodies_in(listing)), ["Mesh.HasAxes", "Mesh.Prints", "Shards/Ops.Run/0"])

    def test_what_was_skipped_did_not_run(self):
        text = """<testsuites><testsuite name="A"><testcase name="Ran" status="run" result="completed" classname="A"/>
                  <testcase name="Skipped" status="run" result="skipped" classname="A"/></testsuite></testsuites>"""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "one.xml").write_text(text)
            self.assertEqual(list(bodies_that_ran(folder)), ["A.Ran"])


if __name__ == "__main__":
    unittest.main()
