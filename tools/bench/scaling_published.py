#!/usr/bin/env python3
"""What the model behind `heddle plan` says about a published scaling table, and about Heddle's own
step in the same place: the figures of docs/scaling.md.

    python3 tools/bench/scaling_published.py [path of heddle]

The table: llm.c's pull request 426, DGX H100 hosts of 8 GPUs, 12 sequences of 1024 tokens a GPU, one
micro-batch a step, model size not stated; one host also with 24 sequences a GPU.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEDDLE = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/heddle")
PUBLISHED = {1: 395, 2: 674, 4: 817, 8: 1056, 16: 1087, 24: 1320, 48: 2054}  # hosts: ms
TWICE_THE_BATCH = 539  # ms, one host, 24 sequences a GPU
BATCH, GPUS, LENGTH = 12, 8, 1024
GPT2 = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280),
        "1558M": (48, 25, 1600)}
PEAK = 989e12


def plan(size, *flags, batch=BATCH, micro=BATCH, nodes=(1,), **figures):
    layers, heads, width = GPT2[size]
    command = [HEDDLE, "plan", str(ROOT / "configs/models/plain_gpt.yaml"),
               f"model.n_layer={layers}", f"model.n_head={heads}", f"model.n_embd={width}",
               f"model.sequence_len={LENGTH}", "model.vocab_size=50257",
               f"train.device_batch_size={micro}",
               f"train.total_batch_size={batch * GPUS * nodes[0] * LENGTH}",
               "--device", "h100", "--gpus", str(GPUS), "--nodes", ",".join(map(str, nodes)),
               "--json", *flags]
    for key, value in figures.items():
        command += ["--set", f"{key}={value!r}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def step_ms(row, level):
    return row["levels"][level]["seconds"]["step"] * 1e3


def size_table():
    """The second batch size separates what grows with the batch from what does not."""
    slope = (TWICE_THE_BATCH - PUBLISHED[1]) / 1e3  # seconds of 12 more sequences a GPU
    print("| GPT-2 | TFLOP a step and GPU | as all of 395 ms | as the 144 ms that 12 more "
          "sequences take |\n|---|---|---|---|")
    for size in GPT2:
        flops = plan(size)["flops_per_token"] * BATCH * LENGTH
        print(f"| {size} | {flops / 1e12:.1f} | {flops / 0.395 / PEAK:.0%} of peak "
              f"| {flops / slope / PEAK:.0%} of peak |")
    print()
    return slope


def as_published(size, share):
    """llm.c's step: bf16 gradients, all-reduced after backward in one go."""
    nodes = tuple(PUBLISHED)
    flags = ("--no-overlap", "--weak", "dist.bucket_mb=4096")
    figures = {"exchange_bytes": 2, "model_share": share}
    healthy = plan(size, *flags, nodes=nodes, **figures)
    constant = PUBLISHED[1] - step_ms(healthy[0], "none")
    # What the ring formula makes of the published times: bytes a host sends / added time.
    gradients = 2 * plan(size)["parameters"]["total"]
    implied = [None] + [2 * gradients * (1 - 1 / (n * GPUS)) / ((PUBLISHED[n] - PUBLISHED[1]) / 1e3)
                        for n in nodes[1:]]
    slow_links = {**figures, "remote_bytes_per_s": implied[1]}
    one_link = plan(size, *flags, nodes=nodes, **slow_links)
    print(f"Not explained on one host: {constant:.0f} ms a step that neither computation nor "
          "NVLink accounts for; added to every row.\n")
    print("| hosts | published ms | efficiency | predicted, 376 GB/s a host | efficiency "
          f"| predicted, {implied[1] / 1e9:.1f} GB/s a host | efficiency | GB/s a host that the "
          "published time implies |\n|---|---|---|---|---|---|---|---|")
    for i, n in enumerate(nodes):
        good, slow = (step_ms(x[i], "none") + constant for x in (healthy, one_link))
        rate = f"{implied[i] / 1e9:.1f}" if implied[i] else "–"
        print(f"| {n} | {PUBLISHED[n]} | {PUBLISHED[1] / PUBLISHED[n]:.0%} | {good:.0f} "
              f"| {PUBLISHED[1] / good:.0%} | {slow:.0f} | {PUBLISHED[1] / slow:.0%} | {rate} |")
    print()
    return implied[1]


def heddles(size, share, slow_rate):
    nodes = tuple(PUBLISHED)
    slow = {"remote_bytes_per_s": slow_rate}
    cases = [("healthy network, a bucket a layer", BATCH, 4, {}),
             ("healthy, buckets of 400 MiB", BATCH, 400, {}),
             ("slow network", BATCH, 400, slow),
             ("slow, 96 sequences in 8 micro-steps", 8 * BATCH, 400, slow)]
    runs = [plan(size, "--weak", f"dist.bucket_mb={bucket}", nodes=nodes, batch=batch,
                 model_share=share, **figures) for _, batch, bucket, figures in cases]
    print("| hosts | " + " | ".join(f"{name}: ms | efficiency" for name, *_ in cases) +
          " |\n|---" + "|---|---" * len(cases) + "|")
    for i, n in enumerate(nodes):
        cells = []
        for run in runs:
            now, first = step_ms(run[i], "optimizer"), step_ms(run[0], "optimizer")
            cells += [f"{now:.0f}", f"{first / now:.0%}"]
        print(f"| {n} | " + " | ".join(cells) + " |")


def main():
    print("### Which model\n")
    slope = size_table()
    size = "774M"
    # Of peak, so that forward and backward of the added sequences take their time.
    at_peak = plan(size, model_share=1.0)["levels"]["none"]["seconds"]
    share = (at_peak["forward"] + at_peak["backward"]) / slope
    print(f"### The published step, GPT-2 {size}, {share:.0%} of peak, no overlap\n")
    slow_rate = as_published(size, share)
    print("### Heddle's step, dist.shard: optimizer, overlapped, fp32 on the wire\n")
    heddles(size, share, slow_rate)


if __name__ == "__main__":
    main()
