"""`sheaf aggregate` against the same mean in exact rational arithmetic, bit for bit, and every refusal with its exit code."""
import hashlib
import itertools
import json
import os
import random
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
from fractions import Fraction

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "vectors"))
import lattice  # noqa: E402  the independent program: decode, choose, mean in fractions

SHEAF = os.path.join(os.environ["SHEAF_BUILD"], "server", "sheaf")
SIZES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
MAX_FLOAT = 0x7F7FFFFF


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, data bytes)}"""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    size, = struct.unpack("<Q", content[:8])
    text, data = content[8:8 + size], content[8 + size:]
    header = json.loads(text)
    return text, {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}


def f32(*bits, shape=None):
    return "F32", [len(bits)] if shape is None else shape, struct.pack(f"<{len(bits)}I", *bits)


def bits_of(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def words(data):
    return struct.unpack(f"<{len(data) // 4}I", data)


def expected_mean(inputs, weights):
    """(fraction_bits, mean bits) of one F32 tensor, given as a list of bit patterns an input."""
    total = sum(weights)
    largest = max((bits & 0x7FFFFFFF for values in inputs for bits in values), default=0)
    status, fraction_bits = lattice.choose(largest, total)
    assert status == "ok"
    means = []
    for values in zip(*inputs):
        weighted = sum(weight * lattice.decode(bits, fraction_bits)[1] for weight, bits in zip(weights, values))
        means.append(lattice.mean(weighted, total, lattice.UNIT, fraction_bits))
    return fraction_bits, means


def model_digest(tensors):
    stream = b""
    for name in sorted(tensors, key=str.encode):
        dtype, shape, data = tensors[name]
        u64 = lambda n: struct.pack("<Q", n)  # noqa: E731
        stream += u64(len(name.encode())) + name.encode() + u64(len(dtype)) + dtype.encode()
        stream += u64(len(shape)) + b"".join(map(u64, shape)) + u64(len(data)) + data
    return hashlib.sha256(stream).hexdigest()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = self.path("out.safetensors")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, tensors):
        write_safetensors(self.path(name), tensors)
        return self.path(name)

    def run_sheaf(self, *arguments):
        return subprocess.run([SHEAF, "aggregate", *arguments], capture_output=True, text=True, timeout=120, check=False)

    def aggregate(self, *inputs):
        done = self.run_sheaf("--json", "-o", self.out, *(f"{path}={weight}" for path, weight in inputs))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1)
        return json.loads(done.stdout)

    def refused(self, code, reason, *arguments):
        with open(self.out, "wb") as file:
            file.write(b"old")
        done = self.run_sheaf("-o", self.out, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(reason, done.stderr)
        with open(self.out, "rb") as file:
            self.assertEqual(file.read(), b"old")
        self.assertFalse(os.path.exists(self.out + ".new"))
        return done.stderr


class TheMean(Case):
    def check(self, inputs, weights):
        """inputs: a list of {name: tensor}. Compares every F32 tensor and the digest; returns fraction_bits by name."""
        paths = [self.write(f"in{i}.safetensors", tensors) for i, tensors in enumerate(inputs)]
        printed = self.aggregate(*zip(paths, weights))
        _, found = read_safetensors(self.out)
        self.assertEqual(list(found), sorted(found))
        fraction_bits = {t["name"]: t["fraction_bits"] for t in printed["tensors"]}
        for name, (dtype, shape, data) in inputs[0].items():
            self.assertEqual(found[name][:2], (dtype, shape))
            if dtype != "F32":
                self.assertEqual((found[name][2], fraction_bits[name]), (data, None))
                continue
            bits, mean = expected_mean([words(tensors[name][2]) for tensors in inputs], weights)
            self.assertEqual(fraction_bits[name], bits)
            self.assertEqual(list(words(found[name][2])), mean)
        self.assertEqual(printed["model_digest"], model_digest(found))
        self.assertEqual((printed["weight"], printed["inputs"]), (sum(weights), len(inputs)))
        return fraction_bits

    def test_random_models_match_rational_arithmetic(self):
        rng = random.Random(7)

        def tensors():
            return {
                "b.weight": f32(*(bits_of(rng.gauss(0, 0.1)) for _ in range(600)), shape=[20, 30]),
                "a.bias": f32(*(bits_of(rng.uniform(-1e6, 1e6)) for _ in range(17))),
                "wide": f32(*((rng.getrandbits(32) & 0x807FFFFF) | rng.randint(0, 254) << 23 for _ in range(50))),
                "small": f32(*(rng.getrandbits(20) | rng.getrandbits(1) << 31 for _ in range(9))),
            }
        for weights in ([1], [3, 5], [0, 1], [600, 1, 17, 2**40], [2**31, 2**31, 1], [2**50, 1]):
            self.check([tensors() for _ in weights], weights)

    def test_values_beyond_one_window(self):
        rng = random.Random(8)
        values = [[rng.getrandbits(32) & 0x3FFFFFFF for _ in range(32770)] for _ in range(2)]
        self.check([{"w": f32(*v)} for v in values], [3, 4])

    def test_it_is_within_its_rounding_of_the_true_mean(self):
        rng = random.Random(9)
        inputs = [[bits_of(rng.gauss(0, 1)) for _ in range(200)] for _ in range(5)]
        weights = [1, 20, 300, 4000, 50000]
        bits = self.check([{"w": f32(*v)} for v in inputs], weights)["w"]
        found = words(read_safetensors(self.out)[1]["w"][2])
        for i, word in enumerate(found):
            true = sum(w * lattice.float_of_bits(v[i]) for w, v in zip(weights, inputs)) / sum(weights)
            error = abs(lattice.float_of_bits(word) - true)
            self.assertLessEqual(error, Fraction(1, 2) * Fraction(2) ** -bits + abs(true) * Fraction(2) ** -23)

    def test_the_order_of_the_inputs_changes_no_byte(self):
        rng = random.Random(10)
        inputs = []
        for i in range(4):
            inputs.append((self.write(f"in{i}", {"w": f32(*(bits_of(rng.gauss(0, 10.0 ** rng.randint(-6, 3))) for _ in range(300)))}), 7 * i + 1))
        files = set()
        for order in itertools.permutations(inputs):
            self.aggregate(*order)
            with open(self.out, "rb") as file:
                files.add(file.read())
        self.assertEqual(len(files), 1)

    def test_edges_of_the_lattice(self):
        self.assertEqual(self.check([{"zero": f32(0, 0x80000000)}] * 2, [1, 1])["zero"], 126)
        self.assertEqual(self.check([{"zero": f32(0)}], [2**63 - 1])["zero"], 126)
        self.assertEqual(self.check([{"none": f32(shape=[0, 3])}], [1])["none"], 126)
        self.assertEqual(self.check([{"one": f32(bits_of(1.0))}], [1])["one"], 30)
        self.assertEqual(self.check([{"below": f32(bits_of(1.0) - 1)}], [1])["below"], 31)
        self.assertEqual(self.check([{"most": f32(MAX_FLOAT)}], [1])["most"], -97)
        self.assertEqual(self.check([{"one": f32(bits_of(1.0))}], [2**40])["one"], 22)
        self.check([{"least": f32(1, 0x80000001, 0x007FFFFF)}, {"least": f32(2, 3, 0x00800000)}], [1, 2])

    def test_integers_and_bools_that_agree_are_copied(self):
        steps = struct.pack("<q", -3)
        self.check([{"n": ("I64", [], steps), "w": f32(bits_of(v)), "mask": ("BOOL", [3], b"\1\0\1")} for v in (1.0, 2.0)], [1, 1])

    def test_a_scalar_and_a_utf8_name(self):
        self.check([{"gr\u00f6\u00dfe \"x\"": f32(bits_of(2.5), shape=[])}], [3])

    def test_the_header_is_aligned_and_so_is_every_tensor(self):
        self.check([{"a": ("U8", [3], b"abc"), "b": f32(0, 0), "c": ("I64", [1], bytes(8))}], [1])
        text, _ = read_safetensors(self.out)
        self.assertEqual(len(text) % 8, 0)
        self.assertEqual(text[:1], b"{")
        for entry in json.loads(text).values():
            self.assertEqual(entry["data_offsets"][0] % SIZES[entry["dtype"]], 0)

    def test_the_text_names_tensors_and_digest(self):
        path = self.write("a", {"w": f32(bits_of(1.0)), "n": ("I32", [1], bytes(4))})
        done = self.run_sheaf(f"{path}=2", "--output", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("w: F32, fraction_bits 30", done.stdout)
        self.assertIn("n: I32, equal in all inputs", done.stdout)
        self.assertIn(model_digest(read_safetensors(self.out)[1]), done.stdout)

    def test_memory_does_not_grow_with_the_inputs(self):
        size = 4 * 2**20
        path = self.write("big", {"w": ("F32", [size // 4], bytes(size))})
        peaks = []
        for count in (2, 12):
            process = subprocess.Popen([SHEAF, "aggregate", "-o", self.out, *[f"{path}=1"] * count], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            peaks.append(usage.ru_maxrss * 1024)
        self.assertLess(peaks[1] - peaks[0], size)


class Refusals(Case):
    def setUp(self):
        super().setUp()
        self.good = self.write("good", {"w": f32(bits_of(1.0), bits_of(2.0)), "n": ("I64", [1], bytes(8))})

    def other(self, **changes):
        tensors = {"w": f32(bits_of(1.0), bits_of(2.0)), "n": ("I64", [1], bytes(8)), **changes}
        return self.write("other", {name: tensor for name, tensor in tensors.items() if tensor is not None})

    def refused_pair(self, reason, **changes):
        text = self.refused(3, reason, f"{self.good}=1", f"{self.other(**changes)}=1")
        self.assertIn("other", text)
        return text

    def test_tensors_that_do_not_match(self):
        self.assertIn("'x'", self.refused_pair("wrong_name", x=f32(0)))
        self.assertIn("'w'", self.refused_pair("wrong_name", w=None))
        self.assertIn("'w'", self.refused_pair("wrong_shape", w=f32(0, 0, 0)))
        self.assertIn("'w'", self.refused_pair("wrong_shape", w=f32(0, 0, shape=[2, 1])))
        self.assertIn("'n'", self.refused_pair("wrong_dtype", n=("U8", [1], bytes(1))))

    def test_integers_that_differ(self):
        self.assertIn("'n'", self.refused_pair("mismatch", n=("I64", [1], bytes(7) + b"\1")))

    def test_values_that_are_not_finite(self):
        for bits in (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001):
            self.assertIn("'w', value 1", self.refused_pair("not_finite", w=f32(0, bits)))
        path = self.other(w=f32(0, 0x7FC00000))
        self.refused(3, "not_finite", f"{self.good}=1", f"{path}=0")

    def test_other_float_types(self):
        for dtype in ("F16", "BF16", "F64"):
            path = self.write("half", {"h": (dtype, [1], bytes(SIZES[dtype]))})
            self.assertIn("'h'", self.refused(3, "wrong_dtype", f"{path}=1"))

    def test_weights(self):
        self.refused(2, "negative", f"{self.good}=-1")
        self.refused(2, "all weights are zero", f"{self.good}=0", f"{self.good}=0")
        self.refused(2, "2^63", f"{self.good}={2**62}", f"{self.good}={2**62}")
        self.refused(2, "64 bits", f"{self.good}={2**63}")
        for text in ("", "x", "1.5", " 1", "+1", "1 ", "-", "0x10", "1e3"):
            self.refused(2, "no integer", f"{self.good}={text}")
        self.refused(2, "FILE=WEIGHT", self.good)

    def test_sums_that_no_lattice_holds(self):
        path = self.write("most", {"w": f32(MAX_FLOAT)})
        self.assertIn("'w'", self.refused(3, "not_representable", f"{path}={2**60}"))

    def test_a_mean_that_is_not_finite(self):
        # With a weight of 2^59 only f = -125 fits, where the largest float rounds to 8 units: 2^128.
        path = self.write("most", {"w": f32(MAX_FLOAT)})
        self.assertIn("not finite", self.refused(3, "not_representable", f"{path}={2**59}"))

    def test_files_that_are_no_safetensors(self):
        for name, content in (("empty", b""), ("text", b"hello, world"), ("cut", struct.pack("<Q", 2) + b"{")):
            with open(self.path(name), "wb") as file:
                file.write(content)
            self.assertIn(name, self.refused(3, "data", f"{self.path(name)}=1"))
        self.refused(3, "not_found", f"{self.path('missing')}=1")
        os.mkfifo(self.path("fifo"))
        for path in (self.path("fifo"), self.folder, "/dev/null"):
            self.assertIn(f"{path}: is not a regular file", self.refused(3, "data", f"{path}=1"))

    def test_usage(self):
        for arguments, text in (((), "-o OUT"), (("-o",), "needs a file"), (("-o", "x"), "no inputs"), (("--frobnicate",), "no option")):
            done = self.run_sheaf(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
        done = self.run_sheaf("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usage: sheaf aggregate", done.stdout)

    def test_a_disk_that_cannot_be_written(self):
        done = self.run_sheaf("-o", self.path("no/such/folder"), f"{self.good}=1")
        self.assertEqual(done.returncode, 4, done.stderr)

    def test_an_output_that_is_no_file_is_left_alone(self):
        os.mkfifo(self.path("fifo"))
        done = self.run_sheaf("-o", self.path("fifo"), f"{self.good}=1")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("fifo: is there, but is no regular file", done.stderr)
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("fifo")).st_mode))


if __name__ == "__main__":
    unittest.main()
