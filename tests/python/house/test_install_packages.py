"""The installer: asks for what is missing and nothing else, tries twice, and says what it did."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
INSTALLER = pathlib.Path(os.environ["SHEAF_SOURCE"]) / "examples" / "install-packages"

# Stand-ins that keep their state in $STATE: `installed` lists what is there, `calls` what was asked of apt-get.
DPKG_QUERY = """#!/bin/sh
shift
while [ $# -gt 0 ]; do
    case "$1" in -*) ;; *) grep -qx "$1" "$STATE/installed" && echo "$1 installed" ;; esac
    shift
done
exit 1
"""
APT_GET = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> "$STATE/calls"
case " $* " in *" install "*) ;; *) exit 0 ;; esac
left=$(cat "$STATE/failures")
if [ "$left" -gt 0 ]; then echo $((left - 1)) > "$STATE/failures"; exit 100; fi
for word in "$@"; do echo "$word" >> "$STATE/installed"; done
if [ -x "$STATE/policy-rc.d" ]; then "$STATE/policy-rc.d"; echo "policy $?" >> "$STATE/policy"; fi
"""
ID = """#!/bin/sh
cat "$STATE/user"
"""
SUDO = """#!/bin/sh
[ -e "$STATE/sudo" ] || exit 1
while [ "${1#-}" != "$1" ]; do shift; done
echo "sudo $1" >> "$STATE/calls"
exec "$@"
"""


class Installer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.state = pathlib.Path(self.folder.name)
        (self.state / "bin").mkdir()
        for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET), ("id", ID), ("sudo", SUDO)):
            (self.state / "bin" / name).write_text(text)
            (self.state / "bin" / name).chmod(0o755)
        self.write(installed="gcc\ncmake\n", calls="", failures="0", user="0")
        self.list = self.state / "list.txt"
        self.list.write_text("# build\ngcc\ncmake   # at least 3.25\n\nlibnew-dev\n")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, **files):
        for name, text in files.items():
            (self.state / name).write_text(text)

    def install(self, *lists):
        environment = dict(os.environ, STATE=str(self.state), SHEAF_POLICY_RC_D=str(self.state / "policy-rc.d"),
                           PATH=f"{self.state}/bin:{os.environ['PATH']}")
        return subprocess.run(["bash", INSTALLER, *(lists or (self.list,))], env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)

    def calls(self):
        return (self.state / "calls").read_text().splitlines()

    def test_what_is_there_is_left_alone(self):
        self.write(installed="gcc\ncmake\nlibnew-dev\n")
        done = self.install()
        self.assertEqual((0, [], "packages: all 3 are installed\n"), (done.returncode, self.calls(), done.stdout))

    def test_only_what_is_missing_is_installed_and_named(self):
        done = self.install()
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("packages: installing libnew-dev\n", done.stdout)
        update, install = self.calls()
        self.assertTrue(update.startswith("noninteractive ") and update.endswith(" update"))
        self.assertTrue(install.endswith(" install -y --no-install-recommends libnew-dev"))

    def test_a_failure_is_tried_once_more(self):
        self.write(failures="1")
        self.assertEqual(0, self.install().returncode)
        self.assertEqual(4, len(self.calls()))

    def test_two_failures_are_an_error(self):
        self.write(failures="2")
        done = self.install()
        self.assertEqual(4, done.returncode)
        self.assertIn("could not install libnew-dev", done.stderr)
        self.assertEqual(4, len(self.calls()))

    def test_no_service_is_started_by_installing(self):
        self.assertEqual(0, self.install().returncode)
        self.assertEqual("policy 101\n", (self.state / "policy").read_text())  # "forbidden", policy-rc.d(8)
        self.assertFalse((self.state / "policy-rc.d").exists())

    def test_a_policy_that_is_there_stays(self):
        (self.state / "policy-rc.d").write_text("#!/bin/sh\nexit 0\n")
        (self.state / "policy-rc.d").chmod(0o755)
        self.assertEqual(0, self.install().returncode)
        self.assertEqual("policy 0\n", (self.state / "policy").read_text())
        self.assertTrue((self.state / "policy-rc.d").exists())

    def test_a_user_goes_through_sudo(self):
        self.write(user="1000", sudo="")
        self.assertEqual(0, self.install().returncode)
        self.assertIn("sudo env", self.calls())

    def test_a_user_without_sudo_is_told_the_command(self):
        self.write(user="1000")
        done = self.install()
        self.assertEqual((4, []), (done.returncode, self.calls()))
        self.assertIn("apt-get install -y --no-install-recommends libnew-dev", done.stderr)

    def test_a_list_that_is_not_there(self):
        self.assertEqual(2, self.install(self.state / "none.txt").returncode)

    def test_the_lists_of_the_repository_can_be_read(self):
        root = INSTALLER.parents[1]
        for name in ("examples/packages.txt", "tests/packages.txt"):
            words = [line.split("#")[0].split() for line in (root / name).read_text().splitlines()]
            self.assertTrue(all(len(word) <= 1 for word in words), name)
            self.assertGreater(sum(map(len, words)), 5)


if __name__ == "__main__":
    unittest.main()
