"""sheaf-edge as a program: its command line, its errors by name and exit code, its way of ending, a whole small job."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import edge_kit  # noqa: E402

MODEL = {"w": ([2], [1.0, 2.0])}
TABLE = "x0,x1,label\n" + "\n".join(f"{i % 3}.5,{i % 2},{i % 2}" for i in range(40)) + "\n"
NETWORK = "input: [2]\nlayers:\n  - {kind: dense, units: 2}\n"


def run(*arguments):
    return subprocess.run([str(a) for a in (edge_kit.EDGE, *arguments)], capture_output=True, text=True, timeout=60)


class Daemon(unittest.TestCase):
    def job(self, model=MODEL, **options):
        job = edge_kit.Job(model, **options)
        self.addCleanup(job.__exit__)
        (job.root / "network.yaml").write_text(NETWORK)
        (job.root / "data.csv").write_text(TABLE)
        return job

    BUILTIN = '{"network": "network.yaml", "data": "data.csv"}'

    def test_the_command_line(self):
        self.assertEqual(run("--help").returncode, 0)
        self.assertIn("exit codes", run("--help").stdout)
        self.assertIn("time_limit_s", run("--help-config").stdout)
        for arguments in ((), ("--config",), ("--no-such",), ("surplus",)):
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn("usage:", done.stderr)

    def refused(self, work, code, *texts, **config):
        done = run("--config", work.config(**config))
        self.assertEqual(done.returncode, code, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_mistakes_are_named(self):
        job = self.job()
        builtin = self.BUILTIN
        self.refused(job, 3, "device-0.yaml:1", "trainr", trainer=builtin, trainr="x")
        self.refused(job, 3, "trainer.network", "missing")
        self.refused(job, 3, "nothing.csv", trainer='{"network": "network.yaml", "data": "nothing.csv"}')
        self.refused(job, 3, "no.pem", trainer=builtin, certificate="no.pem")
        self.refused(job, 3, "nohost", trainer=builtin, url="pigeon://nohost")
        self.refused(job, 3, "aggregator", trainer=builtin, certificate="pki/aggregator-agg.pem",
                     key="pki/aggregator-agg.key")
        self.refused(job, 3, "tenant", "acme", trainer=builtin, tenant="other")
        (job.root / "short.csv").write_text("x0,x1,label\n1,2\n")
        self.refused(job, 3, "short.csv:2", trainer='{"network": "network.yaml", "data": "short.csv"}')
        os.chmod(job.root / "pki/device-device-0.key", 0o644)
        self.refused(job, 3, "device-device-0.key", trainer=builtin)
        self.assertEqual(run("--config", job.root / "absent.yaml").returncode, 3)

    def test_check_config_starts_nothing(self):
        job = self.job()
        done = run("--config", job.config(trainer=self.BUILTIN), "--check-config")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertFalse((job.root / "device-0").exists())

    def test_without_an_aggregator_it_waits_and_stops_when_told(self):
        job = self.job()
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                device = job.device(trainer=self.BUILTIN)
                self.assertIn("refused", device.wait_for("link_lost", status="network")["detail"])
                self.assertEqual(device.end(number), 0)
                self.assertEqual(device.events()[-1]["event"], "stopped")

    def test_a_state_folder_serves_one_daemon(self):
        job = self.job()
        first = job.device(trainer=self.BUILTIN)
        first.wait_for("started")
        self.refused(job, 4, "in use", trainer=self.BUILTIN)
        first.end()

    def test_a_state_folder_keeps_to_its_job(self):
        job = self.whole_job(rounds=1)
        self.refused(job, 3, "another tenant, job or client", trainer=self.BUILTIN, job="letters")

    def test_a_job_that_is_not_served_is_refused_by_name(self):
        job = self.job()
        server = job.serve()
        server.wait_for("listening")
        device = job.device("--once", trainer=self.BUILTIN, job="letters")
        self.assertEqual(device.wait(30), 1)
        device.wait_for("refused", status="unknown_job")

    def test_a_model_of_another_shape_is_told(self):
        job = self.job()
        job.serve()
        device = job.device(trainer=self.BUILTIN)
        line = device.wait_for("gave_up")
        self.assertIn(line["status"], ("wrong_name", "wrong_shape"))
        self.assertEqual(device.end(), 0)

    @staticmethod
    def initial(path):
        (path.parent / "network.yaml").write_text(NETWORK)
        subprocess.run([edge_kit.SHEAF, "model", "init", path.parent / "network.yaml", "--seed", "3", "-o", path],
                       check=True, stdout=subprocess.DEVNULL)

    def test_once_ends_after_one_receipt_and_the_next_run_goes_on(self):
        job = self.job(self.initial, rounds=2)
        job.serve()
        for number in (1, 2):
            device = job.device("--once", trainer=self.BUILTIN)
            self.assertEqual(device.wait(60), 0)
            self.assertEqual([e["round"] for e in device.events() if e["event"] == "receipt"], [number])

    def whole_job(self, rounds):
        job = self.job(self.initial, rounds=rounds)
        server = job.serve()
        device = job.device("--exit-when-done", trainer=self.BUILTIN)
        self.assertEqual(device.wait(60), 0)
        self.assertEqual(server.wait(60), 0)
        self.assertEqual(len([e for e in device.events() if e["event"] == "receipt"]), rounds)
        return job

    def test_a_whole_job(self):
        job = self.whole_job(rounds=3)
        before = edge_kit.read_safetensors(job.root / "initial.safetensors")
        events = [json.loads(line) for line in (job.root / "sheafd.log").read_text().splitlines()]
        digest = [e for e in events if e["event"] == "round_released"][-1]["model"]
        self.assertNotEqual(job.model(digest), before)


if __name__ == "__main__":
    unittest.main()
