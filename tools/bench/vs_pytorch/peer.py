"""One side of vs_pytorch.sh: the reference (nanochat) in PyTorch, ready to run when told.

    peer.py REFERENCE_DIR eager|compile

Reads one JSON command a line, answers with one JSON line:
    {"do": "train", "model": {...}, "batch": B, "seq_len": T}     builds and warms up a training step
    {"do": "step", "n": N}                                        {"seconds": [...], "gib": peak}
    {"do": "attention", "shape": [B, T, H, K, D, W], "n": N}      {"forward": [...], "backward": [...]}
    {"do": "decode", "model": {...}, "batch": B, "context": S, "tokens": N}   {"tokens_per_second": x}
"""
import json
import os
import resource
import sys
import time

os.environ["NANOCHAT_DTYPE"] = "float32"
sys.path.insert(0, sys.argv[1])
mode = sys.argv[2]
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


training = None
for line in sys.stdin:
    command = json.loads(line)
    what = command.pop("do")
    if what == "train":
        training = Training(**command)
        answer = {"first": training.step(), "second": training.step()}
    elif what == "step":
        answer = {"seconds": [training.step() for _ in range(command["n"])], "gib": peak_gib()}
    elif what == "attention":
        answer = attention(**command)
    elif what == "decode":
        answer = decode(**command)
    else:
        sys.exit(f"unknown command {what}")
    os.write(answers, (json.dumps(answer) + "\n").encode())
