"""kill -9 of sheafd at random moments of rounds, several times in a job: the restarted job ends with the model of an
undisturbed run, and every receipt that a device holds is counted."""
import os
import random
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
import service  # noqa: E402

LONG = os.environ.get("SHEAF_LONG", "") not in ("", "0")
SEEDS = range(1, 41 if LONG else 9)
KILLS = 4


@unittest.skipUnless(os.path.exists(service.SHEAFD), "sheafd is not built")
class Kill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = service.World(devices=5, rounds=4)
        cls.addClassCleanup(cls.world.close)
        begin = time.monotonic()
        cls.digest, _ = cls.job(None)
        cls.seconds = time.monotonic() - begin

    @classmethod
    def job(cls, rng):
        """Runs the job; with `rng`, sheafd is killed KILLS times. Returns (digest, kills that hit a running job)."""
        world, kills = cls.world, 0
        world.reset()
        world.start()
        world.start_devices()
        for _ in range(KILLS if rng is not None else 0):
            if world.wait(rng.uniform(0.0, 0.4 * cls.seconds)) != "timeout":
                break
            world.server.kill()
            world.server.wait()
            kills += 1
            broken = world.broken_promises(world.state)
            assert not broken, broken
            world.start()
        how = world.wait()
        assert how == "ended", f"{how}: {world.tail()}"
        wrong = [text for device in world.devices for text in device.wrong]
        assert not wrong, wrong
        for device in world.devices:
            assert sorted(device.receipts) == list(range(1, world.rounds + 1)), device.receipts.keys()
        digest = world.digest()
        world.stop_devices()
        assert world.stop() == 0, world.tail()
        return digest, kills

    def test_killed_jobs_end_with_the_model_of_an_undisturbed_one(self):
        total = 0
        for seed in SEEDS:
            with self.subTest(seed=seed):
                digest, kills = self.job(random.Random(seed))
                self.assertEqual(digest, self.digest)
                total += kills
        print(f"    {total} kills in {len(SEEDS)} jobs", flush=True)
        self.assertGreaterEqual(total, 2 * len(SEEDS))


if __name__ == "__main__":
    unittest.main()
