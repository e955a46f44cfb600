"""20 devices over a network that loses 20 % of the chunks and doubles 5 %: the job ends with the model of the calm run.

SHEAF_LONG=1 tries more seeds, SHEAF_SEED=N only that one.
"""
import os
import sys
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
    def fleet():
        return fleet.Fleet(devices=DEVICES, rounds=ROUNDS, chunk_bytes=CHUNK_BYTES)

    @staticmethod
    def check_counts(job):
        rounds = [(row["accepted"], row["refused"]) for row in job.released()]
        assert rounds == [(DEVICES, 0)] * ROUNDS, rounds
        counted = job.query("SELECT count(*), count(DISTINCT client || '/' || round) FROM updates")
        assert counted == [(DEVICES * ROUNDS, DEVICES * ROUNDS)], counted

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


if __name__ == "__main__":
    unittest.main()
