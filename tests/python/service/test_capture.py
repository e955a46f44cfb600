"""What a broker learns: a subscriber with full rights records every message of a job over MQTT, and finds in them no piece
of an update, a model, a statement or a plan. That the search could have found them is shown with the same recording after it
was opened by the keys of both ends (tests/fault/keys_shim.c), with Python's `cryptography` by the words of proto/WIRE.md."""
import collections
import os
import struct
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
from cryptography.exceptions import InvalidTag  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402
import fleet  # noqa: E402
import mqtt5  # noqa: E402

WINDOW = 16
SHIM = os.path.join(fleet.BUILD, "tests", "fault", "keys_shim.so")
KINDS = {1: "OPEN", 2: "CHALLENGE", 3: "SESSION", 4: "ACCEPT", 5: "DATA", 6: "REPLY", 7: "REJECT", 8: "CAST"}
CLEAR = {3: 21 + 32 + 65, 5: 29, 6: 37, 8: 29}  # bytes before what is sealed; SESSION with P-256


def windows(data):
    """Pieces such that any 31 bytes of `data` in a row hold one of them."""
    return {data[at:at + WINDOW] for at in range(0, len(data) - WINDOW + 1, WINDOW)}


def found(needles, messages):
    """How many of the needles have a piece in one of the messages, by kind."""
    pieces = {}
    for kind, data in needles:
        for piece in windows(data):
            pieces[piece] = kind
    hits = collections.Counter()
    for message in messages:
        for at in range(len(message) - WINDOW + 1):
            kind = pieces.get(message[at:at + WINDOW])
            if kind is not None:
                hits[kind] += 1
    return hits


def opened(messages, keys):
    """The plain frames of all messages that one of the keys opens."""
    frames = []
    for message in messages:
        if message[4] not in CLEAR:
            continue
        clear = CLEAR[message[4]]
        number = 0 if message[4] == 3 else struct.unpack_from("<Q", message, 21)[0]
        for key, base in keys:
            nonce = base[:4] + (int.from_bytes(base[4:], "big") ^ number).to_bytes(8, "big")
            try:
                frames.append(AESGCM(key).decrypt(nonce, message[clear:], message[:clear]))
                break
            except InvalidTag:
                continue
    return frames


class Capture(unittest.TestCase):
    def setUp(self):
        self.job = fleet.Fleet(devices=3, rounds=2, transport="mqtt")
        self.addCleanup(self.job.close)

    def needles(self):
        out = []
        for folder, _, files in os.walk(os.path.join(self.job.state, fleet.TENANT, fleet.JOB)):
            for name in files:
                if name.endswith(".update"):
                    with open(os.path.join(folder, name), "rb") as file:
                        out.append(("update", file.read()))
                elif name.endswith(".safetensors"):
                    tensors, _ = fleet.read_safetensors(os.path.join(folder, name))
                    out += [("model", data) for _, _, data in tensors.values()]
        out += [("statement", row[0]) for row in self.job.query("SELECT statement FROM updates")]
        out += [("plan", row[0]) for row in self.job.query("SELECT plan FROM rounds")]
        return out

    def test_no_piece_of_an_update_or_a_model_is_in_the_clear(self):
        recorded = mqtt5.Client(self.job.broker.port, os.path.join(self.job.pki, "ca.pem"), self.job.broker.superuser)
        self.assertIn(recorded.subscribe("#"), (0, 1, 2))
        keys_path = os.path.join(self.job.folder, "keys")
        env = dict(os.environ, LD_PRELOAD=SHIM, SHEAF_KEYS=keys_path,
                   ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
        self.job.start_server(env=env)
        for name in self.job.names:
            self.job.start_device(name, env=env)
        self.job.finish()
        recorded.close()
        messages = [message.payload for message in recorded.messages]
        seen = collections.defaultdict(lambda: [0, 0])
        for message in recorded.messages:
            level = message.topic.split("/")[2]
            seen[level, KINDS[message.payload[4]]][0] += 1
            seen[level, KINDS[message.payload[4]]][1] += len(message.payload)
        for (level, kind), (count, size) in sorted(seen.items()):
            print(f"    {level:5} {kind:10} {count:5} messages, {size:9} bytes", flush=True)
        needles = self.needles()
        self.assertEqual({kind for kind, _ in needles}, {"update", "model", "statement", "plan"})
        self.assertGreater(sum(map(len, messages)), sum(len(data) for kind, data in needles if kind == "update"))
        self.assertEqual(found(needles, messages), {})
        with open(keys_path, encoding="ascii") as file:
            keys = sorted({tuple(map(bytes.fromhex, line.split())) for line in file})
        hits = found(needles, opened(messages, keys))
        print(f"    in the clear: nothing; behind the keys of both ends: {dict(hits)}", flush=True)
        self.assertEqual(set(hits), {"update", "model", "statement", "plan"})


if __name__ == "__main__":
    unittest.main()
