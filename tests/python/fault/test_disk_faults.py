"""The disk of sheafd fails for a while: full (ENOSPC) or broken (EIO), on the spool, the database or the models. The
service stays up, names the fault in its log, serves the last model, acknowledges nothing that it does not hold, and once
the disk works again the job ends with the model of an undisturbed run."""
import os
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
import service  # noqa: E402

# What fails, where, and the name of the status that the log must tell.
FAULTS = [
    ("write:1:ENOSPC:*", "*/spool/*", "no_space"), ("write:1:EIO:*", "*/spool/*", "disk"), ("open:1:ENOSPC:*", "*/spool/*.part", "no_space"),
    ("fsync:1:EIO:*", "*/spool/*.part", "disk"), ("rename:1:EIO:*", "*/spool/*.part", "disk"),
    ("fsync:1:EIO:*", "*/spool/0*", "disk"), ("mkdir:1:ENOSPC:*", "*/spool/*", "no_space"),
    ("write:1:ENOSPC:*", "*/models/*", "no_space"), ("write:1:short:*", "*/models/*", None), ("fsync:1:EIO:*", "*/models/*", "disk"),
    ("open:1:EACCES:*", "*/models/*.new", "permission"), ("rename:1:ENOSPC:*", "*/models/*", "no_space"),
    ("write:1:ENOSPC:*", "*/state.db-wal", "database"), ("write:1:EIO:*", "*/state.db-wal", "database"),
    ("fdatasync:1:EIO:*", "*/state.db-wal", "database"), ("open:1:EIO:*", "*/spool/*.update", "disk"),
]


@unittest.skipIf(service.why_not(service.SHEAFD), service.why_not(service.SHEAFD))
class DiskFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = service.World(devices=3, rounds=3)
        cls.addClassCleanup(cls.world.close)
        cls.switch = os.path.join(cls.world.folder, "fault")
        cls.report = os.path.join(cls.world.folder, "report")
        cls.digest = cls.job(None, None)[0]

    @classmethod
    def job(cls, fault, pattern):
        """Runs the job; the fault holds from the end of the first round on, for 1.2 seconds."""
        world = cls.world
        world.reset()
        env = dict(os.environ, LD_PRELOAD=os.path.join(service.BUILD, "tests", "fault", "fault_shim.so"),
                   ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""),
                   SHEAF_FAULT_WHILE=cls.switch, SHEAF_FAULT_REPORT=cls.report)
        if fault is not None:
            env.update(SHEAF_FAULT=fault, SHEAF_FAULT_PATH=pattern)
        world.start(env)
        world.start_devices()
        if fault is not None:
            cls.disturb()
        how = world.wait(60)
        assert how == "ended", f"{how}: {world.tail(8)}"
        broken = world.broken_promises(world.state)
        assert not broken, broken
        digest, log = world.digest(), world.tail(10000)
        world.stop_devices()
        code = world.stop()
        assert code == 0, f"exit {code}: {world.tail()}"
        with open(cls.report, encoding="ascii") as file:
            failed = sum(int(line.split()[2]) for line in file)
        return digest, log, failed

    @classmethod
    def disturb(cls):
        world = cls.world
        until = time.monotonic() + 20
        while not any(device.receipts for device in world.devices) and time.monotonic() < until:
            time.sleep(0.001)
        open(cls.switch, "wb").close()
        time.sleep(1.2)  # longer than the pause before it tries again
        assert world.server.poll() is None, "sheafd ended: " + world.tail()
        os.unlink(cls.switch)

    def test_the_job_waits_and_then_ends_as_if_nothing_had_been(self):
        for fault, pattern, name in FAULTS:
            with self.subTest(fault=fault, pattern=pattern):
                digest, log, failed = self.job(fault, pattern)
                print(f"    {fault} {pattern}: {failed} calls failed", flush=True)
                self.assertGreater(failed, 0, "the fault met no call")
                self.assertEqual(digest, self.digest)
                if name is not None:
                    self.assertTrue("ERROR" in log or "WARN" in log, log)
                    self.assertIn(name, log)


if __name__ == "__main__":
    unittest.main()
