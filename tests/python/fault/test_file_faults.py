"""Every file call of common/file.c is made to fail, at every place: the status is named, the old file stays whole,
no descriptor and no temporary file stays behind."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
from service import covered, sanitized  # noqa: E402
BUILD = os.environ["SHEAF_BUILD"]
FAULTS = os.path.join(BUILD, "tests", "fault")
PROBE = os.path.join(FAULTS, "file_probe")
NAMES = {"ENOSPC": "no_space", "EDQUOT": "no_space", "EIO": "disk", "EACCES": "permission", "ENOMEM": "memory", "EMFILE": "disk"}


class Probed(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="sheaf-fault-")
        self.addCleanup(shutil.rmtree, self.work)
        self.root = os.path.join(self.work, "root")
        self.report = os.path.join(self.work, "report")
        os.mkdir(self.root)
        self.path = os.path.join(self.root, "x")

    def probe(self, *arguments, fault=None, shim="fault_shim.so", **more):
        """Returns the status, what the rest of the line says, and the calls that failed."""
        env = dict(os.environ, LD_PRELOAD=os.path.join(FAULTS, shim), SHEAF_FAULT_PATH=self.root + "*",
                   SHEAF_FAULT_REPORT=self.report, SHEAF_MALLOC_REPORT=self.report,
                   ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""), **more)
        if fault is not None:
            env["SHEAF_MALLOC" if "malloc" in shim else "SHEAF_FAULT"] = fault
        done = subprocess.run([PROBE, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertNotIn("dangling", done.stdout)
        last = done.stdout.splitlines()[-1]
        status, leaked, text = (last.split(" ", 2) + [""])[:3]
        self.assertEqual(leaked, "leaked=0", last)
        with open(self.report, encoding="ascii") as file:
            failed = sum(int(line.split()[-1]) for line in file)
        return status, text, failed

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def content(self):
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def each_failure(self, operation, error, *arguments, before=lambda: None):
        """Makes the 1st, 2nd ... matching call fail until there is none any more; yields what came of it."""
        for number in range(1, 1000):
            before()
            status, text, failed = self.probe(*arguments, fault=f"{operation}:{number}:{error}")
            if failed == 0:
                self.assertEqual(status, "ok")
                self.assertGreater(number, 1, f"{arguments} makes no {operation} call")
                return
            yield status, text
        self.fail("no end")


class Replace(Probed):
    CALLS = ("open", "write", "fsync", "rename")

    def test_a_failed_call_has_its_name_and_the_old_or_new_file_is_whole(self):
        for error, name in NAMES.items():
            for operation in self.CALLS:
                with self.subTest(operation=operation, error=error):
                    for status, text in self.each_failure(operation, error, "replace", self.path, "new", before=lambda: self.write("old")):
                        self.assertEqual(status, name)
                        self.assertIn(self.root, text)
                        self.assertIn(self.content(), ("old", "new"))
                        self.assertEqual(os.listdir(self.root), ["x"])

    def test_any_failure_before_the_rename_leaves_no_file_under_the_final_name(self):
        for operation, number in (("open", 1), ("write", 1), ("fsync", 1), ("rename", 1)):
            with self.subTest(operation=operation):
                status, _, failed = self.probe("replace", self.path, "new", fault=f"{operation}:{number}:EIO")
                self.assertEqual((status, failed), ("disk", 1))
                self.assertEqual(os.listdir(self.root), [])

    def test_short_writes_and_signals_are_gone_through(self):
        for error in ("short", "EINTR"):
            text = "a text of some length"
            for count in (1, 3):
                status, _, failed = self.probe("replace", self.path, text, fault=f"write:1:{error}:{count}")
                self.assertEqual((status, failed, self.content()), ("ok", count, text))

    def test_a_disk_that_stays_full_is_named_and_one_that_heals_works_again(self):
        switch = os.path.join(self.work, "full")
        open(switch, "w", encoding="utf-8").close()
        self.write("old")
        for _ in range(2):
            status, _, _ = self.probe("replace", self.path, "new", fault="write:1:ENOSPC:*", SHEAF_FAULT_WHILE=switch)
            self.assertEqual((status, self.content()), ("no_space", "old"))
        os.unlink(switch)
        status, _, _ = self.probe("replace", self.path, "new", fault="write:1:ENOSPC:*", SHEAF_FAULT_WHILE=switch)
        self.assertEqual((status, self.content()), ("ok", "new"))


class OthersCalls(Probed):
    def test_remove(self):
        for operation in ("unlink", "open", "fsync"):
            for status, _ in self.each_failure(operation, "EIO", "remove", self.path, before=lambda: self.write("old")):
                self.assertEqual(status, "disk")

    def test_make_folder(self):
        folder = os.path.join(self.root, "a", "b")
        for operation in ("mkdir", "fsync", "open"):
            for status, _ in self.each_failure(operation, "ENOSPC", "make_folder", folder,
                                               before=lambda: shutil.rmtree(os.path.join(self.root, "a"), ignore_errors=True)):
                self.assertEqual(status, "no_space")

    def test_make_folder_after_a_failed_sync_syncs_again(self):
        """The folder is there, but its name may not be durable: the second try must not say "done" for nothing."""
        folder = os.path.join(self.root, "a", "b")
        self.assertEqual(self.probe("make_folder", folder, fault="fsync:1:EIO")[0], "disk")
        self.assertEqual(self.probe("make_folder", folder, fault="fsync:1:EIO")[0], "disk")
        self.assertEqual(self.probe("make_folder", folder)[0], "ok")
        self.assertTrue(os.path.isdir(folder))

    def test_a_pipe_is_refused_without_waiting_for_a_writer(self):
        os.mkfifo(self.path)
        self.assertEqual(self.probe("read", self.path)[0], "data")

    def test_read(self):
        self.write("some text")
        for operation in ("open", "read"):
            for status, _ in self.each_failure(operation, "EIO", "read", self.path):
                self.assertEqual(status, "disk")

    def test_short_and_interrupted_reads_are_gone_through(self):
        self.write("some text")
        for error in ("short", "EINTR"):
            self.assertEqual(self.probe("read", self.path, fault=f"read:1:{error}:2")[0::2], ("ok", 2))

    def test_config(self):
        self.write("a: 1\n")
        for operation in ("open", "read"):
            for status, _ in self.each_failure(operation, "EIO", "config", self.path):
                self.assertEqual(status, "disk")


class Memory(Probed):
    def test_every_allocation_of_a_config_may_fail(self):
        if covered():
            self.skipTest("gcov does not survive a failed allocation of its own; the dev and release presets run this")
        if sanitized():
            self.skipTest("a sanitizer brings its own malloc; the dev and release presets run this")
        self.write("a: 1\nb: [1, 2, 3]\n")
        for number in range(1, 1000):
            status, _, failed = self.probe("config", self.path, fault=str(number), shim="malloc_shim.so")
            if failed == 0:
                self.assertEqual(status, "ok")
                self.assertGreater(number, 10)
                return
            self.assertEqual(status, "memory")


if __name__ == "__main__":
    unittest.main()
