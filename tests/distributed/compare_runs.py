"""Compares training runs by what they left behind. Standard library only.

  compare_runs.py losses A B [FIRST LAST]   largest relative difference of train/loss; steps FIRST..LAST
  compare_runs.py bits A B STEP             number of tensors of checkpoint STEP that differ
  compare_runs.py metric A KEY              values of a metric, as a sorted set
  compare_runs.py mean A KEY                mean of a metric

A and B are run folders. Tensors of the optimizer may be cut differently in the two checkpoints.
"""
import json
import pathlib
import struct
import sys


def metrics(run, key):
    lines = (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()
    return {m["step"]: m[key] for m in map(json.loads, lines) if key in m}


def tensors(run, step):
    """Bytes of every tensor of a checkpoint; slices NAME[begin:end] are put together."""
    whole, slices = {}, {}
    folder = pathlib.Path(run) / "checkpoints" / f"step-{int(step):06d}"
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, info in header.items():
            begin, end = info["data_offsets"]
            part = data[8 + length + begin : 8 + length + end]
            if name.endswith("]"):
                base, _, place = name[:-1].rpartition("[")
                slices.setdefault(base, []).append((int(place.split(":")[0]), part))
            else:
                whole[name] = part
    for name, parts in slices.items():
        at = 0
        for begin, part in sorted(parts):
            assert begin * 4 == at, f"{name}: elements from {at // 4} on are missing"
            at += len(part)
        whole[name] = b"".join(part for _, part in sorted(parts))
    assert whole, f"no tensors in {folder}"
    return whole


def largest_difference(a, b, first, last):
    left, right = metrics(a, "train/loss"), metrics(b, "train/loss")
    steps = [s for s in left if s in right and first <= s <= last]
    assert steps, "no step in common"
    return max(abs(left[s] - right[s]) / abs(left[s]) for s in steps)


def differing(a, b, step):
    left, right = tensors(a, step), tensors(b, step)
    return sum(left.get(name) != right.get(name) for name in left.keys() | right.keys())


def main(argv):
    command, a, *rest = argv
    if command == "losses":
        first, last = (int(x) for x in rest[1:]) if len(rest) > 1 else (1, 1 << 60)
        print(f"{largest_difference(a, rest[0], first, last):.1e}")
    elif command == "bits":
        print(differing(a, rest[0], rest[1]))
    elif command == "metric":
        print(*sorted(set(metrics(a, rest[0]).values())))
    elif command == "mean":
        values = metrics(a, rest[0]).values()
        print(f"{sum(values) / len(values):.2f}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
