"""20 devices over a network that loses 20 % of the chunks and doubles 5 %, and a broker that is killed every 5 s: the job
ends with the model of the calm run, over NNG, over MQTT, and over both at once.

SHEAF_LONG=1 tries more seeds, SHEAF_SEED=N only that one.
"""
import glob
import os
import struct
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
for part in ("kit", "fault"):
    sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", part))
import fleet  # noqa: E402
import lossy_proxy  # noqa: E402

LONG = os.environ.get("SHEAF_LONG", "") not in ("", "0")
SEEDS = [int(os.environ["SHEAF_SEED"])] if "SHEAF_SEED" in os.environ else range(1, 11 if LONG else 2)
DEVICES, ROUNDS, CHUNK_BYTES = 20, 2, 2048
CHUNKS = -(-19210 * 4 // CHUNK_BYTES)  # of one update of the digits' network: 38
DROP, TWICE = 20, 5
BROKER_ROUNDS, KILL_EVERY_S = 4, 5  # enough rounds for several kills
SHIM = os.path.join(fleet.BUILD, "tests", "fault", "mqtt_shim.so")


class Killer:
    """Kills the broker every KILL_EVERY_S seconds until it is stopped, first after a fifth of that."""

    def __init__(self, broker):
        self.broker, self.stop = broker, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        pause = KILL_EVERY_S / 5
        while not self.stop.wait(pause):
            pause = KILL_EVERY_S
            self.broker.kill()
            self.broker.start()

    def close(self):
        self.stop.set()
        self.thread.join()


def shim_counts(pattern):
    """Messages that counted, were lost, were doubled; of all processes."""
    totals = [0, 0, 0]
    for path in glob.glob(pattern):
        with open(path, "rb") as file:
            totals = [a + b for a, b in zip(totals, struct.unpack("=3Q", file.read(24)))]
    return totals


class Lossy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        calm = cls.fleet()
        try:
            cls.digest = calm.run_all()
            cls.check_counts(calm)
        finally:
            calm.close()

    @staticmethod
    def fleet(rounds=ROUNDS, transport="nng"):
        return fleet.Fleet(devices=DEVICES, rounds=rounds, chunk_bytes=CHUNK_BYTES, transport=transport)

    @staticmethod
    def check_counts(job, expected=ROUNDS):
        rounds = [(row["accepted"], row["refused"]) for row in job.released()]
        assert rounds == [(DEVICES, 0)] * expected, rounds
        counted = job.query("SELECT count(*), count(DISTINCT client || '/' || round) FROM updates")
        assert counted == [(DEVICES * expected, DEVICES * expected)], counted

    def check_shares(self, chunks, dropped, doubled):
        """The network was as bad as it was said to be: three standard deviations around the shares."""
        self.assertGreaterEqual(chunks - dropped, DEVICES * ROUNDS * CHUNKS)
        for count, percent in ((dropped, DROP), (doubled, TWICE)):
            slack = 3 * (chunks * percent / 100 * (1 - percent / 100)) ** 0.5
            self.assertAlmostEqual(count, chunks * percent / 100, delta=slack)

    def test_nng(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                began = time.monotonic()
                job = self.fleet()
                try:
                    job.start_server()
                    proxy = lossy_proxy.Lossy(("127.0.0.1", job.port), seed, DROP, TWICE)
                    for name in job.names:
                        job.start_device(name, url=f"tls+tcp://127.0.0.1:{proxy.port}")
                    job.finish()
                    proxy.close()
                    self.assertEqual(job.released()[-1]["model"], self.digest)
                    self.check_counts(job)
                finally:
                    job.close()
                print(f"    nng, seed {seed}: {proxy.chunks} chunks, {proxy.dropped} lost, {proxy.doubled} twice; {proxy.parts} "
                      f"parts of models, {proxy.parts_dropped} lost; {proxy.connections} connections; "
                      f"{time.monotonic() - began:.1f} s", flush=True)
                self.check_shares(proxy.chunks, proxy.dropped, proxy.doubled)

    def broker_job(self, transport, seed, digest):
        """One job through the shim and the killed broker; over NNG's half, through the lossy proxy."""
        began = time.monotonic()
        job = self.fleet(BROKER_ROUNDS, transport)
        killer = None
        try:
            counts = os.path.join(job.folder, "counts")
            env = dict(os.environ, LD_PRELOAD=SHIM, SHEAF_LOSSY_SEED=str(seed), SHEAF_LOSSY_DROP=str(DROP),
                       SHEAF_LOSSY_TWICE=str(TWICE), SHEAF_LOSSY_BIG=str(CHUNK_BYTES), SHEAF_LOSSY_COUNTS=counts,
                       ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
            job.start_server(env=env)
            proxy = lossy_proxy.Lossy(("127.0.0.1", job.port), seed, DROP, TWICE) if transport == "both" else None
            for i, name in enumerate(job.names):
                changes = {} if name in job.via_broker else dict(url=f"tls+tcp://127.0.0.1:{proxy.port}")
                job.start_device(name, env=dict(env, SHEAF_LOSSY_SEED=str(seed * 1000 + i)), **changes)
            killer = Killer(job.broker)
            job.finish()
            killer.close()
            self.assertEqual(job.released()[-1]["model"], digest)
            self.check_counts(job, BROKER_ROUNDS)
            messages, dropped, doubled = shim_counts(counts + ".*")
            print(f"    {transport}, seed {seed}: {messages} large messages, {dropped} lost, {doubled} twice; the broker killed "
                  f"{job.broker.kills} times; {time.monotonic() - began:.1f} s", flush=True)
            for count, percent in ((dropped, DROP), (doubled, TWICE)):
                slack = 4 * (messages * percent / 100 * (1 - percent / 100)) ** 0.5
                self.assertAlmostEqual(count, messages * percent / 100, delta=slack)
            self.assertGreaterEqual(job.broker.kills, 2)
            if proxy is not None:
                proxy.close()
        finally:
            if killer is not None:
                killer.close()
            job.close()

    def test_mqtt_and_both(self):
        calm = self.fleet(BROKER_ROUNDS)
        try:
            digest = calm.run_all()
        finally:
            calm.close()
        for seed in SEEDS:
            for transport in ("mqtt", "both"):
                with self.subTest(seed=seed, transport=transport):
                    self.broker_job(transport, seed, digest)


if __name__ == "__main__":
    unittest.main()
