"""kill -9 of sheafd, of devices and of the broker at random moments of a job over MQTT: it ends with the models of an
undisturbed one, and every device is counted once in every round.

SHEAF_LONG=1 tries more seeds, SHEAF_SEED=N only that one.
"""
import os
import random
import sys
import time
import unittest

sys.dont_write_bytecode = True
for part in ("kit", "fault"):
    sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", part))
import fleet  # noqa: E402
import service  # noqa: E402

LONG = os.environ.get("SHEAF_LONG", "") not in ("", "0")
SEEDS = [int(os.environ["SHEAF_SEED"])] if "SHEAF_SEED" in os.environ else range(1, 31 if LONG else 2 if service.sanitized() else 4)
DEVICES, ROUNDS, CHUNK_BYTES, KILLS = 3, 3, 2048, 8
PAUSE_S = 1.0 if service.sanitized() else 0.3  # at most, between kills


class KillPastBroker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models, _ = cls.job(None)

    @staticmethod
    def kill_one(job, rng):
        """1 when somebody was killed; 0 when the one who was drawn had ended, or the job had: a sheafd that is started after
        that waits half a minute for devices that have heard of it."""
        victim = rng.choice(["sheafd", "broker", *job.names])
        if " job_ended " in job.log() or job.server.poll() is not None:
            return 0
        if victim == "broker":
            job.broker.kill()
            job.broker.start()
            return 1
        process = job.server if victim == "sheafd" else job.devices[victim]
        if process.poll() is not None:
            return 0
        process.kill()
        process.wait()
        if victim != "sheafd":
            job.start_device(victim)
        elif not KillPastBroker.start_again(job):
            return 0
        return 1

    @staticmethod
    def start_again(job):
        """The last round may have been in the database already: then sheafd ends as soon as it has started."""
        try:
            job.start_server()
        except AssertionError:
            assert job.server.returncode == 0, job.tail()
            return False
        return True

    @classmethod
    def job(cls, rng):
        """(models of the rounds, kills)."""
        job, kills = fleet.Fleet(devices=DEVICES, rounds=ROUNDS, chunk_bytes=CHUNK_BYTES, transport="mqtt"), 0
        try:
            job.start_server()
            for name in job.names:
                job.start_device(name)
            for _ in range(KILLS if rng is not None else 0):
                time.sleep(rng.uniform(0.0, PAUSE_S))
                kills += cls.kill_one(job, rng)
            job.finish()
            assert job.refusals_but_of_old_sessions() == {}, job.refusals()
            counted = job.query("SELECT round, count(*), count(DISTINCT client) FROM updates GROUP BY round")
            assert counted == [(number, DEVICES, DEVICES) for number in range(1, ROUNDS + 1)], counted
            return [row["model"] for row in job.released()], kills
        finally:
            job.close()

    def test_killed_jobs_end_with_the_models_of_an_undisturbed_one(self):
        total = 0
        for seed in SEEDS:
            with self.subTest(seed=seed):
                began = time.monotonic()
                models, kills = self.job(random.Random(seed))
                print(f"    seed {seed}: {kills} kills, {time.monotonic() - began:.1f} s", flush=True)
                self.assertEqual(models, self.models)
                total += kills
        self.assertGreater(total, len(SEEDS))


if __name__ == "__main__":
    unittest.main()
