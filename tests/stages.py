"""The stages of tests/run: each builds or checks one thing, counts its tests, and keeps its log in build/logs/.

A tier is a list of stages. A stage returns (passed, failed); one that counted nothing has failed, for then nothing was
shown. Stages go on after a failure, so that one run tells everything; only a build that fails ends its own preset.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "logs"
VENV = ROOT / "build" / "venv"
JOBS = os.cpu_count() or 2
# Most tests wait for clocks, disks and each other's processes for half of their time.
TESTS_AT_ONCE = 2 * JOBS
COVERAGE_MIN_PERCENT = 85.0
COVERED_ROOMS = ("common", "proto", "server", "client")
FUZZ_SECONDS = int(os.environ.get("SHEAF_FUZZ_SECONDS", "60"))  # a target, in --long
# Programs whose every path through memory is worth valgrind's slowness; the sanitizers see the others.
VALGRIND_TESTS = r"^unit\.(common|proto|client|server)\."
VALGRIND_SKIPPED = r"(bench|power|\.long$)"
QUICK_LABELS = "unit|lint|fuzz"


@dataclasses.dataclass
class Result:
    name: str
    passed: int
    failed: int
    seconds: float
    note: str


class Failed(Exception):
    """A stage could not even start what it wanted to count."""


def run(command, log, **more):
    """Runs a command with its output in the stage's log; returns its exit status."""
    log.write(f"$ {' '.join(map(str, command))}\n")
    log.flush()
    return subprocess.run([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                          cwd=ROOT, **more).returncode


def need(command, log, what):
    if run(command, log) != 0:
        raise Failed(what)


def build(preset, log, *definitions):
    need(["cmake", "--preset", preset, *definitions], log, f"cmake --preset {preset}")
    need(["cmake", "--build", "--preset", preset, "-j", JOBS], log, f"build of {preset}")


def environment_of_tests():
    return dict(os.environ, SHEAF_VENV_PYTHON=str(VENV / "bin" / "python"))


def count_junit(path):
    """(passed, failed, skipped names) of a ctest run."""
    passed, failed, skipped = 0, [], []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.get("status") == "fail":
            failed.append(case.get("name"))
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped.append(case.get("name"))
        else:
            passed += 1
    return passed, failed, skipped


def ctest(preset, log, *arguments):
    junit = LOGS / f"ctest-{preset}.xml"
    junit.unlink(missing_ok=True)
    status = run(["ctest", "--preset", preset, "-j", TESTS_AT_ONCE, "--output-junit", junit, *arguments], log,
                 env=environment_of_tests())
    if not junit.is_file():
        raise Failed("ctest wrote no result")
    passed, failed, skipped = count_junit(junit)
    for name in failed:
        print(f"    failed: {name}", flush=True)
    for name in skipped:
        print(f"    skipped: {name}", flush=True)
    return passed, max(len(failed), int(status != 0)), ("failed: " + " ".join(failed)) if failed else ""


def stage_venv(log, _):
    """A virtual environment over Debian's Python, for what only PyPI has."""
    python = VENV / "bin" / "python"
    if not python.exists():
        need(["/usr/bin/python3", "-m", "venv", "--system-site-packages", VENV], log, "venv")
    if run([python, "-c", "import safetensors.numpy"], log) != 0:
        print("    installing from PyPI: safetensors", flush=True)
        need([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "safetensors"], log, "pip install")
    need([python, "-c", "import safetensors.numpy"], log, "import safetensors")
    return 1, 0, ""


def stage_preset(preset, *arguments):
    def stage(log, options):
        build(preset, log)
        return ctest(preset, log, *arguments)
    return stage


def stage_format(log, _):
    """clang-format on every C file."""
    files = [path for room in (*COVERED_ROOMS, "tests", "examples") for path in sorted((ROOT / room).rglob("*.[ch]"))]
    status = [path for path in files if run(["clang-format", "--dry-run", "-Werror", path], log) != 0]
    for path in status:
        print(f"    not formatted: {path.relative_to(ROOT)}", flush=True)
    return len(files) - len(status), len(status), ""


def stage_coverage(log, options):
    """The tests again, instrumented; then a floor for each room."""
    folder = ROOT / "build" / "coverage"
    build("coverage", log)
    for old in folder.rglob("*.gcda"):
        old.unlink()
    passed, failed, note = ctest("coverage", log, "-LE", "long|lint")
    report = LOGS / "coverage.json"
    need(["gcovr", "-r", ROOT, "--object-directory", folder, "-j", JOBS, "--json-summary", report,
          "--gcov-ignore-parse-errors", *[part for room in COVERED_ROOMS for part in ("-f", f"{room}/")], folder],
         log, "gcovr")
    lines = {room: [0, 0] for room in COVERED_ROOMS}
    for entry in json.loads(report.read_text())["files"]:
        room = entry["filename"].split("/")[0]
        if room in lines:
            lines[room][0] += entry["line_covered"]
            lines[room][1] += entry["line_total"]
    shown = []
    for room, (covered, total) in lines.items():
        percent = 100.0 * covered / total if total else 0.0
        shown.append(f"{room} {percent:.1f} %")
        enough = percent >= COVERAGE_MIN_PERCENT
        passed, failed = passed + enough, failed + (not enough)
    return passed, failed, "lines: " + ", ".join(shown) + (f"; {note}" if note else "")


def programs_of(preset, pattern):
    """Name and command line of the ctest entries that match."""
    listing = subprocess.run(["ctest", "--preset", preset, "--show-only=json-v1"], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout
    for test in json.loads(listing)["tests"]:
        if re.search(pattern, test["name"]) and not re.search(VALGRIND_SKIPPED, test["name"]):
            yield test["name"], test["command"]


def in_parallel(check, items, log):
    """Runs check(item) -> (status, text) on JOBS threads; returns how many passed, and the items that failed."""
    passed, failed = 0, []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for item, (status, text) in zip(items, pool.map(check, items)):
            log.write(text)
            passed, failed = passed + (status == 0), failed + ([item] if status != 0 else [])
    return passed, failed


def captured(command, **more):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    return done.returncode, f"$ {' '.join(map(str, command))}\n{done.stdout}"


def stage_valgrind(log, options):
    """Unit programs, then a job of three rounds, under memcheck: any leak or invalid access is a failure."""
    build("dev", log)
    programs = dict(programs_of("dev", VALGRIND_TESTS))

    def check(name):
        return captured(["valgrind", "-q", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect",
                         "--error-exitcode=99", f"--suppressions={ROOT}/tests/valgrind.supp", *programs[name]],
                        env=dict(environment_of_tests(), SHEAF_UNDER_VALGRIND="1"))
    passed, failed = in_parallel(check, list(programs), log)
    if run(["tests/valgrind-job", ROOT / "build" / "dev", ROOT / "build" / "runs" / "valgrind"], log) == 0:
        passed += 1
    else:
        failed.append("a job of three rounds")
    for name in failed:
        print(f"    failed: {name}", flush=True)
    return passed, len(failed), ""


def stage_tidy(log, options):
    """clang-tidy with the checks of .clang-tidy, on our own sources."""
    database = json.loads((ROOT / "build" / "dev" / "compile_commands.json").read_text())
    files = sorted({entry["file"] for entry in database
                    if str(pathlib.Path(entry["file"]).relative_to(ROOT)).startswith(COVERED_ROOMS)})
    def check(file):
        return captured(["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option", "-p", ROOT / "build" / "dev", file])
    passed, failed = in_parallel(check, files, log)
    for file in failed:
        print(f"    findings: {pathlib.Path(file).relative_to(ROOT)}", flush=True)
    return passed, len(failed), ""


def stage_fuzz(log, options):
    """libFuzzer campaigns, in --long."""
    folder = ROOT / "build" / "fuzz"
    need(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_COMPILER=clang",
          "-DSHEAF_FUZZ=ON", "-DSHEAF_SANITIZE=address,undefined,fuzzer-no-link"], log, "cmake for fuzzing")
    need(["cmake", "--build", folder, "-j", JOBS], log, "build for fuzzing")
    passed, failed = 0, 0
    for program in sorted((folder / "tests" / "fuzz").glob("fuzz_*")):
        name = program.name.removeprefix("fuzz_")
        found = folder / "corpus" / name
        found.mkdir(parents=True, exist_ok=True)
        seeds = [path for path in (ROOT / "tests" / "fuzz" / "corpus" / name,) if path.is_dir()]
        status = run([program, f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", "-rss_limit_mb=2048",
                      f"-artifact_prefix={LOGS}/fuzz-{name}-", found, *seeds, ROOT / "tests" / "vectors" / "wire"], log)
        passed, failed = passed + (status == 0), failed + (status != 0)
        if status != 0:
            print(f"    failed: {name}, see build/logs/fuzz-{name}-*", flush=True)
    return passed, failed, f"{FUZZ_SECONDS} s a target"


def stage_torch(log, options):
    """The PyTorch example with PyPI's current torch (gigabytes), where the other stages use Debian's."""
    python = ROOT / "build" / "venv-torch" / "bin" / "python"
    if not python.exists():
        need(["/usr/bin/python3", "-m", "venv", python.parents[1]], log, "venv")
    if run([python, "-c", "import torch, numpy"], log) != 0:
        print("    installing from PyPI: torch", flush=True)
        need([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "torch", "numpy"], log, "pip install")
    build("release", log)
    environment = dict(environment_of_tests(), SHEAF_BUILD=str(ROOT / "build" / "release"), SHEAF_SOURCE=str(ROOT),
                       SHEAF_TORCH_PYTHON=str(python))
    status = run(["/usr/bin/python3", "-B", "tests/python/edge/test_exec_trainer.py", "-v", "PyTorch"], log, env=environment)
    skipped = "skipped" in (LOGS / "torch.log").read_text()
    return int(status == 0 and not skipped), int(status != 0 or skipped), ""


def stage_quickstart(log, options):
    """The first command of the README, as a user runs it."""
    status = run(["./examples/quickstart", "--json"], log)
    return int(status == 0), int(status != 0), ""


QUICK = [("venv", stage_venv), ("format", stage_format), ("dev", stage_preset("dev", "-L", QUICK_LABELS))]
ORDINARY = [("venv", stage_venv), ("format", stage_format), ("dev", stage_preset("dev", "-LE", "long")),
            ("release", stage_preset("release", "-LE", "long")), ("asan", stage_preset("asan", "-LE", "long")),
            ("tsan", stage_preset("tsan", "-LE", "long|lint")), ("coverage", stage_coverage),
            ("valgrind", stage_valgrind), ("tidy", stage_tidy)]
LONG = ORDINARY + [("campaigns", stage_preset("release", "-L", "long")), ("fuzzing", stage_fuzz), ("torch", stage_torch),
                   ("quickstart", stage_quickstart)]


def run_stage(name, stage, options):
    print(f"== {name}", flush=True)
    began = time.monotonic()
    with open(LOGS / f"{name}.log", "w", encoding="utf-8") as log:
        try:
            passed, failed, note = stage(log, options)
        except Failed as problem:
            passed, failed, note = 0, 1, f"could not: {problem}"
    if passed + failed == 0:
        failed, note = 1, "ran no test"
    result = Result(name, passed, failed, time.monotonic() - began, note)
    word = "ok" if failed == 0 else "FAILED"
    print(f"   {name}: {word}, {passed} passed, {failed} failed, {result.seconds:.0f} s {note}", flush=True)
    if failed:
        show_end(LOGS / f"{name}.log")
    return result


def show_end(path, lines=60):
    print(f"   the end of {path.relative_to(ROOT)}:", flush=True)
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[-lines:]:
        print(f"   | {line}", flush=True)


def print_table(results):
    print("\nstage        passed  failed  seconds")
    for result in results:
        print(f"{result.name:<12} {result.passed:6d}  {result.failed:6d}  {result.seconds:7.0f}  {result.note}")


def main():
    parser = argparse.ArgumentParser(prog="tests/run", description="builds and tests Sheaf; docs/TESTING.md tells what each tier holds")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--quick", action="store_true", help="dev build, unit tests, lint, fuzz replay: for the inner loop")
    tier.add_argument("--long", action="store_true", help="the ordinary tier, then campaigns")
    parser.add_argument("--stage", action="append", metavar="NAME", help="only this stage (again for more)")
    parser.add_argument("--preset", metavar="NAME", help="build and test one CMake preset, nothing else")
    options = parser.parse_args()
    stages = QUICK if options.quick else LONG if options.long else ORDINARY
    if options.preset:
        stages = [("venv", stage_venv), (options.preset, stage_preset(options.preset, "-LE", "long"))]
    if options.stage:
        known = dict(LONG)
        unknown = [name for name in options.stage if name not in known]
        if unknown:
            parser.error(f"no stage {unknown[0]}; there are {', '.join(known)}")
        stages = [(name, known[name]) for name in options.stage]
    LOGS.mkdir(parents=True, exist_ok=True)
    results = [run_stage(name, stage, options) for name, stage in stages]
    print_table(results)
    failed = sum(result.failed for result in results)
    print(f"\n{sum(result.passed for result in results)} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
