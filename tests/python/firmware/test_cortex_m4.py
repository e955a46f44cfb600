"""The device's core, the codecs that it needs and the wire code build for a Cortex-M4 and ask the system for nothing.

Compiled with Debian's arm-none-eabi-gcc against newlib's headers; `nm` then must show no undefined symbol besides a
list that every C library for firmware has, what the compiler itself brings, and nanopb's runtime. Sizes are printed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

SOURCE = pathlib.Path(os.environ["SHEAF_SOURCE"])
BUILD = pathlib.Path(os.environ["SHEAF_BUILD"])
CC = "arm-none-eabi-gcc"
FLAGS = ["-std=c17", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-ffreestanding",
         "-ffunction-sections", "-fdata-sections", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
COMMON = ["cursor", "status", "bytes", "name", "parameters"]
# Memory and strings, which any C library has without a system; the compiler's helpers for 64-bit and double
# arithmetic; nanopb. Nothing here allocates, prints, or knows errno, files or threads.
ALLOWED = re.compile(r"(mem(cpy|move|set|cmp|chr)|str(cmp|len|nlen|spn|ncmp|cpy|chr)|__aeabi_\w+|__(gnu|clz|ctz)\w*|pb_\w+)$")


def sources():
    files = sorted((SOURCE / "client/core").glob("*.c"))
    files += [SOURCE / f"common/{name}.c" for name in COMMON]
    files += sorted((SOURCE / "common/codec").glob("*.c"))
    files += sorted((SOURCE / "proto").glob("*.c"))
    return files + [BUILD / "proto/sheaf.pb.c"]


def symbols(objects):
    """(defined, undefined) over all objects."""
    listing = subprocess.run(["arm-none-eabi-nm", *map(str, objects)], check=True, capture_output=True, text=True).stdout
    defined, undefined = set(), set()
    for line in listing.splitlines():
        found = re.match(r"^[0-9a-f ]{8} ([A-Za-z]) (\S+)$", line)
        if found:
            (undefined if found.group(1) == "U" else defined).add(found.group(2))
    return defined, undefined - defined


class CortexM4(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which(CC) is None:
            raise unittest.SkipTest(f"{CC} is not installed (Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi)")
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        # Only nanopb's headers: /usr/include as a whole would hide newlib's with the host's.
        cls.headers = cls.root / "include"
        cls.headers.mkdir()
        for name in ("pb.h", "pb_common.h", "pb_encode.h", "pb_decode.h"):
            shutil.copy(f"/usr/include/{name}", cls.headers)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compile(self, source, name):
        out = self.root / f"{name}.o"
        generated = ["-Wno-error"] if source.name.endswith(".pb.c") else []
        command = [CC, *FLAGS, *generated, f"-I{SOURCE}", f"-I{SOURCE}/client/include", "-isystem", str(BUILD / "proto"),
                   "-isystem", str(self.headers), "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def foreign(self, objects):
        return sorted(name for name in symbols(objects)[1] if not ALLOWED.match(name))

    def test_the_core_asks_the_system_for_nothing(self):
        files = sources()
        self.assertGreater(len(files), 15)
        objects = [self.compile(file, file.parent.name + "-" + file.stem) for file in files]
        self.assertEqual(self.foreign(objects), [])
        self.assertIn("sheaf_edge_poll", symbols(objects)[0])
        sizes = subprocess.run(["arm-none-eabi-size", "-t", *map(str, objects)], check=True, capture_output=True, text=True)
        print("\n" + re.sub(re.escape(str(self.root)) + "/", "", sizes.stdout))
        total = [line.split() for line in sizes.stdout.splitlines() if "(TOTALS)" in line][0]
        self.assertEqual(int(total[1]) + int(total[2]), 0, "the core has no writable data of its own")

    def test_the_look_at_symbols_sees_what_it_must(self):
        for call in ("malloc(8)", "printf(\"x\")", "fopen(\"a\", \"r\")", "errno", "realloc(0, 8)", "abort()"):
            with self.subTest(call):
                tail = ", 0" if call.startswith("abort") else ""
                file = self.root / "bad.c"
                file.write_text("#include <errno.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
                                f"volatile int sink;\nvoid f(void);\nvoid f(void) {{ sink = (int)({call}{tail}); }}\n")
                command = [CC, "-mcpu=cortex-m4", "-mthumb", "-O0", "-w", "-c", str(file), "-o", str(self.root / "bad.o")]
                subprocess.run(command, check=True)
                self.assertNotEqual(self.foreign([self.root / "bad.o"]), [])


if __name__ == "__main__":
    unittest.main()
