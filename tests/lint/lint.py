"""The rules of the house that a compiler does not know: include arrows, lengths, header comments, banned calls.

    lint.py ROOT [--outliers N]     checks a tree; exit 1 when a rule is broken
    test_lint.py                    shows, rule by rule, that each of them can fail

Every rule is a function from a Source to a list of (line, text). docs/ARCHITECTURE.md draws the arrows in words.
"""
import argparse
import pathlib
import re
import sys

FUNCTION_LINES_MAX = 80
FILE_LINES_MAX = 700
C_SUFFIXES = {".c", ".h", ".cu"}
TEXT_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".md", ".txt", ".cmake", ".json", ".yaml", ".yml", ".proto", ".cnf", ".in",
                              ".options", ".supp", ""}
SKIPPED_FOLDERS = {".git", "build", "__pycache__", "corpus", "vectors"}

# Which rooms a room may include, besides itself and the system.
ARROWS = {
    "common": set(),
    "proto": {"common"},
    "client": {"proto", "common"},
    "server": {"proto", "common"},
    "examples": set(),  # the public headers <sheaf/...> only
}
PUBLIC = "client/include/"
# Stages of the server know nothing of one another, nor of those who call them.
STAGES = {"aggregate", "privacy", "audit", "intake", "cohort"}
ABOVE_STAGES = {"round", "job", "main", "tool", "service", "session"}
# The core of the client has no operating system below it and no trainer above it.
CORE_MAY_INCLUDE = ("client/core/", PUBLIC, "common/", "proto/")
BANNED_CALLS = {
    "system": "starts a shell", "popen": "starts a shell", "strcpy": "has no bound", "strcat": "has no bound",
    "sprintf": "has no bound", "vsprintf": "has no bound", "gets": "has no bound", "rand": "is no source of randomness",
    "srand": "is no source of randomness", "atoi": "hides errors", "atof": "hides errors", "strtok": "keeps hidden state",
}
LIBRARY_EXITS = {"exit", "_exit", "abort", "quick_exit"}


def blank(text):
    """The text with comments, strings and character constants replaced by spaces; newlines stay."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def blank_directives(text):
    """The blanked text also without preprocessor lines, whose braces need not balance."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)


class Source:
    def __init__(self, path, text):
        self.path = path  # from the root, with forward slashes
        self.text = text
        self.room = path.split("/")[0]
        self.is_c = pathlib.PurePosixPath(path).suffix in C_SUFFIXES
        self.code = blank(text) if self.is_c else ""

    def includes(self):
        for number, line in enumerate(self.text.split("\n"), 1):
            found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if found:
                yield number, found.group(1) == "<", found.group(2)

    def functions(self):
        """(name, first line, lines) of every function body at file level."""
        code = blank_directives(self.code)
        code = re.sub(r"\bextern\s+\{", lambda m: " " * len(m.group(0)), code)  # extern "C" {, its string blanked
        depth, start, opened = 0, 0, None
        for at, char in enumerate(code):
            if char == "{":
                if depth == 0 and code[start:at].rstrip().endswith(")"):
                    opened = start + len(code[start:at]) - len(code[start:at].lstrip())
                depth += 1
            elif char == "}":
                depth = max(0, depth - 1)
                if depth == 0:
                    if opened is not None:
                        name = re.search(r"(\w+)\s*\(", code[opened:at])
                        first = code.count("\n", 0, opened) + 1
                        yield name.group(1) if name else "?", first, code.count("\n", opened, at) + 1
                    start, opened = at + 1, None
            elif char == ";" and depth == 0:
                start = at + 1


def target_of(include):
    """The path from the root that an include names; None for a system header."""
    if include.startswith("sheaf/"):
        return PUBLIC + include
    if include == "sheaf.pb.h":
        return "proto/sheaf.pb.h"
    return include


def rooms_of_arrows(source):
    if not source.is_c or source.room not in ARROWS:
        return []
    broken = []
    for line, is_system, include in source.includes():
        if is_system and not include.startswith("sheaf/"):
            continue
        target = target_of(include)
        room = target.split("/")[0]
        if "/" not in target or room not in set(ARROWS) | {"tests"}:
            broken.append((line, f'"{include}" is not written from the root'))
        elif source.path.startswith("server/tool/") and room == "client":
            continue  # the tool may see both ends
        elif source.room == "examples" and (target.startswith(PUBLIC) or room == "examples"):
            continue
        elif room != source.room and room not in ARROWS[source.room]:
            broken.append((line, f"{source.room} must not include {room} ({include})"))
    return broken


def server_part(path):
    """aggregate for server/aggregate/x.c, round for server/round.h; '' outside the server."""
    parts = path.split("/")
    return re.sub(r"\.\w+$", "", parts[1]) if parts[0] == "server" and len(parts) > 1 else ""


def arrows_of_stages(source):
    part = server_part(source.path)
    if part == "" or not source.is_c:
        return []
    broken = []
    for line, _, include in source.includes():
        other = server_part(target_of(include))
        if part in STAGES and other != part and other in STAGES | ABOVE_STAGES:
            broken.append((line, f"stage {part} must not include {other} ({include})"))
        if part != "tool" and other == "tool":
            broken.append((line, f"only the tool includes itself ({include})"))
    return broken


def arrows_of_core(source):
    if not source.is_c or not source.path.startswith("client/core/"):
        return []
    return [(line, f"the client's core must not include {include}") for line, is_system, include in source.includes()
            if not (is_system and not include.startswith("sheaf/")) and not target_of(include).startswith(CORE_MAY_INCLUDE)]


def function_length(source):
    if not source.is_c:
        return []
    return [(first, f"{name} has {lines} lines, more than {FUNCTION_LINES_MAX}")
            for name, first, lines in source.functions() if lines > FUNCTION_LINES_MAX]


def file_length(source):
    lines = source.text.count("\n")
    suffix = pathlib.PurePosixPath(source.path).suffix
    if suffix not in C_SUFFIXES | {".py"} or lines <= FILE_LINES_MAX:
        return []
    return [(1, f"{lines} lines, more than {FILE_LINES_MAX}")]


def header_comment(source):
    if not source.path.endswith(".h"):
        return []
    name = source.path.split("/")[-1]
    if re.match(rf"/\* {re.escape(name)} - \S.{{9,}}", source.text):
        return []
    return [(1, f"does not open with its purpose: /* {name} - what it is for")]


def banned_calls(source):
    broken = []
    for found in re.finditer(r"(?<![\w.>])(\w+)\s*\(", source.code):
        if found.group(1) in BANNED_CALLS:
            line = source.code.count("\n", 0, found.start()) + 1
            broken.append((line, f"{found.group(1)}() {BANNED_CALLS[found.group(1)]}"))
    return broken


def exits_in_libraries(source):
    programs = ("server/main.c", "server/tool/", "client/daemon/")
    if not source.is_c or source.room not in ("common", "proto", "client", "server") or source.path.startswith(programs):
        return []
    return [(source.code.count("\n", 0, found.start()) + 1, f"{found.group(1)}() in a library")
            for found in re.finditer(r"(?<![\w.>])(\w+)\s*\(", source.code) if found.group(1) in LIBRARY_EXITS]


def unfinished(source):
    if source.path.startswith("tests/lint/"):
        return []
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    return [(number, "unfinished by its own words") for number, line in enumerate(source.text.split("\n"), 1)
            if words.search(line)]


def private_paths(source):
    if source.path.startswith("tests/lint/"):
        return []
    path = re.compile(r"(?<![\w.])/(home|root|Users)/\w")
    return [(number, "names a path of somebody's machine") for number, line in enumerate(source.text.split("\n"), 1)
            if path.search(line)]


def vague_folders(source):
    vague = {"util", "utils", "misc", "helper", "helpers"} & set(source.path.split("/")[:-1])
    return [(1, f"the folder name {vague.pop()} says nothing")] if vague else []


RULES = [rooms_of_arrows, arrows_of_stages, arrows_of_core, function_length, file_length, header_comment, banned_calls,
         exits_in_libraries, unfinished, private_paths, vague_folders]


def check(source):
    return [(source.path, line, rule.__name__, text) for rule in RULES for line, text in rule(source)]


def sources_of(root):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts) or path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        if path.is_symlink() or relative.name == ".git":
            continue
        try:
            yield Source(relative.as_posix(), path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a binary without a suffix


def print_outliers(sources, count):
    functions = sorted(((lines, s.path, first, name) for s in sources if s.is_c for name, first, lines in s.functions()),
                       reverse=True)
    lengths = sorted(f[0] for f in functions)
    if lengths:
        print(f"functions: {len(lengths)}, median {lengths[len(lengths) // 2]}, nine in ten up to "
              f"{lengths[len(lengths) * 9 // 10]}, longest {lengths[-1]} lines")
    for lines, path, first, name in functions[:count]:
        print(f"  {lines:3d}  {path}:{first} {name}")


def main():
    parser = argparse.ArgumentParser(description="checks the rules of the house")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--outliers", type=int, default=5, help="how many of the longest functions to print")
    arguments = parser.parse_args()
    sources = list(sources_of(arguments.root))
    c_files = sum(s.is_c for s in sources)
    broken = [finding for source in sources for finding in check(source)]
    for path, line, rule, text in broken:
        print(f"{path}:{line}: {text} [{rule}]")
    print_outliers(sources, arguments.outliers)
    print(f"lint: {len(sources)} files, {c_files} of them C; {len(broken)} findings")
    return 1 if broken or c_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
