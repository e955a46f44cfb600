"""The wire, read by an independent protobuf implementation: the schema, the golden bytes, and bytes that C made."""
import importlib.util
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SOURCE = pathlib.Path(os.environ["SHEAF_SOURCE"])
BUILD = pathlib.Path(os.environ["SHEAF_BUILD"])
VECTORS = SOURCE / "tests" / "vectors" / "wire"


def load_maker():
    spec = importlib.util.spec_from_file_location("make_vectors", VECTORS / "make_vectors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def split(frame):
    """Header bytes and payload of a frame."""
    magic, size = struct.unpack_from("<4sI", frame)
    assert magic == b"Shf\x01" and 8 + size <= len(frame)
    return frame[8:8 + size], frame[8 + size:]


class Wire(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.maker = load_maker()
        cls.pb = cls.maker.load_schema()
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([BUILD / "tests" / "test.proto.golden", "--dump", cls.folder.name], check=True)
        cls.made_by_c = {path.name: path.read_bytes() for path in pathlib.Path(cls.folder.name).iterdir()}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_golden_files_are_what_the_maker_makes_today(self):
        on_disk = {path.name: path.read_bytes() for path in VECTORS.glob("*.bin")}
        self.assertEqual(self.maker.vectors(), on_disk)

    def test_every_message_of_the_schema_is_covered(self):
        parts = self.maker.signed()
        bodies = {m.WhichOneof("body") for _, m, _ in self.maker.requests(self.pb, parts)}
        self.assertEqual({f.name for f in self.pb.Request.DESCRIPTOR.oneofs_by_name["body"].fields}, bodies)
        bodies = {m.WhichOneof("body") for _, m, _ in self.maker.replies(self.pb, parts)}
        self.assertEqual({f.name for f in self.pb.Reply.DESCRIPTOR.oneofs_by_name["body"].fields}, bodies)

    def test_python_reads_what_c_made(self):
        parts = self.maker.signed()
        for kind, message_type, messages in (("request", self.pb.Request, self.maker.requests(self.pb, parts)),
                                             ("reply", self.pb.Reply, self.maker.replies(self.pb, parts))):
            for name, expected, payload in messages:
                header, rest = split(self.made_by_c[f"{kind}_{name}.bin"])
                self.assertEqual(expected, message_type.FromString(header), name)
                self.assertEqual(payload, rest, name)

    def test_python_reads_the_statements_that_c_made(self):
        data = self.made_by_c["statement_update_negative.bin"]
        fields = []
        at = 0
        for kind in "nnnQI333n3nQ3q":  # n: a name, 3: a digest
            if kind == "n":
                size, = struct.unpack_from("<H", data, at)
                fields.append(data[at + 2:at + 2 + size].decode())
                at += 2 + size
            elif kind == "3":
                fields.append(data[at:at + 32])
                at += 32
            else:
                fields.append(struct.unpack_from("<" + kind, data, at)[0])
                at += struct.calcsize("<" + kind)
        self.assertEqual(len(data), at)
        self.assertEqual(["sheaf update v1", "acme", "digits", 2**64 - 1, 2**32 - 1], fields[:5])
        self.assertEqual(["n" * 63, "f32", 2**63, -2**63], [fields[8], fields[10], fields[11], fields[13]])

    def test_c_made_every_golden_file_and_no_other(self):
        self.assertEqual(self.maker.vectors(), self.made_by_c)


if __name__ == "__main__":
    unittest.main()
