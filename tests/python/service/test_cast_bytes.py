"""A model goes through the broker once for all devices: the aggregator publishes about one model a round, and every device
gets one.

Two proxies count: one between the aggregator and the broker, one between the devices and the broker.
"""
import os
import sys
import unittest

sys.dont_write_bytecode = True
for part in ("kit", "fault"):
    sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", part))
import fleet  # noqa: E402
from counting_proxy import DOWN, UP, Counting  # noqa: E402

DEVICES, ROUNDS, UNITS, CHUNK_BYTES = 10, 2, 4000, 65536
MODEL_BYTES = 4 * (64 * UNITS + UNITS + 10 * UNITS + 10)
# Per round. Who asks when a cast is long under way gets another, or asks for parts; a busy machine has a few of those.
MODELS_MOST = 3
NETWORK = f"""\
input: [8, 8, 1]
scale: 0.125
shift: 4
layers:
  - {{kind: flatten}}
  - {{kind: dense, units: {UNITS}}}
  - {{kind: relu}}
  - {{kind: dense, units: 10}}
"""


class CastBytes(unittest.TestCase):
    def setUp(self):
        folder = fleet.tempfile.mkdtemp(prefix="sheaf-cast-")
        self.addCleanup(fleet.shutil.rmtree, folder, True)
        network = os.path.join(folder, "network.yaml")
        with open(network, "w", encoding="utf-8") as file:
            file.write(NETWORK)
        self.job = fleet.Fleet(devices=DEVICES, rounds=ROUNDS, chunk_bytes=CHUNK_BYTES, transport="mqtt", network=network)
        self.addCleanup(self.job.close)
        self.far, self.near = self.proxy(), self.proxy()

    def proxy(self):
        proxy = Counting(("127.0.0.1", self.job.broker.port))
        self.addCleanup(proxy.close)
        return proxy

    def few_examples(self, index):
        path = os.path.join(self.job.folder, f"few-{index}.csv")
        with open(fleet.DIGITS, encoding="ascii") as file, open(path, "w", encoding="ascii") as few:
            lines = file.readlines()
            few.writelines(lines[:1] + lines[1 + 8 * index:9 + 8 * index])
        return path

    def test_a_cohort_costs_the_aggregator_about_one_model(self):
        job = self.job
        job.settings["broker"] = f"mqtts://127.0.0.1:{self.far.port}"
        job.write_server_config()
        job.start_server()
        for index, name in enumerate(job.names):
            job.start_device(name, url=f"mqtts://127.0.0.1:{self.near.port}", data=self.few_examples(index))
        job.finish()
        self.assertEqual([row["accepted"] for row in job.released()], [DEVICES] * ROUNDS)
        published, taken = (count / (ROUNDS * MODEL_BYTES) for count in (self.far.counts[UP], self.near.counts[DOWN]))
        print(f"    {DEVICES} devices, {ROUNDS} rounds: {published:.2f} models of {MODEL_BYTES} bytes a round from the aggregator, "
              f"{taken:.2f} to the devices", flush=True)
        self.assertGreaterEqual(taken, DEVICES)
        self.assertGreaterEqual(published, 1)
        self.assertLessEqual(published, MODELS_MOST)


if __name__ == "__main__":
    unittest.main()
