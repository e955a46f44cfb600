"""`sheaf model` and `sheaf data`: same seed, same bytes; splits lose nothing; mistakes are named with their exit code."""
import sys

sys.dont_write_bytecode = True

import gzip
import hashlib
import os
import pathlib
import struct
import unittest

import numpy

import kit

SOURCE = pathlib.Path(os.environ["SHEAF_SOURCE"])
DIGITS = SOURCE / "examples" / "digits" / "digits.csv"
NETWORK = SOURCE / "examples" / "digits" / "network.yaml"


def digest_by_definition(tensors):
    """The model digest of DESIGN and common/parameters.h, computed here."""
    out = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        value, text = tensors[name], name.encode()
        out.update(struct.pack("<Q", len(text)) + text + struct.pack("<Q", 3) + b"F32" + struct.pack("<Q", value.ndim))
        out.update(struct.pack(f"<{value.ndim}Q", *value.shape) + struct.pack("<Q", 4 * value.size) + value.astype("<f4").tobytes())
    return out.hexdigest()


class Model(kit.Folder):
    def make(self, name, seed):
        result = kit.sheaf("model", "init", NETWORK, "--seed", seed, "-o", self.path / name, "--json")
        return result["model_digest"], (self.path / name).read_bytes()

    def test_the_same_seed_gives_the_same_bytes(self):
        self.assertEqual(self.make("a", 1), self.make("b", 1))
        self.assertNotEqual(self.make("a", 1)[0], self.make("c", 2)[0])

    def test_inspect_tells_tensors_and_the_digest_of_the_definition(self):
        digest, _ = self.make("a", 1)
        shown = kit.sheaf("model", "inspect", self.path / "a", "--json")
        tensors = kit.read_safetensors(self.path / "a")
        self.assertEqual(shown["model_digest"], digest_by_definition(tensors))
        self.assertEqual(shown["model_digest"], digest)
        self.assertEqual({t["name"]: tuple(t["shape"]) for t in shown["tensors"]}, {n: v.shape for n, v in tensors.items()})
        self.assertEqual(shown["parameters"], sum(v.size for v in tensors.values()))
        self.assertIn(digest, kit.sheaf("model", "inspect", self.path / "a"))

    def test_first_values_lie_within_the_limits_of_he_and_glorot(self):
        self.make("a", 1)
        tensors = kit.read_safetensors(self.path / "a")
        weights = [tensors[name] for name in sorted(tensors) if name.endswith("weight")]
        for weight, limit in ((weights[0], (6 / 64) ** 0.5), (weights[-1], (6 / (weights[-1].shape[1] + 10)) ** 0.5)):
            self.assertLessEqual(numpy.abs(weight).max(), limit * 1.000001)
            self.assertGreater(numpy.abs(weight).max(), limit * 0.98)
            self.assertLess(abs(weight.mean()), limit * 0.1)

    def test_training_twice_gives_the_same_model_and_learns(self):
        kit.sheaf("data", "split", "--data", DIGITS, "--clients", 1, "--partition", "iid", "--test-fraction", 0.2, "--out", self.path / "d")
        train = ("model", "train", NETWORK, "--data", self.path / "d" / "train.csv", "--epochs", 12, "--batch", 8, "--lr", 0.02, "--json")
        first = kit.sheaf(*train, "--seed", 1, "-o", self.path / "a")
        again = kit.sheaf(*train, "--seed", 1, "-o", self.path / "b")
        other = kit.sheaf(*train, "--seed", 2, "-o", self.path / "c")
        self.assertEqual((self.path / "a").read_bytes(), (self.path / "b").read_bytes())
        self.assertEqual(first["model_digest"], again["model_digest"])
        self.assertNotEqual(first["model_digest"], other["model_digest"])
        self.assertEqual(first["examples"], 1437)
        result = kit.sheaf("model", "evaluate", NETWORK, self.path / "a", "--data", self.path / "d" / "test.csv", "--json")
        self.assertEqual(result["examples"], 360)
        self.assertGreater(result["accuracy"], 0.94)
        self.assertIn("accuracy", kit.sheaf("model", "evaluate", NETWORK, self.path / "a", "--data", self.path / "d" / "test.csv"))

    def fails(self, code, text, *arguments):
        self.assertIn(text, kit.sheaf(*arguments, expect=code))

    def test_mistakes_are_named_with_their_exit_code(self):
        out = self.path / "o"
        self.make("a", 1)
        other = self.path / "other.yaml"
        other.write_text("input: [64]\nlayers:\n  - {kind: dense, units: 10}\n")
        self.fails(2, "which command", "model")
        self.fails(2, "no command 'learn'", "model", "learn")
        self.fails(2, "-o is needed", "model", "init", NETWORK)
        self.fails(2, "--data is needed", "model", "train", NETWORK, "-o", out)
        self.fails(2, "--epochs: expected 1 to 10000", "model", "train", NETWORK, "--data", DIGITS, "-o", out, "--epochs", 0)
        self.fails(2, "--momentum: expected", "model", "train", NETWORK, "--data", DIGITS, "-o", out, "--momentum", 1)
        self.fails(2, "--seed: expected", "model", "init", NETWORK, "-o", out, "--seed", "-1")
        self.fails(2, "an option of another command", "model", "init", NETWORK, "-o", out, "--epochs", 3)
        self.fails(2, "too few or too many", "model", "inspect")
        self.fails(3, "nowhere.yaml", "model", "init", self.path / "nowhere.yaml", "-o", out)
        self.fails(3, "nowhere.csv", "model", "train", NETWORK, "--data", self.path / "nowhere.csv", "-o", out)
        self.fails(3, "is not the network's", "model", "evaluate", other, self.path / "a", "--data", DIGITS)
        self.fails(3, "no column is named 'class'", "model", "evaluate", NETWORK, self.path / "a", "--data", DIGITS, "--label", "class")
        self.fails(3, "try a smaller --lr", "model", "train", NETWORK, "--data", DIGITS, "--lr", 1e30, "-o", out)
        self.assertFalse(out.exists())

    def test_help_goes_to_stdout(self):
        for arguments in (("model", "--help"), ("model", "train", "--help"), ("data", "--help"), ("data", "split", "--help")):
            self.assertIn("usage: sheaf", kit.sheaf(*arguments))
        self.assertIn("maxpool", kit.sheaf("model", "reference"))


class Split(kit.Folder):
    def split(self, name, *more):
        return kit.sheaf("data", "split", "--data", DIGITS, "--clients", 20, "--out", self.path / name, "--json", *more)

    def rows(self, *name):
        return self.path.joinpath(*name).read_text().splitlines()

    def test_no_row_is_lost_or_doubled(self):
        shown = self.split("a", "--test-fraction", 0.2)
        self.assertEqual((shown["train"], shown["test"], shown["classes"]), (1437, 360, 10))
        header, *source = DIGITS.read_text().splitlines()
        dealt = []
        for client, size in enumerate(shown["clients"]):
            head, *rows = self.rows("a", f"client-{client:02}.csv")
            self.assertEqual((head, len(rows)), (header, size))
            self.assertGreaterEqual(size, 8)
            dealt += rows
        self.assertEqual(sorted(dealt), sorted(self.rows("a", "train.csv")[1:]))
        self.assertEqual(sorted(dealt + self.rows("a", "test.csv")[1:]), sorted(source))

    def test_the_same_seed_gives_the_same_files_and_another_only_other_clients(self):
        self.split("a", "--test-fraction", 0.2)
        self.split("b", "--test-fraction", 0.2)
        self.split("c", "--test-fraction", 0.2, "--seed", 2)
        self.split("d", "--test-fraction", 0.2, "--test-seed", 1)
        for name in sorted(path.name for path in (self.path / "a").iterdir()):
            self.assertEqual(self.rows("a", name), self.rows("b", name), name)
        self.assertNotEqual(self.rows("a", "client-00.csv"), self.rows("c", "client-00.csv"))
        self.assertEqual(self.rows("a", "test.csv"), self.rows("c", "test.csv"))
        self.assertNotEqual(self.rows("a", "test.csv"), self.rows("d", "test.csv"))

    def test_alpha_makes_clients_unequal_and_iid_does_not(self):
        even = self.split("a", "--partition", "iid")["clients"]
        self.assertLessEqual(max(even) - min(even), 1)

        def unevenness(name):
            """Mean over clients of the share of their commonest class."""
            shares = []
            for client in range(20):
                labels = [row.rsplit(",", 1)[1] for row in self.rows(name, f"client-{client:02}.csv")[1:]]
                shares.append(max(labels.count(digit) for digit in set(labels)) / len(labels))
            return sum(shares) / len(shares)

        self.split("b", "--partition", "dirichlet:0.5")
        self.split("c", "--partition", "dirichlet:100")
        # A Dirichlet(0.5) share over 20 clients is far from even; at 100 it is nearly so.
        self.assertGreater(unevenness("b"), 0.3)
        self.assertLess(unevenness("c"), 0.25)
        self.assertLess(unevenness("a"), 0.25)

    def test_idx_files_with_a_holdout(self):
        random = numpy.random.default_rng(1)
        images, labels = random.integers(0, 256, (100, 4, 3), dtype=numpy.uint8), random.integers(0, 3, 100, dtype=numpy.uint8)
        pack = lambda rank, *dims: struct.pack(f">4B{len(dims)}I", 0, 0, 8, rank, *dims)
        (self.path / "i.gz").write_bytes(gzip.compress(pack(3, 100, 4, 3) + images.tobytes()))
        (self.path / "l.gz").write_bytes(gzip.compress(pack(1, 100) + labels.tobytes()))
        kit.sheaf("data", "split", "--data", self.path / "i.gz", "--labels", self.path / "l.gz", "--holdout", self.path / "i.gz",
                  "--holdout-labels", self.path / "l.gz", "--clients", 4, "--partition", "iid", "--out", self.path / "out")
        seen = []
        for client in range(4):
            data = (self.path / "out" / f"client-{client:02}-images.idx").read_bytes()
            marks = (self.path / "out" / f"client-{client:02}-labels.idx").read_bytes()
            self.assertEqual(data[:16], pack(3, 25, 4, 3))
            self.assertEqual(marks[:8], pack(1, 25))
            seen += [(data[16 + 12 * i:28 + 12 * i], marks[8 + i]) for i in range(25)]
        self.assertEqual(sorted(seen), sorted((images[i].tobytes(), labels[i]) for i in range(100)))
        self.assertEqual((self.path / "out" / "test-images.idx").read_bytes(), pack(3, 100, 4, 3) + images.tobytes())
        again = ("data", "split", "--data", self.path / "i.gz", "--labels", self.path / "l.gz", "--partition", "iid", "--out", self.path / "out")
        kit.sheaf(*again, "--clients", 4)
        self.assertIn("client-03-", kit.sheaf(*again, "--clients", 3, expect=4))
        self.assertIn("from another split", kit.sheaf("data", "split", "--data", DIGITS, "--clients", 4,
                                                           "--out", self.path / "out", expect=4))

    def test_clients_of_an_earlier_split_never_mix_with_new_ones(self):
        def contents():
            return {path.name: path.read_bytes() for path in (self.path / "a").iterdir()}

        self.split("a")
        before = contents()
        self.split("a")
        self.assertEqual(contents(), before)
        arguments = ("data", "split", "--data", DIGITS, "--out", self.path / "a", "--clients")
        self.assertRegex(kit.sheaf(*arguments, 10, expect=4), r"a/client-1\d\.csv: is there from another split")
        self.assertEqual(contents(), before)
        kit.sheaf(*arguments, 21)
        self.assertEqual(len(contents()), 22)
        (self.path / "a" / "client-001.csv").touch()
        self.assertIn("a/client-001.csv: is there", kit.sheaf(*arguments, 21, expect=4))

    def test_mistakes_are_named_with_their_exit_code(self):
        base = ("data", "split", "--data", DIGITS, "--out", self.path / "x")
        for code, text, arguments in (
                (2, "--clients is needed", base), (2, "--data is needed", ("data", "split", "--clients", 2)),
                (2, "expected iid or dirichlet", (*base, "--clients", 2, "--partition", "dirichlet:0")),
                (2, "exclude each other", (*base, "--clients", 2, "--holdout", DIGITS, "--test-fraction", 0.1)),
                (2, "format of the data", (*base, "--clients", 2, "--holdout", "i", "--holdout-labels", "l")),
                (2, "at least 1", (*base, "--clients", 2, "--minimum", 0)),
                (3, "no draw in 1000", (*base, "--clients", 20, "--minimum", 89)),
                (3, "1797 examples are too few to give each of 20 clients 90", (*base, "--clients", 20, "--minimum", 90)),
                (3, "nowhere", ("data", "split", "--data", "nowhere", "--clients", 2, "--out", self.path / "x"))):
            self.assertIn(text, kit.sheaf(*arguments, expect=code))
        self.assertFalse((self.path / "x").exists())


if __name__ == "__main__":
    unittest.main()
