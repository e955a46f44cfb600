"""Ends a run of an example: reads what `sheaf job watch --json` told, and says how it went and where everything lies.

    result.py --model RUN             prints where the final model lies
    result.py RUN CLIENTS SECONDS TRANSPORT     JSON=1 in the environment: one JSON object on the last line
"""
import json
import os
import pathlib
import sys


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def summary(run, clients, seconds, transport):
    """The object of --json."""
    *rounds, end = read_lines(run / "rounds.jsonl")
    released = [line for line in rounds if line["released"]]
    if end["status"] != "ok" or not released or released[-1]["model_digest"] != end["model_digest"]:
        sys.exit(f"the job ended with {end['status']} after {len(released)} rounds")
    return {
        "rounds": len(released),
        "clients": clients,
        "transport": transport,
        "accuracy": round(json.loads((run / "result.json").read_text())["accuracy"], 6),
        "baseline_accuracy": round(json.loads((run / "baseline.json").read_text())["accuracy"], 6),
        "model_digest": end["model_digest"],
        "seconds": seconds,
        "accepted": sum(line["accepted"] for line in rounds),
        "refused": sum(line["refused"] for line in rounds),
    }, end["model"]


def main():
    if sys.argv[1] == "--model":
        print(read_lines(pathlib.Path(sys.argv[2]) / "rounds.jsonl")[-1]["model"])
        return 0
    run, clients, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    result, model = summary(run, clients, seconds, sys.argv[4])
    print()
    print(f"test accuracy  {result['accuracy']:.4f} after {result['rounds']} rounds in {seconds:.1f} s; "
          f"{result['baseline_accuracy']:.4f} by the same trainer on the pooled data")
    print(f"updates        {result['accepted']} accepted, {result['refused']} refused")
    print(f"model          {model}")
    print(f"server log     {run / 'logs' / 'sheafd.log'}")
    print(f"device logs    {run / 'logs'}")
    print(f"certificates   {run / 'pki'}")
    if os.environ.get("JSON") == "1":
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
