"""lattice.h is read by C, C++ and CUDA compilers, and what sums on a GPU holds no floating-point instruction."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SOURCE = os.environ["SHEAF_SOURCE"]
CXX_FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", "-I", SOURCE]
NVCC_FLAGS = ["-ptx", "-arch=sm_80", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-I", SOURCE]

PROGRAM = """
#include "common/lattice.h"
int main() {
    int32_t q = 0;
    float x = 1.5f; /* 1.5 * 2^0 is a tie: to the even 2 */
    bool ok = lattice_decode_f32(lattice_f32_bits(x), 0, &q) == SHEAF_OK && q == 2 && lattice_float_environment_ok();
    return ok && lattice_mean(6, 4, LATTICE_UNIT, 1) == 0.75f ? 0 : 1;
}
"""

KERNELS = """
#include "common/lattice.h"
extern "C" __global__ void sums(const uint32_t *x, int f, int64_t weight, uint64_t multiplier, int64_t *sum, lattice_norm *norm, int *bad) {
    int32_t q = 0;
    unsigned i = threadIdx.x;
    if (lattice_decode_f32(x[i], f, &q) != SHEAF_OK) { *bad = 1; return; }
    lattice_norm_add(&norm[i], q);
    lattice_accumulate(&sum[i], weight, lattice_clip(q, multiplier));
}
extern "C" __global__ void means(const int64_t *sum, uint64_t total, int f, float *out) {
    out[threadIdx.x] = lattice_mean(sum[threadIdx.x], total, LATTICE_UNIT, f);
}
"""


def compiler(name):
    path = shutil.which(name)
    if path is None:
        raise unittest.SkipTest(f"no {name} on this machine")
    return path


class Compilers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def build(self, name, text, *command):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        out = os.path.join(self.folder, "out")
        done = subprocess.run([*command, path, "-o", out], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def test_cxx_compilers_read_it_and_agree(self):
        for name in ("g++", "clang++"):
            with self.subTest(compiler=name):
                program = self.build("program.cc", PROGRAM, compiler(name), *CXX_FLAGS)
                self.assertEqual(subprocess.run([program], timeout=20, check=False).returncode, 0)

    def test_sums_in_cuda_are_integers_and_means_round_to_nearest(self):
        with open(self.build("kernels.cu", KERNELS, compiler("nvcc"), *NVCC_FLAGS), encoding="ascii") as file:
            sums, means = file.read().split(".visible .entry")[1:]
        floating = re.compile(r"\.f(?:16|32|64)\b")
        self.assertIn("sums(", sums)
        self.assertFalse(floating.search(sums))
        steps = [line.split()[0] for line in means.splitlines() if floating.search(line) and ".reg" not in line and "global" not in line]
        for step in steps:
            self.assertRegex(step, r"^(cvt|mul|div)\.rn\.|^(mov|ld|st)\.")
        self.assertTrue(any(step.startswith("div.rn.f64") for step in steps))


if __name__ == "__main__":
    unittest.main()
