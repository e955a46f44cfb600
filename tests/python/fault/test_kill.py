"""kill -9 of sheafd and of devices at random moments of rounds, several times in a job: the restarted job ends with the
model of an undisturbed run, and every receipt that a device holds is counted.

SHEAF_LONG=1 tries more seeds.
"""
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
import service  # noqa: E402

LONG = os.environ.get("SHEAF_LONG", "") not in ("", "0")
SEEDS = range(1, 41 if LONG else 5 if service.sanitized() else 9)
KILLS = 4


@unittest.skipIf(service.why_not(service.SHEAFD), service.why_not(service.SHEAFD))
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
        assert world.wait_until_up(), world.tail()  # the last kill may have come after the last device left
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
        self.assertGreater(total, len(SEEDS))


EDGE = os.path.join(service.BUILD, "client", "sheaf-edge")
EDGE_CONFIG = """\
edge:
  url: tls+tcp://127.0.0.1:{port}
  job: {job}
  state: {folder}/{client}
  certificate: {pki}/device-{client}.pem
  key: {pki}/device-{client}.key
  ca: {pki}/ca.pem
trainer: {{network: {network}, data: {data}}}
limits: {{chunk_bytes: 1 KiB}}
"""


@unittest.skipIf(service.why_not(EDGE, service.SHEAFD), service.why_not(EDGE, service.SHEAFD))
class KillAll(unittest.TestCase):
    """Real devices that train on the digits, and their aggregator: each is killed and started again."""

    @classmethod
    def setUpClass(cls):
        cls.world = service.World(devices=3, rounds=3)
        cls.addClassCleanup(cls.world.close)
        cls.edges = {}
        cls.addClassCleanup(cls.kill_edges)
        cls.network = os.path.join(service.SOURCE, "examples", "digits", "network.yaml")
        cls.split = os.path.join(cls.world.folder, "split")
        cls.tool("data", "split", "--data", os.path.join(service.SOURCE, "examples", "digits", "digits.csv"), "--clients", "3",
                 "--out", cls.split)
        cls.tool("model", "init", cls.network, "--seed", "1", "-o", os.path.join(cls.world.folder, "initial.safetensors"))
        begin = time.monotonic()
        cls.digest, _ = cls.job(None)
        cls.seconds = time.monotonic() - begin

    @staticmethod
    def tool(*arguments):
        subprocess.run([service.SHEAF, *arguments], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def kill_edges(cls):
        for edge in cls.edges.values():
            if edge.poll() is None:
                edge.kill()
            edge.wait()
        cls.edges.clear()

    @classmethod
    def start_edge(cls, client):
        path = os.path.join(cls.world.folder, f"{client}.yaml")
        with open(os.path.join(cls.world.folder, f"{client}.log"), "ab") as log:
            cls.edges[client] = subprocess.Popen([EDGE, "--config", path, "--exit-when-done"], stdout=log, stderr=log)

    @classmethod
    def begin(cls):
        world = cls.world
        world.reset()
        for number, client in enumerate(world.clients):
            shutil.rmtree(os.path.join(world.folder, client), ignore_errors=True)
            with open(os.path.join(world.folder, f"{client}.yaml"), "w", encoding="utf-8") as file:
                file.write(EDGE_CONFIG.format(port=world.port, job=service.JOB, folder=world.folder, client=client, pki=world.pki,
                                              network=cls.network, data=os.path.join(cls.split, f"client-{number:02}.csv")))
        world.start()
        for client in world.clients:
            cls.start_edge(client)

    @classmethod
    def kill_one(cls, rng):
        victim = rng.choice(["sheafd", *cls.world.clients])
        if victim == "sheafd":
            assert cls.world.server.poll() is None, cls.world.tail()  # else it ended by itself
            cls.world.server.kill()
            cls.world.server.wait()
            cls.world.start()
        elif cls.edges[victim].poll() is None:
            cls.edges[victim].kill()
            cls.edges[victim].wait()
            cls.start_edge(victim)
        else:
            return 0
        return 1

    @classmethod
    def job(cls, rng):
        """Returns (digest of the last model, kills)."""
        world, kills = cls.world, 0
        cls.begin()
        for _ in range(2 * KILLS if rng is not None else 0):
            time.sleep(rng.uniform(0.0, 0.4 * cls.seconds))
            kills += cls.kill_one(rng)
        assert world.wait_until_up(), world.tail()
        for client, edge in cls.edges.items():
            code = edge.wait(120)
            with open(os.path.join(world.folder, f"{client}.log"), encoding="utf-8") as log:
                text = log.read()
            assert code == 0, f"{client}: {code}: {text[-1000:]}"
            assert " refused " not in text, text
        cls.edges.clear()
        assert world.stop() == 0, world.tail()
        return cls.models_of(world), kills

    @staticmethod
    def models_of(world):
        """Digest of the model of each round, from the database; and each device counted once in each."""
        path = os.path.join(world.state, "state.db")
        with sqlite3.connect(path) as database:
            counted = database.execute("SELECT round, count(*), count(DISTINCT client) FROM updates GROUP BY round").fetchall()
            models = database.execute("SELECT round, model FROM rounds WHERE outcome = 1 ORDER BY round").fetchall()
        database.close()
        assert counted == [(number, 3, 3) for number in (1, 2, 3)], counted
        return [(number, bytes(model).hex()) for number, model in models]

    def test_killed_jobs_end_with_the_models_of_an_undisturbed_one(self):
        total = 0
        for seed in SEEDS:
            with self.subTest(seed=seed):
                digest, kills = self.job(random.Random(seed))
                self.assertEqual(digest, self.digest)
                total += kills
        print(f"    {total} kills in {len(SEEDS)} jobs", flush=True)
        self.assertGreater(total, len(SEEDS))


if __name__ == "__main__":
    unittest.main()
