"""tests/run fails when anything failed, and when nothing ran."""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests"))
import stages  # noqa: E402

JUNIT = """<?xml version="1.0"?><testsuite>
<testcase name="a" status="run"/><testcase name="b" status="fail"><failure message=""/></testcase>
<testcase name="c" status="notrun"><skipped message="no data"/></testcase></testsuite>"""


class Stages(unittest.TestCase):
    def setUp(self):
        (stages.ROOT / "build").mkdir(exist_ok=True)  # logs are shown by their path in the repository
        self.folder = tempfile.TemporaryDirectory(dir=stages.ROOT / "build")
        self.logs, stages.LOGS = stages.LOGS, pathlib.Path(self.folder.name)
        self.quiet = contextlib.redirect_stdout(io.StringIO())
        self.out = self.quiet.__enter__()

    def tearDown(self):
        self.quiet.__exit__(None, None, None)
        stages.LOGS = self.logs
        self.folder.cleanup()

    def run_one(self, stage):
        return stages.run_stage("sample", stage, None)

    def test_counts_come_from_the_stage(self):
        result = self.run_one(lambda log, options: (3, 1, ""))
        self.assertEqual((3, 1), (result.passed, result.failed))

    def test_a_stage_that_counted_nothing_has_failed(self):
        result = self.run_one(lambda log, options: (0, 0, ""))
        self.assertEqual((0, 1, "ran no test"), (result.passed, result.failed, result.note))

    def test_a_stage_that_could_not_start_has_failed_and_shows_its_log(self):
        def stage(log, options):
            stages.need(["sh", "-c", "echo the reason; exit 3"], log, "build of x")
        result = self.run_one(stage)
        self.assertEqual((0, 1), (result.passed, result.failed))
        self.assertIn("the reason", self.out.getvalue())

    def test_a_skipped_test_is_neither_passed_nor_failed(self):
        path = stages.LOGS / "junit.xml"
        path.write_text(JUNIT)
        self.assertEqual((1, ["b"], ["c"]), stages.count_junit(path))

    def test_each_tier_holds_the_one_below(self):
        names = [dict(tier).keys() for tier in (stages.QUICK, stages.ORDINARY, stages.LONG)]
        self.assertLessEqual(names[0], names[1])
        self.assertLessEqual(names[1], names[2])


if __name__ == "__main__":
    unittest.main()
