"""The power-loss shim loses what was not synced and nothing else, and common/file.c keeps its promises under it."""
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
BUILD = os.environ["SHEAF_BUILD"]
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
from power import Power  # noqa: E402

PROBE = os.path.join(BUILD, "tests", "fault", "file_probe")
# The states that `file_probe script` goes through; a promise of step k means state k or later.
STATES = [{}, {}, {"a/b/x": "one"}, {"a/b/x": "two"}, {"a/b/x": "two", "a/b/y": "three"}, {"a/b/y": "three"},
          {"a/b/y": "three", "a/z": "four"}]
MODES = [("strict", 0), ("names", 0)] + [("mixed", seed) for seed in range(6)]


def files_of(root):
    """Path and content of every finished file. A temporary (.new) is nobody's promise."""
    found = {}
    for folder, _, files in os.walk(root):
        for name in files:
            if not name.endswith(".new"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, root)] = file.read()
    return found


class Shimmed(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="sheaf-power-")
        self.addCleanup(shutil.rmtree, self.work)
        self.root = os.path.join(self.work, "root")
        os.mkdir(self.root)
        self.power = Power(BUILD, self.root, self.work)

    def shell(self, script, **options):
        """Python stands in for a program: its os calls go through the same symbols."""
        return self.power.run([sys.executable, "-c", "import os, sys\nos.chdir(sys.argv[1])\n" + script, self.root], **options)

    def rebuilt(self, mode="strict", seed=0):
        fresh = os.path.join(self.work, "fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        self.power.rebuild(fresh, mode, seed)
        return files_of(fresh)


class WhatSurvives(Shimmed):
    def test_what_was_there_at_the_start_survives(self):
        os.makedirs(os.path.join(self.root, "deep", "er"))
        with open(os.path.join(self.root, "deep", "er", "old"), "w", encoding="utf-8") as file:
            file.write("kept")
        self.shell("open('deep/er/old', 'w').write('changed')")
        self.assertEqual(self.rebuilt(), {"deep/er/old": "kept"})

    def test_an_unsynced_file_in_a_synced_folder_comes_back_empty(self):
        self.shell("open('x', 'w').write('data'); os.fsync(os.open('.', os.O_RDONLY))")
        self.assertEqual(self.rebuilt(), {"x": ""})

    def test_a_synced_file_in_an_unsynced_folder_does_not_come_back(self):
        self.shell("f = open('x', 'w'); f.write('data'); f.flush(); os.fsync(f)")
        self.assertEqual(self.rebuilt(), {})
        self.assertEqual(self.rebuilt("names"), {"x": "data"})

    def test_a_file_synced_and_named_comes_back_as_last_synced(self):
        self.shell("f = open('x', 'w'); f.write('one'); f.flush(); os.fdatasync(f); os.fsync(os.open('.', os.O_RDONLY))\n"
                   "f.write('two'); f.flush()")
        self.assertEqual(self.rebuilt(), {"x": "one"})

    def test_a_rename_without_sync_of_the_file_loses_both_contents(self):
        with open(os.path.join(self.root, "x"), "w", encoding="utf-8") as file:
            file.write("old")
        self.shell("open('t', 'w').write('new'); os.rename('t', 'x'); os.fsync(os.open('.', os.O_RDONLY))")
        self.assertEqual(self.rebuilt(), {"x": ""})

    def test_a_rename_without_sync_of_the_folder_leaves_the_old_file(self):
        with open(os.path.join(self.root, "x"), "w", encoding="utf-8") as file:
            file.write("old")
        self.shell("f = open('t', 'w'); f.write('new'); f.flush(); os.fsync(f); os.rename('t', 'x')")
        self.assertEqual(self.rebuilt(), {"x": "old"})
        self.assertEqual(self.rebuilt("names"), {"x": "new"})

    def test_an_unsynced_removal_comes_back(self):
        with open(os.path.join(self.root, "x"), "w", encoding="utf-8") as file:
            file.write("old")
        self.shell("os.unlink('x')")
        self.assertEqual(self.rebuilt(), {"x": "old"})
        self.assertEqual(self.rebuilt("names"), {})

    def test_a_new_folder_needs_the_sync_of_its_parent(self):
        write = "os.mkdir('d'); f = open('d/x', 'w'); f.write('data'); f.flush(); os.fsync(f); os.fsync(os.open('d', os.O_RDONLY))\n"
        self.shell(write)
        self.assertEqual(self.rebuilt(), {})
        shutil.rmtree(os.path.join(self.root, "d"))
        self.shell(write + "os.fsync(os.open('.', os.O_RDONLY))")
        self.assertEqual(self.rebuilt(), {"d/x": "data"})

    def test_an_inode_number_is_not_used_twice(self):
        # ext4 and tmpfs would give the removed file's number to the next one, and with it the old content.
        self.shell("for i in range(50):\n"
                   "    f = open('t', 'w'); f.write('junk'); f.flush(); os.fsync(f); f.close(); os.unlink('t')\n"
                   "open('x', 'w').write('data'); os.fsync(os.open('.', os.O_RDONLY))")
        self.assertEqual(self.rebuilt(), {"x": ""})

    def test_death_comes_before_or_after_the_chosen_sync(self):
        script = "f = open('x', 'w'); f.write('one'); f.flush(); os.fsync(f); os.fsync(os.open('.', os.O_RDONLY)); f.write('two')"
        self.assertEqual(self.shell(script, die="2")[0], -9)
        self.assertEqual(self.rebuilt(), {})
        self.assertEqual(self.shell(script, die="2:after")[0], -9)
        self.assertEqual(self.rebuilt(), {"x": "one"})

    def test_an_ignored_site_does_nothing_and_the_others_work(self):
        script = "f = open('x7', 'w'); f.write('one'); f.flush(); os.fsync(f); os.fsync(os.open('.', os.O_RDONLY))"
        self.shell(script)
        self.assertEqual(self.power.sites(), ["file x#", "folder ."])
        os.unlink(os.path.join(self.root, "x7"))
        self.shell(script, ignore="file x#")
        self.assertEqual(self.power.count(), 2)
        self.assertEqual(self.rebuilt(), {"x7": ""})

    def test_a_child_process_is_left_alone(self):
        self.shell("import subprocess\n"
                   "subprocess.run([sys.executable, '-c', \"import os; os.fsync(os.open('.', os.O_RDONLY))\"], check=True)")
        self.assertEqual(self.power.count(), 0)


class FilePromises(Shimmed):
    """file.h: "durable" means that it is there, whole, after the power came back."""

    def violations(self, ignore=None):
        """Every (sync, mode) at which a promise does not hold."""
        self._clear()
        self.power.run([PROBE, "script", self.root], ignore=ignore)
        total, found = self.power.count(), []
        for die in range(1, total + 2):
            self._clear()
            code, out = self.power.run([PROBE, "script", self.root], die=die, ignore=ignore)
            self.assertEqual(code, -9 if die <= total else 0)
            promised = len(out.splitlines())
            self.assertTrue(all(line.startswith("ok ") for line in out.splitlines()), out)
            allowed = STATES[promised:promised + 2]
            for mode, seed in MODES:
                if self.rebuilt(mode, seed) not in allowed:
                    found.append((die, mode, seed))
        return total, found

    def _clear(self):
        shutil.rmtree(self.root)
        os.mkdir(self.root)

    def test_every_promise_holds_at_every_sync(self):
        total, found = self.violations()
        self.assertGreater(total, 10)
        self.assertEqual(found, [])

    def test_without_any_one_sync_a_promise_breaks(self):
        self.power.run([PROBE, "script", self.root])
        sites = self.power.sites()
        self.assertEqual(sites, ["folder .", "folder a", "file a/b/x.new", "folder a/b", "file a/b/y.new", "file a/z.new"])
        for site in sites:
            with self.subTest(site=site):
                self.assertNotEqual(self.violations(ignore=site)[1], [])


if __name__ == "__main__":
    unittest.main()
