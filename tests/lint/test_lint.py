"""Each rule of lint.py finds its violation and leaves the nearest legal text alone."""
import sys
import unittest

sys.dont_write_bytecode = True
import lint  # noqa: E402


def findings(path, text):
    return {rule for _, _, rule, _ in lint.check(lint.Source(path, text))}


class Rules(unittest.TestCase):
    def breaks(self, rule, path, text):
        self.assertIn(rule, findings(path, text), f"{path}: {text!r}")

    def passes(self, path, text):
        self.assertEqual(set(), findings(path, text), f"{path}: {text!r}")

    def test_rooms(self):
        for path, include in [("common/a.c", "proto/frame.h"), ("proto/a.c", "client/core/a.h"),
                              ("client/core/a.c", "server/round.h"), ("server/a.c", "client/core/a.h"),
                              ("server/a.c", "sheaf/edge.h"), ("examples/a.c", "common/bytes.h"),
                              ("common/a.c", "tests/cmocka.h"), ("common/a.c", "bytes.h")]:
            self.breaks("rooms_of_arrows", path, f'#include "{include}"\n')
        self.breaks("rooms_of_arrows", "server/a.c", "#include <sheaf/edge.h>\n")
        for path, include in [("common/a.c", "common/bytes.h"), ("proto/a.c", "sheaf.pb.h"),
                              ("client/port/posix/a.c", "proto/frame.h"), ("client/daemon/a.c", "sheaf/edge.h"),
                              ("server/tool/a.c", "sheaf/edge.h"), ("tests/unit/a.c", "server/round.h")]:
            self.passes(path, f'#include "{include}"\n#include <stdio.h>\n')
        self.passes("examples/a.c", "#include <sheaf/edge.h>\n")

    def test_stages(self):
        self.breaks("arrows_of_stages", "server/intake.c", '#include "server/aggregate/aggregator.h"\n')
        self.breaks("arrows_of_stages", "server/privacy/noise.c", '#include "server/audit/log.h"\n')
        self.breaks("arrows_of_stages", "server/aggregate/cpu.c", '#include "server/round.h"\n')
        self.breaks("arrows_of_stages", "server/round.c", '#include "server/tool/verb.h"\n')
        self.passes("server/round.c", '#include "server/aggregate/aggregator.h"\n')
        self.passes("server/aggregate/cpu.c", '#include "server/aggregate/backend.h"\n')

    def test_core(self):
        self.breaks("arrows_of_core", "client/core/a.c", '#include "client/port/posix/clock.h"\n')
        self.breaks("arrows_of_core", "client/core/a.c", '#include "client/trainer/network.h"\n')
        self.passes("client/core/a.c", '#include "client/core/b.h"\n#include "sheaf/edge.h"\n')

    def test_function_length(self):
        body = "    x++;\n" * 79
        self.breaks("function_length", "common/a.c", "int f(int x) {\n" + body + "    }\n}\n".replace("    }\n", "    x++;\n"))
        self.passes("common/a.c", "int f(int x) {\n" + "    x++;\n" * 78 + "}\n")

    def test_functions_are_found_among_other_braces(self):
        text = ('static const int t[] = {1, 2};\n#define M(x) \\\n    do { x; \\\n    } while (0)\n'
                'extern "C" {\n/* { */\nstatic int f(void)\n{\n    if (1) { return \'{\'; }\n    return 0;\n}\n}\n'
                'struct s { int a; };\nint g(void) { return 1; }\n')
        self.assertEqual([("f", 7, 5), ("g", 14, 1)], list(lint.Source("common/a.c", text).functions()))

    def test_file_length(self):
        self.breaks("file_length", "common/a.c", "\n" * 701)
        self.passes("common/a.c", "\n" * 700)

    def test_header_comment(self):
        self.breaks("header_comment", "common/a.h", "#pragma once\n")
        self.breaks("header_comment", "common/a.h", "/* b.h - what it is for. */\n")
        self.passes("common/a.h", "/* a.h - what it is for. */\n#pragma once\n")

    def test_banned_calls(self):
        for call in lint.BANNED_CALLS:
            self.breaks("banned_calls", "tests/a.c", f"int f(void) {{ return {call}(x); }}\n")
        self.passes("common/a.c", 'int f(void) { return g("system(x)") + s->rand(1) + my_atoi(2); } /* gets() */\n')

    def test_exits(self):
        self.breaks("exits_in_libraries", "common/a.c", "void f(void) { exit(1); }\n")
        self.breaks("exits_in_libraries", "client/core/a.c", "void f(void) { abort(); }\n")
        self.passes("server/main.c", "int main(void) { exit(1); }\n")
        self.passes("server/a.c", "void f(void) { table->abort(1); }\n")

    def test_unfinished(self):
        for word in ("TODO", "FIXME", "XXX"):
            self.breaks("unfinished", "docs/a.md", f"{word}: later\n")
        self.passes("docs/a.md", "mktemp /tmp/a.XXXXXX\n")

    def test_private_paths(self):
        for path in ("/home/ann/x", "/root/x", "/Users/ann/x"):
            self.breaks("private_paths", "docs/a.md", f"see {path}\n")
        self.passes("docs/a.md", "see /etc/sheaf and build/home/x\n")

    def test_vague_folders(self):
        self.breaks("vague_folders", "common/utils/a.c", "int a;\n")
        self.passes("common/codec/a.c", "int a;\n")

    def test_every_rule_is_tested_here(self):
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        for rule in lint.RULES:
            self.assertIn(f'self.breaks("{rule.__name__}"', text)


if __name__ == "__main__":
    unittest.main()
