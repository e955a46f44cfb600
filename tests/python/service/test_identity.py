"""Certificates that change under a running job, with real programs over NNG: a revoked device is sent away within seconds
and told why; the aggregator's and a device's keys rotate in the middle of a round, which ends with the model of a calm run."""
import datetime
import glob
import os
import re
import signal
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
import fleet  # noqa: E402
from fleet import Fleet, sheaf  # noqa: E402

WITHIN_S = 5


class CheckedFleet(Fleet):
    """A fleet whose service reads a revocation list."""

    def __init__(self, **options):
        self.server_keys = ""
        super().__init__(**options)
        sheaf("pki", "crl", "--dir", self.pki)
        self.server_keys = f"  crl: {self.pki}/crl.pem\n"
        self.write_server_config()

    def write_server_config(self):
        text = fleet.SERVER_CONFIG.format(**self.settings).replace("limits:", self.server_keys + "limits:")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text)

    def device_log(self, name):
        path = os.path.join(self.folder, name + ".log")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def accepted(self, number=1):
        return self.query("SELECT count(*) FROM updates WHERE round = ?", number)[0][0]


class Identity(unittest.TestCase):
    def fleet(self, **options):
        made = CheckedFleet(**options)
        self.addCleanup(made.close)
        return made

    def test_a_revoked_device_is_sent_away_and_told(self):
        one = self.fleet(devices=3, rounds=2)
        one.start_server()
        for name in one.names[:2]:  # the third never comes, so the round stays open and the two wait in it
            one.start_device(name)
        one.wait_for(lambda: one.accepted() == 2)
        begin = time.monotonic()
        sheaf("pki", "revoke", "--dir", one.pki, one.names[0])
        one.wait_for(lambda: "reason=revoked" in one.log(), WITHIN_S)
        one.wait_for(lambda: "revoked" in one.device_log(one.names[0]), WITHIN_S + 15)  # a device's longest pause is 10 s
        told_s = time.monotonic() - begin
        line = next(line for line in one.log().splitlines() if "reason=revoked" in line)
        self.assertIn(one.names[0], line)
        # Nobody else is sent away, and who is stays away.
        time.sleep(2)
        self.assertFalse([line for line in one.log().splitlines() if "revoked" in line and one.names[1] in line])
        self.assertIsNone(one.devices[one.names[1]].poll())
        print(f"    the revoked device knew after {told_s:.1f} s", flush=True)

    def test_an_unreadable_list_keeps_the_old_one_in_force(self):
        one = self.fleet(devices=1, rounds=1)
        sheaf("pki", "revoke", "--dir", one.pki, one.names[0])
        one.start_server()
        with open(os.path.join(one.pki, "crl.pem"), "w", encoding="ascii") as file:
            file.write("-----BEGIN X509 CRL-----\nnonsense\n-----END X509 CRL-----\n")
        one.wait_for(lambda: "trust_unreadable" in one.log(), WITHIN_S)
        one.start_device(one.names[0])
        one.wait_for(lambda: "reason=revoked" in one.log(), WITHIN_S)
        time.sleep(2)  # a list's number is the time, or one more than the last: here the last is lost, and may be ahead
        sheaf("pki", "crl", "--dir", one.pki)
        one.wait_for(lambda: "trust_reloaded" in one.log(), WITHIN_S)

    def test_keys_rotate_in_the_middle_of_a_round(self):
        calm = self.fleet(devices=3, rounds=3).run_all()
        one = self.fleet(devices=3, rounds=3)
        late = one.names[2]
        one.start_server()
        for name in one.names[:2]:
            one.start_device(name)
        one.wait_for(lambda: one.accepted() == 2)
        one.start_device(late)
        one.wait_for(lambda: "round" in one.device_log(late))
        one.devices[late].send_signal(signal.SIGSTOP)
        open_before = one.query("SELECT outcome FROM rounds WHERE round = 1")
        sheaf("pki", "renew", "--dir", one.pki, "--role", "aggregator", "--name", "aggregator", "--tenant", fleet.TENANT)
        sheaf("pki", "renew", "--dir", one.pki, "--role", "device", "--name", late, "--tenant", fleet.TENANT, "--overlap", "1")
        one.wait_for(lambda: "certificate_reloaded" in one.log(), WITHIN_S)
        if open_before == [(0,)]:
            one.wait_for(lambda: "round_signed_again" in one.log(), WITHIN_S)
        one.devices[late].send_signal(signal.SIGCONT)
        one.finish()
        self.assertIn("certificate_reloaded", one.device_log(late))
        self.assertEqual(open_before, [(0,)], "the round was over before the keys rotated")
        self.assertEqual(one.released()[-1]["model"], calm)
        self.assertEqual([row["accepted"] for row in one.released()], [3, 3, 3])

    def test_a_device_whose_clock_is_wrong_by_a_year_says_so_and_loses_nothing(self):
        libraries = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
        self.assertTrue(libraries, "Debian's package faketime is missing")
        calm = self.fleet(devices=2, rounds=1).run_all()
        one = self.fleet(devices=2, rounds=1)
        one.start_server()
        one.start_device(one.names[0])
        for shift, what in (("-366d", "not yet valid"), ("+366d", "expired")):
            env = dict(os.environ, LD_PRELOAD=libraries[0], FAKETIME=shift, FAKETIME_DONT_FAKE_MONOTONIC="1",
                       ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
            one.start_device(one.names[1], env=env)
            one.wait_for(lambda words=what: words in one.device_log(one.names[1]), 20)
            line = next(line for line in one.device_log(one.names[1]).splitlines() if what in line)
            said = re.search(r"the clock here says (\S+Z)", line)
            self.assertIsNotNone(said, line)
            saw = datetime.datetime.strptime(said[1], "%Y-%m-%dT%H:%M:%SZ")  # the device's clock, not ours
            meant = datetime.datetime.utcnow() + datetime.timedelta(days=int(shift[:-1]))
            self.assertLess(abs((saw - meant).total_seconds()), 120, line)
            one.devices[one.names[1]].kill()
            one.devices[one.names[1]].wait()
        one.start_device(one.names[1])
        one.finish()
        self.assertEqual(one.released()[-1]["model"], calm)

    def test_a_hangup_looks_at_the_files_and_stops_nothing(self):
        one = self.fleet(devices=1, rounds=1)
        one.start_server()
        sheaf("pki", "renew", "--dir", one.pki, "--role", "aggregator", "--name", "aggregator", "--tenant", fleet.TENANT)
        one.server.send_signal(signal.SIGHUP)
        one.wait_for(lambda: "certificate_reloaded" in one.log(), WITHIN_S)
        one.start_device(one.names[0])
        one.finish()


if __name__ == "__main__":
    unittest.main()
