"""What is left on the disk after the power failed: the harness of power_shim.c.

    power = Power(build, root, work)            # root: the folder the program writes to; work: a scratch folder
    code, out = power.run([program, ...], die=7)  # SIGKILL at its 7th sync
    power.rebuild(fresh)                        # the tree that survives

Modes of rebuild, all of which a file system may do:
    strict   only names and contents that were synced
    names    every name is there, also unsynced renames and removals, but only synced contents
    mixed    each folder and each file by a coin, either as last synced or as last written (needs `seed`)
"""
import os
import random
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True


class Power:
    def __init__(self, build, root, work):
        self.shim = os.path.join(build, "tests", "fault", "power_shim.so")
        self.root = os.path.realpath(root)
        self.shadow = os.path.join(os.path.realpath(work), "shadow")

    def environment(self, die=None, ignore=None, base=None):
        """The environment that puts a program under the shim; the old shadow is dropped."""
        shutil.rmtree(self.shadow, ignore_errors=True)
        env = dict(os.environ if base is None else base)
        env.pop("SHEAF_POWER_OWNER", None)
        env["LD_PRELOAD"] = self.shim
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + env.get("ASAN_OPTIONS", "")
        env["SHEAF_POWER_ROOT"] = self.root
        env["SHEAF_POWER_SHADOW"] = self.shadow
        for name, value in (("SHEAF_POWER_DIE", die), ("SHEAF_POWER_IGNORE", ignore)):
            env.pop(name, None)
            if value is not None:
                env[name] = str(value)
        return env

    def run(self, command, die=None, ignore=None, timeout=120):
        """Runs to the end or to the death; returns (exit code, stdout). -9 is death at the chosen sync."""
        done = subprocess.run(command, env=self.environment(die, ignore), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, text=True)
        if done.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr}")
        return done.returncode, done.stdout

    def count(self):
        """Syncs seen so far."""
        with open(os.path.join(self.shadow, "count"), encoding="ascii") as file:
            return int(file.read())

    def sites(self):
        """Distinct sync sites seen so far, in order."""
        try:
            with open(os.path.join(self.shadow, "sites"), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def rebuild(self, destination, mode="strict", seed=0):
        """Builds the surviving tree in `destination`, which must not exist. The root itself must not be touched
        between the death and this call."""
        with open(os.path.join(self.shadow, "root"), encoding="ascii") as file:
            inode = int(file.read())
        _Rebuild(self, mode, random.Random(seed)).folder(inode, self.root, destination)


class _Rebuild:
    def __init__(self, power, mode, coin):
        if mode not in ("strict", "names", "mixed"):
            raise ValueError(mode)
        self.power, self.mode, self.coin = power, mode, coin
        self.live = {}  # inode -> path of what the program last wrote
        for folder, folders, files in os.walk(power.root):
            for name in folders + files:
                path = os.path.join(folder, name)
                self.live[os.lstat(path).st_ino] = path
        self.contents = {}  # a file under two names has one fate

    def _written(self):
        return self.mode == "names" or (self.mode == "mixed" and self.coin.random() < 0.5)

    def _synced_names(self, inode):
        try:
            with open(os.path.join(self.power.shadow, "folders", str(inode)), encoding="utf-8") as file:
                for line in file.read().splitlines():
                    kind, number, name = line.split(" ", 2)
                    yield kind, int(number), name
        except FileNotFoundError:
            return  # made, never synced: an empty folder

    def _written_names(self, path):
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                yield "folder", entry.inode(), entry.name
            elif entry.is_file(follow_symlinks=False):
                yield "file", entry.inode(), entry.name

    def folder(self, inode, path, destination):
        os.mkdir(destination, 0o700)
        written = path is not None and self._written()
        names = list(self._written_names(path) if written else self._synced_names(inode))
        for kind, number, name in names:
            target = os.path.join(destination, name)
            if kind == "folder":
                self.folder(number, self.live.get(number), target)
            else:
                self.file(number, target)

    def file(self, inode, target):
        if inode not in self.contents:
            synced = os.path.join(self.power.shadow, "files", str(inode))
            source = synced if os.path.exists(synced) else os.devnull
            if self.mode == "mixed" and inode in self.live and self.coin.random() < 0.5:
                source = self.live[inode]
            self.contents[inode] = source
        if self.contents[inode] == os.devnull:
            open(target, "wb").close()
        else:
            shutil.copyfile(self.contents[inode], target)
        os.chmod(target, 0o600)
