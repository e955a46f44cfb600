"""A round recomputed outside of our code: from the payloads that the service kept, in plain Python integers, bit for bit."""
import hashlib
import os
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(os.environ["SHEAF_SOURCE"], "tests", folder) for folder in ("kit", "vectors")]
import lattice  # noqa: E402  the independent program: rational arithmetic
from fleet import JOB, TENANT, Fleet, read_safetensors  # noqa: E402

FRACTION_BITS = 24


def model_digest(tensors):
    u64 = lambda n: struct.pack("<Q", n)  # noqa: E731
    stream = b""
    for name in sorted(tensors, key=str.encode):
        dtype, shape, data = tensors[name]
        stream += u64(len(name.encode())) + name.encode() + u64(len(dtype)) + dtype.encode() + u64(len(shape))
        stream += b"".join(map(u64, shape)) + u64(len(data)) + data
    return hashlib.sha256(stream).hexdigest()


def bits(data):
    return struct.unpack(f"<{len(data) // 4}I", data)


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet(devices=4, rounds=2)
        cls.addClassCleanup(cls.fleet.close)
        cls.fleet.run_all()
        cls.models = [cls.fleet.query("SELECT initial_model FROM jobs")[0][0].hex()]
        cls.models += [row["model"] for row in cls.fleet.released()]

    def payloads(self, number):
        """[(weight, payload)] of the updates that round `number` accepted."""
        rows = self.fleet.query("SELECT client, weight, payload_digest FROM updates WHERE round = ? ORDER BY client", number)
        found = []
        for client, weight, digest in rows:
            path = os.path.join(self.fleet.state, TENANT, JOB, "spool", f"{number:08}", client + ".update")
            with open(path, "rb") as file:
                payload = file.read()
            self.assertEqual(hashlib.sha256(payload).digest(), digest)
            found.append((weight, payload))
        self.assertEqual(len(found), 4)
        return found

    def test_every_file_has_the_digest_in_its_name(self):
        for digest in self.models:
            tensors, metadata = read_safetensors(self.fleet.model_path(digest))
            self.assertEqual(model_digest(tensors), digest)
            self.assertEqual(metadata["model_digest"], digest)

    def test_a_round_in_plain_python_gives_the_same_bits(self):
        for number in (1, 2):
            base, _ = read_safetensors(self.fleet.model_path(self.models[number - 1]))
            got, _ = read_safetensors(self.fleet.model_path(self.models[number]))
            updates = self.payloads(number)
            total, at = sum(weight for weight, _ in updates), 0
            for name in sorted(base, key=str.encode):
                size = len(base[name][2])
                parts = [(weight, bits(payload[at:at + size])) for weight, payload in updates]
                expected = []
                for index, before in enumerate(floats(base[name][2])):
                    weighted = sum(weight * lattice.decode(values[index], FRACTION_BITS)[1] for weight, values in parts)
                    mean = struct.unpack("<f", struct.pack("<I", lattice.mean(weighted, total, lattice.UNIT, FRACTION_BITS)))[0]
                    # A double has more than twice a float's digits and two, so rounding twice is rounding once (Figueroa 1995).
                    expected.append(struct.unpack("<I", struct.pack("<f", before + mean))[0])
                self.assertEqual(tuple(expected), bits(got[name][2]), f"round {number}, {name}")
                at += size

    def test_a_float64_mean_lies_within_the_roundings_of_the_lattice(self):
        base, _ = read_safetensors(self.fleet.model_path(self.models[0]))
        got, _ = read_safetensors(self.fleet.model_path(self.models[1]))
        updates = self.payloads(1)
        total, at = sum(weight for weight, _ in updates), 0
        for name in sorted(base, key=str.encode):
            size = len(base[name][2])
            parts = [(weight, floats(payload[at:at + size])) for weight, payload in updates]
            for index, (before, after) in enumerate(zip(floats(base[name][2]), floats(got[name][2]))):
                mean = sum(weight * values[index] for weight, values in parts) / total
                # Half a lattice unit from decoding, half a unit in the last place from the mean and from the addition.
                allowed = 2.0 ** -(FRACTION_BITS + 1) + 2.0 ** -24 * (abs(mean) + abs(before + mean)) + 2.0 ** -149
                self.assertLessEqual(abs(before + mean - after), allowed, f"{name}[{index}]")
            at += size

    def test_the_final_model_loads_in_the_safetensors_package(self):
        python = os.environ.get("SHEAF_VENV_PYTHON", sys.executable)
        program = ("import sys; from safetensors.numpy import load_file; m = load_file(sys.argv[1]);"
                   "print({k: (str(v.dtype), list(v.shape)) for k, v in sorted(m.items())})")
        path = self.fleet.model_path(self.models[-1])
        done = subprocess.run([python, "-c", program, path], text=True, capture_output=True)
        if "No module named 'safetensors'" in done.stderr:
            self.skipTest("the Python package safetensors is not there: tests/run installs it and sets SHEAF_VENV_PYTHON")
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors, _ = read_safetensors(path)
        self.assertEqual(done.stdout.strip(), str({k: ("float32", v[1]) for k, v in sorted(tensors.items())}))


if __name__ == "__main__":
    unittest.main()
