"""Real processes learn on real data; neither the order of arrival, nor workers, nor a restart moves a bit of the result."""
import json
import os
import signal
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
from fleet import NETWORK, SHEAF, Fleet, run, sheaf  # noqa: E402


def arrivals(fleet):
    return fleet.query("SELECT round, client FROM updates ORDER BY arrival")


class Learning(unittest.TestCase):
    def fleet(self, **options):
        fleet = Fleet(**options)
        self.addCleanup(fleet.close)
        return fleet

    def test_a_fleet_learns_and_the_tool_tells(self):
        fleet = self.fleet(devices=4, rounds=4)
        digest = fleet.run_all()
        self.assertEqual([row["accepted"] for row in fleet.released()], [4] * 4)
        watch = run(SHEAF, "job", "watch", "--state", fleet.state, "--network", NETWORK, "--data",
                    os.path.join(fleet.folder, "data", "test.csv"), "--json")
        self.assertEqual(watch.returncode, 0, watch.stderr)
        lines = [json.loads(line) for line in watch.stdout.splitlines()]
        self.assertEqual([line["round"] for line in lines[:-1]], [1, 2, 3, 4])
        self.assertEqual(lines[-2]["model_digest"], digest)
        self.assertEqual((lines[-1]["status"], lines[-1]["rounds"], lines[-1]["model_digest"]), ("ok", 4, digest))
        # Ten classes: chance is 0.1. The pooled trainer reaches this within its first epochs too.
        self.assertGreater(lines[-2]["test_accuracy"], 0.8)
        self.assertLess(lines[-2]["training_loss"], lines[0]["training_loss"])
        again = json.loads(sheaf("model", "evaluate", NETWORK, lines[-1]["model"], "--data",
                                 os.path.join(fleet.folder, "data", "test.csv"), "--json"))
        self.assertEqual(again["accuracy"], lines[-2]["test_accuracy"])
        status = json.loads(sheaf("job", "status", "--state", fleet.state, "--json"))
        self.assertEqual(status["jobs"][0]["rounds"], 4)
        self.assertEqual(status["jobs"][0]["status"], "ok")
        self.assertEqual(status["refusals"], {})
        self.assertNotIn("of no job", sheaf("job", "status", "--state", fleet.state))
        for wait in ("abc", "", "-1", "1.5", "1s", "1000000"):
            refused = run(SHEAF, "job", "watch", "--state", fleet.state, "--wait", wait)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""))
            self.assertIn(f"--wait: '{wait}' is no whole number", refused.stderr)

    def test_the_same_seed_gives_the_same_model_for_any_workers_and_order(self):
        digests, orders = set(), []
        for workers, step in ((1, 1), (2, -1), (4, 2)):
            fleet = self.fleet(devices=5, rounds=2, workers=workers)
            fleet.start_server()
            names = fleet.names[::step] if abs(step) == 1 else fleet.names[::2] + fleet.names[1::2]
            for name in names:
                fleet.start_device(name)
                time.sleep(0.15)
            fleet.finish()
            digests.add(fleet.released()[-1]["model"])
            orders.append(arrivals(fleet))
        self.assertEqual(len(digests), 1)
        self.assertNotEqual(orders[0], orders[1])
        self.assertNotEqual(orders[1], orders[2])

    def test_another_seed_gives_another_model(self):
        self.assertNotEqual(self.fleet(devices=2, rounds=1, seed=1).run_all(), self.fleet(devices=2, rounds=1, seed=2).run_all())

    def test_sigterm_ends_both_ends_cleanly_and_a_restart_goes_on(self):
        expected = self.fleet(devices=3, rounds=3).run_all()
        fleet = self.fleet(devices=3, rounds=3)
        fleet.start_server()
        for name in fleet.names:
            fleet.start_device(name)
        fleet.wait_for(lambda: fleet.query("SELECT count(*) FROM updates")[0][0] >= 1)
        self.assertEqual(fleet.stop_server(), 0, fleet.tail())
        stopped = fleet.names[0]
        fleet.devices[stopped].send_signal(signal.SIGINT)
        self.assertEqual(fleet.devices[stopped].wait(20), 0)
        fleet.start_server()
        fleet.start_device(stopped)
        fleet.finish()
        self.assertEqual(fleet.released()[-1]["model"], expected)


if __name__ == "__main__":
    unittest.main()
