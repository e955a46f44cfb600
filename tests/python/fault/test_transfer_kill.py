"""kill -9 of a real sheafd, a real device and a real broker in the middle of one large model's way down, and of one large
update's way up: the job ends with the model of the calm one, and only what was missing travels again.

All bytes of the device pass a proxy, which stops them at half the way until the victim is dead, so that the clock decides
nothing. What travels again is what the device did not send, or was not sent, in the calm job. Over MQTT the model is cast,
and a cast does not stop for one device; so there one looks at what the aggregator sends: the rest, once more, not the whole.
"""
import glob
import os
import sys
import time
import unittest

sys.dont_write_bytecode = True
for part in ("kit", "fault"):
    sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", part))
import fleet  # noqa: E402
import service  # noqa: E402
from counting_proxy import DOWN, UP, Counting  # noqa: E402

UNITS, CHUNK_BYTES, WINDOW = (7000, 16384, 2) if service.sanitized() else (28000, 65536, 2)
MODEL_BYTES = 4 * (64 * UNITS + UNITS + 10 * UNITS + 10)  # two dense layers on 64 pixels; an update in F32 is as long
EXAMPLES, SETTLED_S = 16, 0.3
# A window at most was on its way. Past a broker, its sender does not hear of the death at once and sends it again, a few
# times: more often where sheafd starts slowly. All that had arrived are 64 chunks.
AGAIN_MOST = 8 * WINDOW * CHUNK_BYTES
NETWORK = """\
input: [8, 8, 1]
scale: 0.125
shift: 4
layers:
  - {{kind: flatten}}
  - {{kind: dense, units: {units}}}
  - {{kind: relu}}
  - {{kind: dense, units: 10}}
"""


class Job:
    """One device, one round, everything through the proxy."""

    def __init__(self, folder, transport):
        network = os.path.join(folder, "network.yaml")
        with open(network, "w", encoding="utf-8") as file:
            file.write(NETWORK.format(units=UNITS))
        self.fleet = fleet.Fleet(devices=1, rounds=1, chunk_bytes=CHUNK_BYTES, transport=transport, network=network)
        self.name, self.proxy, self.far = self.fleet.names[0], None, None
        data = os.path.join(self.fleet.folder, "few.csv")
        with open(fleet.DIGITS, encoding="ascii") as all_of_them, open(data, "w", encoding="ascii") as few:
            few.writelines(line for _, line in zip(range(1 + EXAMPLES), all_of_them))
        self.changes = dict(data=data)

    def begin(self):
        broker = self.fleet.broker
        if broker is not None:
            self.far = Counting(("127.0.0.1", broker.port))
            self.fleet.settings["broker"] = f"mqtts://127.0.0.1:{self.far.port}"
            self.fleet.write_server_config()
        self.fleet.start_server()
        self.proxy = Counting(("127.0.0.1", broker.port if broker is not None else self.fleet.port))
        self.changes["url"] = f"{'mqtts' if broker is not None else 'tls+tcp'}://127.0.0.1:{self.proxy.port}"

    def start_device(self):
        self.fleet.start_device(self.name, **self.changes)

    def kept(self, direction):
        """Bytes of the unfinished file at the receiving end, once it has taken all that came through."""
        state = self.fleet.state if direction == UP else os.path.join(self.fleet.folder, f"device-{self.name}")
        pattern, size, since = ("*/*/spool/*/*.part", "model.new")[direction], -1, time.monotonic()
        while time.monotonic() < since + SETTLED_S:
            found = sum(os.path.getsize(path) for path in glob.glob(os.path.join(state, pattern)))
            size, since = found, since if found == size else time.monotonic()
            time.sleep(0.01)
        return size

    def kill(self, victim):
        """Dies with all that it had in memory; what was on its way to it is lost too."""
        if victim == "broker":
            self.fleet.broker.kill()
        else:
            process = self.fleet.server if victim == "sheafd" else self.fleet.devices[self.name]
            assert process.poll() is None, self.fleet.tail()
            process.kill()
            process.wait()
        lives = victim == "sheafd" and self.far is not None  # the connection between device and broker
        self.proxy.release() if lives else self.proxy.cut()
        {"broker": self.start_broker, "sheafd": self.fleet.start_server, "device": self.start_device}[victim]()

    def start_broker(self):
        self.fleet.broker.start()

    def run(self, victim, direction):
        """(bytes from the device, to it, from the aggregator to the broker, kept by the receiver, digest)."""
        kept = 0
        try:
            self.begin()
            if victim is not None:
                self.proxy.hold_at(direction, MODEL_BYTES // 2)
            self.start_device()
            if victim is not None:
                assert self.proxy.held.wait(120), self.fleet.tail()
                kept = self.kept(direction)
                self.kill(victim)
            self.fleet.finish()
            refused = self.fleet.refusals_but_of_old_sessions()
            assert refused == {}, refused
            return (*self.proxy.counts, self.far.counts[UP] if self.far is not None else 0, kept, self.fleet.released()[-1]["model"])
        finally:
            for proxy in (self.proxy, self.far):
                if proxy is not None:
                    proxy.close()
            self.fleet.close()


class Transfer:
    transport = None

    @classmethod
    def setUpClass(cls):
        cls.folder = fleet.tempfile.mkdtemp(prefix="sheaf-transfer-")
        cls.addClassCleanup(fleet.shutil.rmtree, cls.folder, True)
        cls.calm = Job(cls.folder, cls.transport).run(None, None)

    def interrupted(self, victim, direction):
        began = time.monotonic()
        found = Job(self.folder, self.transport).run(victim, direction)
        kept = found[3]
        *again, published = [one - calm for one, calm in zip(found[:3], self.calm)]
        print(f"    {self.transport}: {victim} killed when {kept} of {MODEL_BYTES} bytes were {('up', 'down')[direction]}: "
              f"the calm job's {self.calm[direction]} and {again[direction] / CHUNK_BYTES:.1f} chunks; the aggregator published "
              f"{published / CHUNK_BYTES:.1f} chunks more; {time.monotonic() - began:.1f} s", flush=True)
        self.assertEqual(found[-1], self.calm[-1])
        self.assertGreaterEqual(self.calm[direction], MODEL_BYTES)
        self.assertGreater(kept, MODEL_BYTES // 4)
        if self.transport == "mqtt" and direction == DOWN:
            self.assertGreaterEqual(self.calm[2], MODEL_BYTES)
            self.assertLessEqual(published, MODEL_BYTES - kept + AGAIN_MOST)
        else:
            self.assertLessEqual(again[direction], AGAIN_MOST)

    def test_sheafd_dies_in_an_upload(self):
        self.interrupted("sheafd", UP)

    def test_the_device_dies_in_an_upload(self):
        self.interrupted("device", UP)

    def test_sheafd_dies_in_a_download(self):
        self.interrupted("sheafd", DOWN)

    def test_the_device_dies_in_a_download(self):
        self.interrupted("device", DOWN)


class OverNng(Transfer, unittest.TestCase):
    transport = "nng"


class OverMqtt(Transfer, unittest.TestCase):
    transport = "mqtt"

    def test_the_broker_dies_in_an_upload(self):
        self.interrupted("broker", UP)

    def test_the_broker_dies_in_a_download(self):
        self.interrupted("broker", DOWN)


if __name__ == "__main__":
    unittest.main()
