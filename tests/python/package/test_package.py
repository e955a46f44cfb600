"""The installed client library: a C99 program builds against it by pkg-config and by find_package, and runs."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
BUILD = pathlib.Path(os.environ["SHEAF_BUILD"])

PROGRAM = r"""
#include <sheaf/edge.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    static sheaf_edge edge;
    sheaf_edge_options options;
    memset(&options, 0, sizeof options);
    printf("%s %s\n", sheaf_status_name(sheaf_edge_init(&edge, &options)), sheaf_edge_state_name(SHEAF_EDGE_JOINING));
    sheaf_edge_fini(&edge);
    return 0;
}
"""
EXPECTED = "usage joining\n"  # a library without options has nobody to talk to

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
find_package(SheafEdge 0.1 REQUIRED)
add_executable(with_shared main.c)
target_link_libraries(with_shared PRIVATE SheafEdge::sheaf_edge)
add_executable(with_static main.c)
target_link_libraries(with_static PRIVATE SheafEdge::sheaf_edge_static)
"""


def instrumentation():
    """Flags without which a program cannot be linked to the library of this build."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    flags = re.findall(r"^SHEAF_SANITIZE:\w+=(.+)$", cache, re.M)
    return [f"-fsanitize={flags[0]}"] if flags else ["--coverage"] if re.search(r"^SHEAF_COVERAGE:\w+=ON$", cache, re.M) else []


def output(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command} gave {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.prefix = cls.root / "moved"
        output("cmake", "--install", BUILD, "--prefix", cls.root / "prefix")
        (cls.root / "prefix").rename(cls.prefix)  # what was installed may be moved
        (cls.root / "main.c").write_text(PROGRAM)
        cls.library = next(cls.prefix.rglob("libsheaf_edge.so")).parent
        cls.environment = dict(os.environ, LD_LIBRARY_PATH=str(cls.library), PKG_CONFIG_PATH=str(cls.library / "pkgconfig"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compile(self, name, flags):
        program = self.root / name
        output("cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *instrumentation(), self.root / "main.c",
               "-o", program, *flags, env=self.environment)
        return output(program, env=self.environment)

    def test_pkg_config_shared(self):
        flags = output("pkg-config", "--cflags", "--libs", "sheaf_edge", env=self.environment).split()
        self.assertEqual(EXPECTED, self.compile("shared", flags))

    def test_pkg_config_static(self):
        flags = output("pkg-config", "--static", "--cflags", "--libs", "sheaf_edge", env=self.environment).split()
        archive = [str(self.library / "libsheaf_edge.a") if flag == "-lsheaf_edge" else flag for flag in flags]
        self.assertEqual(EXPECTED, self.compile("static", archive))
        self.assertNotIn("libsheaf_edge", output("ldd", self.root / "static"))

    def test_find_package(self):
        (self.root / "CMakeLists.txt").write_text(PROJECT)
        flags = " ".join(instrumentation())
        output("cmake", "-G", "Ninja", "-S", self.root, "-B", self.root / "out", f"-DCMAKE_PREFIX_PATH={self.prefix}",
               f"-DCMAKE_C_FLAGS={flags}")
        output("cmake", "--build", self.root / "out")
        for program in ("with_shared", "with_static"):
            self.assertEqual(EXPECTED, output(self.root / "out" / program, env=self.environment))

    def test_the_shared_library_shows_its_public_names_only(self):
        names = re.findall(r" T (\w+)", output("nm", "-D", "--defined-only", self.library / "libsheaf_edge.so"))
        self.assertIn("sheaf_edge_poll", names)
        self.assertEqual([], [name for name in names if not name.startswith(("sheaf_edge_", "sheaf_status_"))])


if __name__ == "__main__":
    unittest.main()
