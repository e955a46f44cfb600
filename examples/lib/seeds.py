"""Runs an example for several seeds and prints the means of its results.

    seeds.py EXAMPLE [SEED... default 1 2 3 4 5] [-- ARGUMENTS of the example]
"""
import json
import subprocess
import sys


def run(example, seed, arguments):
    done = subprocess.run([example, "--json", "--seed", seed, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{example} --seed {seed} gave {done.returncode}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def main():
    example, *rest = sys.argv[1:]
    cut = rest.index("--") if "--" in rest else len(rest)
    seeds, arguments = rest[:cut] or ["1", "2", "3", "4", "5"], rest[cut + 1:]
    results = []
    for seed in seeds:
        result = run(example, seed, arguments)
        results.append(result)
        print(f"seed {seed}: accuracy {result['accuracy']:.4f}, baseline {result['baseline_accuracy']:.4f}, "
              f"{result['seconds']:.1f} s, {result['accepted']} accepted, {result['refused']} refused", flush=True)
    mean = {key: sum(result[key] for result in results) / len(results)
            for key in ("accuracy", "baseline_accuracy", "seconds")}
    print(json.dumps({"seeds": [int(seed) for seed in seeds], "accuracy": round(mean["accuracy"], 4),
                      "baseline_accuracy": round(mean["baseline_accuracy"], 4), "seconds": round(mean["seconds"], 1)}))


if __name__ == "__main__":
    main()
