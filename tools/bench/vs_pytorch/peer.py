"""One side of vs_pytorch.sh: the reference (nanochat) in PyTorch, ready to run when told.

    peer.py REFERENCE_DIR eager|compile

Reads one JSON command a line, answers with one JSON line:
    {"do": "train", "model": {...}, "batch": B, "seq_len": T}     builds and warms up a training step
    {"do": "step", "n": N}                                        {"seconds": [...], "gib": peak}
    {"do": "attention", "shape": [B, T, H, K, D, W], "n": N}      {"forward": [...], "backward": [...]}
    {"do": "decode", "model": {...}, "batch": B, "context": S, "tokens": N}   {"tokens_per_second": x}
    {"do": "text", "model": {...}, "batch": B, "seq_len": T, "optim": {...}, "data": FOLDER,
     "seed": N}                                  gets ready to train on token shards: {"windows": n}
    {"do": "learn", "until": S, "budget": S}     trains until it has used `until` of the `budget`
                                        seconds that it gets in all: {"seconds": s, "steps": n}
    {"do": "bits"}                      {"bits_per_byte": of the validation shards}
"""
import glob
import json
import math
import os
import resource
import sys
import time

os.environ["NANOCHAT_DTYPE"] = "float32"
sys.path.insert(0, sys.argv[1])
mode = sys.argv[2]
import numpy as np  # noqa: E402
import torch  # noqa: E402
from nanochat import gpt  # noqa: E402
from nanochat.engine import KVCache  # noqa: E402
from nanochat.flash_attention import flash_attn  # noqa: E402

torch.set_num_threads(int(os.environ["THREADS"]))
answers = os.dup(1)
os.dup2(2, 1)  # whatever libraries print must not reach the pipe


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def model_of(model, seq_len):
    made = gpt.GPT(gpt.GPTConfig(sequence_len=seq_len, **model))
    made.init_weights()
    return made


class Training:
    def __init__(self, model, batch, seq_len):
        torch.manual_seed(0)
        made = model_of(model, seq_len)
        self.optimizer = made.setup_optimizer()
        self.model = torch.compile(made, dynamic=False) if mode == "compile" else made
        shape, vocab = (batch, seq_len), model["vocab_size"]
        self.inputs, self.targets = torch.randint(0, vocab, shape), torch.randint(0, vocab, shape)

    def step(self):
        begin = time.perf_counter()
        self.model(self.inputs, self.targets).backward()
        self.optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return time.perf_counter() - begin


attention_calls = {}


def attention(shape, n):
    if tuple(shape) not in attention_calls:
        b, t, h, k, d, w = shape
        q, key, v = (torch.randn(b, t, heads, d, requires_grad=True) for heads in (h, k, k))
        dout = torch.randn(b, t, h, d)
        call = lambda: flash_attn.flash_attn_func(q, key, v, causal=True, window_size=(w, 0))
        if mode == "compile":
            torch._dynamo.reset()
            call = torch.compile(call)
        call().backward(dout)
        attention_calls[tuple(shape)] = call, dout
    call, dout = attention_calls[tuple(shape)]
    forward, backward = [], []
    for _ in range(n):
        begin = time.perf_counter()
        out = call()
        middle = time.perf_counter()
        out.backward(dout)
        forward.append(middle - begin)
        backward.append(time.perf_counter() - middle)
    return {"forward": forward, "backward": backward}


def windows(paths, seq_len):
    """(inputs, targets) of Heddle's windows: T tokens a window, the first input replaced by bos."""
    bos = 256
    inputs, targets = [], []
    for path in sorted(paths):
        ids = np.fromfile(path, dtype=np.uint16, offset=1024).astype(np.int64)
        n = (len(ids) - 1) // seq_len
        inputs.append(ids[:n * seq_len].reshape(n, seq_len).copy())
        targets.append(ids[1:n * seq_len + 1].reshape(n, seq_len))
        inputs[-1][:, 0] = bos
    return torch.from_numpy(np.concatenate(inputs)), torch.from_numpy(np.concatenate(targets))


class Text:
    """Training on bytes. `optim` has Heddle's keys; the schedule goes by the share of the time used
    where Heddle's goes by the share of the steps done."""

    def __init__(self, model, batch, seq_len, optim, data, seed):
        torch.manual_seed(seed)
        self.optim, self.batch = optim, batch
        self.train = windows(glob.glob(f"{data}/*_train_*.bin"), seq_len)
        self.val = windows(glob.glob(f"{data}/*_val_*.bin"), seq_len)
        self.plain = model_of(model, seq_len)
        self.model = torch.compile(self.plain, dynamic=False) if mode == "compile" else self.plain
        self.begin()
        for _ in range(3):  # compiles everything
            self.step(1.0, 0.9)
        self.plain.init_weights()
        self.begin()

    def begin(self):
        o = self.optim
        self.optimizer = self.plain.setup_optimizer(
            unembedding_lr=o["unembedding_lr"], embedding_lr=o["embedding_lr"],
            matrix_lr=o["matrix_lr"], scalar_lr=o["scalar_lr"], weight_decay=o["weight_decay"])
        self.order, self.seconds, self.steps = [], 0.0, 0

    def step(self, rate, momentum):
        if len(self.order) < self.batch:
            self.order = torch.randperm(len(self.train[0])).tolist()
        rows = [self.order.pop() for _ in range(self.batch)]
        self.model(self.train[0][rows], self.train[1][rows]).backward()
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
            if group["kind"] == "muon":
                group["momentum"] = momentum
        self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def learn(self, until, budget):
        o = self.optim
        while self.seconds < until:
            begin = time.perf_counter()
            left = (1.0 - self.seconds / budget) / o["warmdown_ratio"]
            rate = min(1.0, (self.steps + 1) / o["warmup_steps"])
            if left < 1.0:
                rate = left + (1.0 - left) * o["final_lr_frac"]
            warm = min(1.0, self.steps / o["muon_momentum_warmup_steps"])
            self.step(rate, (1.0 - warm) * o["muon_momentum_start"] + warm * o["muon_momentum"])
            self.steps += 1
            self.seconds += time.perf_counter() - begin
        return {"seconds": self.seconds, "steps": self.steps}

    def bits(self):
        nats = 0.0
        with torch.inference_mode():
            for i in range(0, len(self.val[0]), self.batch):
                nats += self.plain(self.val[0][i:i + self.batch], self.val[1][i:i + self.batch],
                                   loss_reduction="sum").item()
        return {"bits_per_byte": nats / self.val[1].numel() / math.log(2)}


def decode(model, batch, context, tokens):
    made = model_of(model, 2048)
    dim = model["n_embd"] // model["n_head"]
    cache = KVCache(batch, model["n_kv_head"], context + tokens + 1, dim, model["n_layer"], "cpu",
                    torch.float32)
    with torch.inference_mode():
        made(torch.randint(0, model["vocab_size"], (batch, context)), kv_cache=cache)
        ids = torch.randint(0, model["vocab_size"], (batch, 1))
        begin = time.perf_counter()
        for _ in range(tokens):
            ids = made(ids, kv_cache=cache)[:, -1].argmax(-1, keepdim=True)
        return {"tokens_per_second": batch * tokens / (time.perf_counter() - begin)}


training = text = None
for line in sys.stdin:
    command = json.loads(line)
    what = command.pop("do")
    if what == "train":
        training = Training(**command)
        answer = {"first": training.step()}  # compiles and makes the optimizer's state
    elif what == "step":
        answer = {"seconds": [training.step() for _ in range(command["n"])], "gib": peak_gib()}
    elif what == "attention":
        answer = attention(**command)
    elif what == "decode":
        answer = decode(**command)
    elif what == "text":
        text = Text(**command)
        answer = {"windows": len(text.train[0])}
    elif what == "learn":
        answer = text.learn(**command)
    elif what == "bits":
        answer = text.bits()
    else:
        sys.exit(f"unknown command {what}")
    os.write(answers, (json.dumps(answer) + "\n").encode())
