"""Runs Heddle and the reference in turn and prints ratios: see vs_pytorch.sh.

Every round measures both sides one after the other with the FMA peak sampled before, between and
after; a round whose peaks differ by more than 5 % is thrown away and repeated (at most as often as
there are rounds). A ratio is the median over rounds; the spread is its range. Rounds are kept in the
JSON file as they are measured: with --resume those that it has are not measured again.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import heddle_side as heddle

D6 = dict(vocab_size=32768, n_layer=6, n_head=6, n_kv_head=6, n_embd=384)
TINY = dict(vocab_size=259, n_layer=4, n_head=4, n_kv_head=2, n_embd=128)
TRAINING = [  # name, model, batch, seq_len, steps a round
    ("d6 T 512 L", dict(D6, window_pattern="L"), 32, 512, 1),
    ("4 layers C 128 T 256", dict(TINY, window_pattern="SSSL"), 16, 256, 8),
    ("d6 T 2048 SSSL", dict(D6, window_pattern="SSSL"), 4, 2048, 1),
    ("d6 T 8192 SSSL", dict(D6, window_pattern="SSSL"), 1, 8192, 1),
]
ATTENTION = [  # batch, seq_len, n_head, n_kv_head, head_dim, window_left
    (1, 2048, 6, 6, 64, -1), (1, 8192, 6, 6, 64, -1),
    (1, 2048, 6, 6, 64, 512), (1, 8192, 6, 6, 64, 2048), (1, 4096, 8, 2, 128, -1),
]
MODES = ("eager", "compile")


class Peer:
    """Starts when it is first asked; `prepare` is what it is asked then."""

    def __init__(self, args, mode, prepare=None):
        self.args, self.mode, self.prepare, self.process = args, mode, prepare, None

    def start(self):
        here = os.path.dirname(os.path.abspath(__file__))
        env = dict(os.environ, THREADS=str(self.args.threads))
        self.process = subprocess.Popen(
            [self.args.python, f"{here}/peer.py", self.args.reference, self.mode], env=env,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=open(self.args.log, "a"))
        if self.prepare:
            self.ask(**self.prepare)

    def ask(self, **command):
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the reference ended; see {self.args.log}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class Results:
    """What was measured, by row; written to the JSON file whenever something is added."""

    def __init__(self, args):
        self.args, self.rows = args, {}
        if args.resume and os.path.exists(args.json):
            with open(args.json) as file:
                self.rows = json.load(file)

    def row(self, name):
        return self.rows.setdefault(name, dict(rounds=[], dropped=0))

    def save(self):
        with open(self.args.json + ".new", "w") as file:
            json.dump(self.rows, file, indent=1)
        os.replace(self.args.json + ".new", self.args.json)


class Rounds:
    """Values by name of the rounds in which the machine was steady."""

    def __init__(self, args, results, name):
        self.args, self.results, self.row = args, results, results.row(name)
        self.kept = self.row["rounds"]

    def take(self, measure):
        """`measure` returns a list of (name, function); all run once a round, in turn."""
        while len(self.kept) < self.args.rounds:
            peaks, values = [heddle.peak_gflops(self.args.threads)], {}
            for name, function in measure:
                values[name] = function()
                peaks.append(heddle.peak_gflops(self.args.threads))
            if max(peaks) > 1.05 * min(peaks) and self.row["dropped"] < self.args.rounds:
                self.row["dropped"] += 1
                continue
            self.kept.append(dict(values, peak=statistics.median(peaks), peaks=peaks))
            self.results.save()
        return self

    def median(self, name):
        return statistics.median(r[name] for r in self.kept)

    def ratio(self, numerator, denominator):
        ratios = sorted(r[numerator] / r[denominator] for r in self.kept)
        return statistics.median(ratios), ratios[0], ratios[-1]


def show(what, ratio, note=""):
    middle, low, high = ratio
    print(f"{what:<58} {middle:6.2f}x  ({low:.2f} to {high:.2f})  {note}", flush=True)


def training(args, results):
    for name, model, batch, seq_len, steps in TRAINING:
        if args.only and args.only not in name:
            continue
        peers = {mode: Peer(args, mode, dict(do="train", model=model, batch=batch,
                                             seq_len=seq_len)) for mode in MODES}
        memory = results.row(name).setdefault("memory", {})

        def ours():
            seconds, memory["heddle"] = heddle.train_steps(model, batch, seq_len, args.threads,
                                                           steps)
            return statistics.median(seconds)

        def theirs(mode):
            answer = peers[mode].ask(do="step", n=steps)
            memory[mode] = answer["gib"]
            return statistics.median(answer["seconds"])

        with peers["eager"], peers["compile"]:
            rounds = Rounds(args, results, name).take(
                [("heddle", ours), ("eager", lambda: theirs("eager")),
                 ("compile", lambda: theirs("compile"))])
        rate = batch * seq_len / rounds.median("heddle")
        for mode in MODES:
            other = batch * seq_len / rounds.median(mode)
            show(f"{name}: training step against {mode}", rounds.ratio(mode, "heddle"),
                 f"{rate:.0f} against {other:.0f} tok/s; memory {memory['heddle']:.2f} / "
                 f"{memory[mode]:.2f} GiB = {memory['heddle'] / memory[mode]:.2f}")
        print(f"{'':<4}dropped rounds: {rounds.row['dropped']}; peak "
              f"{rounds.median('peak'):.0f} GFLOP/s", flush=True)


def attention(args, results):
    def medians(times):
        return statistics.median(times["forward"]), statistics.median(times["backward"])

    with Peer(args, "eager") as eager, Peer(args, "compile") as compiled:
        for shape in ATTENTION:
            b, t, h, k, d, w = shape
            name = f"attention T {t} H {h} K {k} D {d} window {w}"
            if args.only and args.only not in name:
                continue
            rounds = Rounds(args, results, name).take([
                ("heddle", lambda: medians(heddle.attention(shape, args.threads, 5))),
                ("eager", lambda: medians(eager.ask(do="attention", shape=shape, n=3))),
                ("compile", lambda: medians(compiled.ask(do="attention", shape=shape, n=3)))])
            for index, op in enumerate(("forward", "backward")):
                for mode in MODES:
                    ratios = sorted(r[mode][index] / r["heddle"][index] for r in rounds.kept)
                    show(f"{name}: {op} against {mode}",
                         (statistics.median(ratios), ratios[0], ratios[-1]))


def own_ratios(args, results):
    """Heddle against itself: windows, groups, the step against its own parts, threads."""
    def seconds(pattern, seq_len, batch):
        return statistics.median(heddle.train_steps(dict(D6, window_pattern=pattern), batch,
                                                    seq_len, args.threads, 2)[0])

    def calls(shape):
        times = heddle.attention(shape, args.threads, 5)
        return statistics.median(times["forward"]) + statistics.median(times["backward"])

    window, full = (1, 8192, 6, 6, 64, 2048), (1, 8192, 6, 6, 64, -1)
    rounds = Rounds(args, results, "window").take([("window", lambda: calls(window)),
                                                   ("full", lambda: calls(full))])
    show("attention T 8192: quarter window's time of full's", rounds.ratio("window", "full"),
         "visible pairs: 0.44")

    grouped, single = (4, 2048, 6, 2, 64, -1), (4, 2048, 6, 6, 64, -1)
    rounds = Rounds(args, results, "groups").take([("gqa", lambda: calls(grouped)),
                                                   ("mha", lambda: calls(single))])
    show("attention T 2048: 2 kv heads' time of 6's", rounds.ratio("gqa", "mha"))

    rounds = Rounds(args, results, "SSSL against L").take(
        [("SSSL", lambda: seconds("SSSL", 8192, 1)), ("L", lambda: seconds("L", 8192, 1))])
    show("d6 T 8192: SSSL's step time of L's", rounds.ratio("SSSL", "L"))

    model, layers = dict(D6, window_pattern="L"), D6["n_layer"]
    rounds = Rounds(args, results, "parts").take([
        ("step", lambda: seconds("L", 512, 32)),
        ("parts", lambda: heddle.products_seconds(model, 32, 512, args.threads)
         + layers * calls((32, 512, 6, 6, 64, -1)))])
    show("d6 T 512 L: its own products and attention of the step", rounds.ratio("parts", "step"))

    if args.threads > 1:
        def rate(threads):
            taken = heddle.train_steps(dict(TINY, window_pattern="SSSL"), 16, 256, threads, 12)[0]
            return 1.0 / statistics.median(taken)

        rounds = Rounds(args, results, "threads").take([
            ("one", lambda: rate(1)), ("all", lambda: rate(args.threads)),
            ("peak one", lambda: heddle.peak_gflops(1)),
            ("peak all", lambda: heddle.peak_gflops(args.threads))])
        shares = sorted((r["all"] / r["one"]) / (r["peak all"] / r["peak one"])
                        for r in rounds.kept)
        show(f"{args.threads} threads against 1, as a share of the FMA ratio",
             (statistics.median(shares), shares[0], shares[-1]))


def decoding(args, results):
    with Peer(args, "eager") as peer:
        for batch in (1, 8):
            rounds = Rounds(args, results, f"decode {batch}").take([
                ("heddle", lambda: heddle.decode(batch, 512, 64)),
                ("eager", lambda: peer.ask(do="decode", model=dict(D6, window_pattern="SSSL"),
                                           batch=batch, context=512,
                                           tokens=32)["tokens_per_second"])])
            show(f"decode d6, context 512, batch {batch}", rounds.ratio("heddle", "eager"),
                 f"{rounds.median('heddle'):.0f} against {rounds.median('eager'):.0f} tok/s")


KJV_OPTIM = dict(unembedding_lr=0.004, embedding_lr=0.15, matrix_lr=0.01, scalar_lr=0.25,
                 weight_decay=0.0, warmup_steps=40, warmdown_ratio=0.6, final_lr_frac=0.05,
                 muon_momentum_start=0.85, muon_momentum=0.95, muon_momentum_warmup_steps=300)


def text_once(args, folder, seed):
    """Both sides learn the same bytes for the same time, in turn. The time is that of steps:
    neither start-up nor compiling nor validation counts."""
    data = f"{folder}/shards"
    trial = heddle.TextRun(f"{folder}/trial-{seed}", data, args.threads, 80, seed)
    trial.slice(args.text_seconds)
    steps = round(args.text_seconds / statistics.median(trial.step_seconds()[20:]))
    ours = heddle.TextRun(f"{folder}/ours-{seed}", data, args.threads, steps, seed)
    with Peer(args, "compile") as peer:
        peer.ask(do="text", model=dict(TINY, vocab_size=heddle.shard_vocabulary(data),
                                       window_pattern="SSSL"),
                 batch=16, seq_len=256, optim=KJV_OPTIM, data=data, seed=seed)
        finished, peaks = False, [heddle.peak_gflops(args.threads)]
        while not finished:
            used, done, finished = ours.slice(args.text_seconds / 5)
            answer = peer.ask(do="learn", until=used, budget=used * steps / done)
            peaks.append(heddle.peak_gflops(args.threads))
        theirs = peer.ask(do="bits")["bits_per_byte"]
    return dict(ours=ours.bits_per_byte(), theirs=theirs, seconds=used, steps=steps,
                their_seconds=answer["seconds"], their_steps=answer["steps"], peaks=peaks)


def text(args, results):
    kept = results.row("text")["rounds"]
    with tempfile.TemporaryDirectory() as folder:
        if len(kept) < args.seeds:
            heddle.run("bash", "tools/data/get_kjv.sh")
            heddle.tokenize("data/kjv.txt", f"{folder}/shards")
        while len(kept) < args.seeds:
            kept.append(text_once(args, folder, len(kept) + 1))
            results.save()
    for seed, r in enumerate(kept, 1):
        print(f"King James bytes, seed {seed}: {r['ours']:.3f} bits per byte after "
              f"{r['seconds']:.1f} s ({r['steps']} steps), compile {r['theirs']:.3f} after "
              f"{r['their_seconds']:.1f} s ({r['their_steps']} steps): lower by "
              f"{r['theirs'] - r['ours']:.3f}; peak {min(r['peaks']):.0f} to "
              f"{max(r['peaks']):.0f} GFLOP/s", flush=True)


PARTS = {"training": training, "attention": attention, "own": own_ratios, "decode": decoding,
         "kjv": text}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference")
    parser.add_argument("--python", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--text-seconds", type=float, default=75, help="of training, part kjv")
    parser.add_argument("--seeds", type=int, default=1, help="of part kjv")
    parser.add_argument("--json", default="vs_pytorch.json", help="where all rounds are kept")
    parser.add_argument("--resume", action="store_true",
                        help="do not measure again what the JSON file has")
    parser.add_argument("--log", default="vs_pytorch.log")
    args = parser.parse_args()
    results = Results(args)
    for part in args.parts.split(","):
        if part not in PARTS:
            sys.exit(f"vs_pytorch: no part {part}, expected some of {', '.join(PARTS)}")
        PARTS[part](args, results)


main()
