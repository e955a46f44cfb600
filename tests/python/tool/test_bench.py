"""`sheaf bench transport`: its contract with other tools, not its figures."""

import json
import os
import subprocess
import tempfile
import unittest

SHEAF = os.path.join(os.environ["SHEAF_BUILD"], "server", "sheaf")


def bench(*arguments):
    return subprocess.run([SHEAF, "bench", *arguments], capture_output=True, text=True, timeout=300)


class Bench(unittest.TestCase):
    def result(self, name, unit, *arguments):
        done = bench("transport", "--json", "--only", name, "--turns", "1", "--seconds", "0.2", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1)
        found = json.loads(done.stdout)
        self.assertEqual(found["bench"], "transport")
        self.assertIn("cores", found["machine"])
        self.assertEqual([one["name"] for one in found["results"]], [name])
        result = found["results"][0]
        self.assertEqual(result["unit"], unit)
        self.assertGreater(result["value"], 0)
        return result

    def test_a_payload_smaller_and_larger_than_a_frame(self):
        for size in ("1", "1000", "700001"):
            result = self.result("nng", "MiB/s", "--clients", "3", "--bytes", size, "--frame", "100000")
            self.assertAlmostEqual(result["ratio"], result["value"] / result["reference"], delta=0.01 * result["ratio"])

    def test_durable_payloads_go_through_the_spool(self):
        self.result("nng_durable", "MiB/s", "--clients", "3", "--bytes", "300000")

    def test_through_a_broker(self):
        result = self.result("mqtt", "MiB/s", "--clients", "3", "--bytes", "700001", "--frame", "100000")
        self.assertGreater(result["reference"], 0)
        self.result("mqtt_durable", "MiB/s", "--clients", "3", "--bytes", "300000")

    def test_the_brokers_memory(self):
        self.assertLess(self.result("mqtt_broker_peak", "KiB", "--clients", "3", "--bytes", "300000")["value"], 65536)

    def test_connects(self):
        self.assertGreater(self.result("nng_connects", "1/s")["reference"], 0)

    def test_memory_has_no_reference_by_itself(self):
        self.assertIsNone(self.result("nng_memory_50", "KiB", "--bytes", "10000")["ratio"])

    def test_wrong_usage_is_said(self):
        for arguments in ([], ["coffee"], ["transport", "--clients", "0"], ["transport", "--seconds"],
                          ["transport", "--turns", "1", "--only", "coffee"]):
            done = bench(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage: sheaf bench", done.stderr)

    def test_nothing_is_left_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder
            try:
                self.result("nng_plain", "MiB/s", "--clients", "2", "--bytes", "5000")
            finally:
                del os.environ["TMPDIR"]
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
