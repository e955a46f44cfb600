"""Jobs over the operator channel: seen, paused, resumed, cancelled; by plain HTTP, and by the tool."""
import json
import os
import signal
import sqlite3
import stat
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from operator_kit import Service, fleet  # noqa: E402

PATH = f"/v1/jobs/{fleet.TENANT}/{fleet.JOB}"


class Jobs(unittest.TestCase):
    def setUp(self):
        self.service = Service(devices=3, rounds=2)
        self.addCleanup(self.service.close)
        self.service.start_server()

    def start_devices(self):
        for name in self.service.names:
            self.service.start_device(name)

    def wait_seen(self, count):
        self.service.wait_for(lambda: self.service.get("/v1/clients")["total"] == count, 30)

    def test_the_socket_is_for_its_owner_only(self):
        mode = os.stat(self.service.socket_path).st_mode
        self.assertTrue(stat.S_ISSOCK(mode))
        self.assertEqual(mode & 0o777, 0o600)

    def test_a_job_runs_and_is_told_of(self):
        self.assertEqual(self.service.job()["status"], "running")
        self.start_devices()
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        job = self.service.job()
        released = self.service.released()
        self.assertEqual(job["rounds"], 2)
        self.assertEqual(job["model_digest"], released[-1]["model"])
        rounds = self.service.get(PATH + "/rounds")["rounds"]
        self.assertEqual([(r["round"], r["released"], r["accepted"], r["model_digest"]) for r in rounds],
                         [(r["round"], True, r["accepted"], r["model"]) for r in released])
        shown = self.service.get(PATH + "/rounds/1")
        self.assertEqual(sorted(u["client"] for u in shown["updates"]), self.service.names)
        clients = {c["name"]: c for c in self.service.get("/v1/clients")["clients"]}
        self.assertEqual(sorted(clients), self.service.names)
        for client in clients.values():
            self.assertEqual((client["tenant"], client["role"], client["carrier"], client["accepted"], client["last_round"]),
                             (fleet.TENANT, "device", "nng", 2, 2))

    def test_pages_have_an_end(self):
        self.start_devices()
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        first = self.service.get(PATH + "/rounds?limit=1")
        self.assertEqual([r["round"] for r in first["rounds"]], [1])
        query = "&".join(f"{k}={v}" for k, v in first["next"].items())
        second = self.service.get(PATH + "/rounds?limit=1&" + query)
        self.assertEqual([r["round"] for r in second["rounds"]], [2])
        seen, after = [], 0
        while after is not None:
            page = self.service.get(f"/v1/clients?limit=2&after={after}")
            seen += [c["name"] for c in page["clients"]]
            after = page["next"]
        self.assertEqual(sorted(seen), self.service.names)

    def test_a_paused_job_admits_nobody_and_goes_on_when_resumed(self):
        code, answer = self.service.post(PATH + "/pause")
        self.assertEqual((code, answer["status"]), (200, "paused"))
        self.start_devices()
        self.wait_seen(3)
        time.sleep(1)
        self.assertEqual(self.service.job()["cohort"]["joined"], 0)
        self.assertEqual(self.service.released(), [])
        self.assertEqual(self.service.post(PATH + "/pause")[0], 200)  # again changes nothing
        code, answer = self.service.post(PATH + "/resume")
        self.assertEqual((code, answer["status"]), (200, "running"))
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        self.assertEqual(len(self.service.released()), 2)

    def test_a_pause_outlives_the_service(self):
        self.assertEqual(self.service.post(PATH + "/pause")[0], 200)
        self.service.server.send_signal(signal.SIGKILL)
        self.service.server.wait(10)
        self.assertTrue(os.path.exists(self.service.socket_path))  # what the dead one left is replaced
        self.service.start_server()
        self.assertEqual(self.service.job()["status"], "paused")
        self.assertIn("paused", self.service.tool("job", "status").stdout)

    def test_a_state_from_before_there_were_pauses_is_brought_up_to_date(self):
        self.service.stop_server()
        for sql in ("ALTER TABLE jobs DROP COLUMN paused", "UPDATE meta SET value = 1 WHERE key = 'schema'"):
            database = sqlite3.connect(os.path.join(self.service.state, "state.db"), isolation_level=None)
            database.execute(sql)
            database.close()
        old = self.service.tool("job", "status")
        self.assertEqual(old.returncode, 3)
        self.assertIn("has schema 1, this program knows 2; a start of sheafd brings it up to date", old.stderr)
        self.service.start_server()
        self.assertEqual(self.service.job()["status"], "running")
        self.assertEqual(self.service.post(PATH + "/pause")[0], 200)
        self.assertEqual(self.service.query("SELECT paused, (SELECT value FROM meta WHERE key = 'schema') FROM jobs"), [(1, 2)])

    def test_a_cancelled_job_ends_its_devices_and_stays_cancelled(self):
        self.assertEqual(self.service.post(PATH + "/pause")[0], 200)
        self.start_devices()
        self.wait_seen(3)
        code, answer = self.service.post(PATH + "/cancel")
        self.assertEqual((code, answer["status"]), (200, "cancelled"))
        for process in self.service.devices.values():
            self.assertEqual(process.wait(60), 1)  # the job ended without success
        self.assertEqual(self.service.post(PATH + "/cancel")[0], 200)
        for order in ("pause", "resume"):
            code, answer = self.service.post(f"{PATH}/{order}")
            self.assertEqual((code, answer["error"]), (409, "conflict"))
        self.assertEqual(self.service.stop_server(), 0)
        self.service.start_server()
        self.assertEqual(self.service.job()["status"], "cancelled")
        failed = self.service.query("SELECT outcome, reason FROM rounds")
        self.assertEqual(failed, [(2, 153)])

    def test_the_tool_says_the_same(self):
        listed = self.service.tool("job", "list", "--json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertEqual(json.loads(listed.stdout), self.service.get("/v1/jobs"))
        self.assertIn(f"{fleet.TENANT}/{fleet.JOB}: running", self.service.tool("job", "list").stdout)
        for name in (fleet.JOB, f"{fleet.TENANT}/{fleet.JOB}"):
            paused = self.service.tool("job", "pause", name)
            self.assertEqual((paused.returncode, paused.stdout), (0, f"{name}: paused\n"), paused.stderr)
        self.assertEqual(self.service.tool("job", "resume", fleet.JOB).returncode, 0)
        self.assertEqual(self.service.tool("round", "show", fleet.JOB, "1", "--json").returncode, 0)
        self.assertEqual(self.service.tool("round", "list", fleet.JOB).returncode, 0)
        self.assertEqual(self.service.tool("client", "list").returncode, 0)
        missing = self.service.tool("client", "show", "acme/nobody")
        self.assertEqual(missing.returncode, 3)
        self.assertIn("nobody", missing.stderr)
        self.assertEqual(self.service.tool("job", "cancel", fleet.JOB).returncode, 0)
        late = self.service.tool("job", "pause", fleet.JOB)
        self.assertEqual(late.returncode, 1)
        self.assertIn("has ended already (cancelled)", late.stderr)

    def test_the_tool_says_what_is_wrong(self):
        for arguments, code, text in ((("job", "show"), 2, "needs"), (("job", "show", "a b"), 2, "no [TENANT/]NAME"),
                                      (("job", "show", "nope"), 3, "no job 'nope'"), (("job", "list", "x"), 2, "one too many"),
                                      (("job", "list", "--url", "https://h:1"), 2, "--state goes alone"),
                                      (("job", "status", "--network", "x"), 2, "status does not take --network"),
                                      (("job", "status", "--wait", "1"), 2, "status does not take --wait"),
                                      (("round", "show", fleet.JOB, "one"), 2, "no number"),
                                      (("round", "show", fleet.JOB, "7"), 3, "no round 7")):
            with self.subTest(arguments):
                done = self.service.tool(*arguments)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(text, done.stderr)
        self.service.stop_server()
        gone = self.service.tool("job", "list")
        self.assertEqual(gone.returncode, 4)
        self.assertIn("no sheafd answers", gone.stderr)


if __name__ == "__main__":
    unittest.main()
