#!/usr/bin/env python3
"""gpu_check.py with commands that stand in for a GPU's: states, limits, going on, the table."""
import contextlib
import io
import json
import lzma
import os
import tempfile
import time
import unittest
import unittest.mock

import gpu_check
from gpu_check import Report, Skip, Step


def shell(script):
    return ["sh", "-c", script]


class Steps(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "gpu_report.json")
        self.log = os.path.join(self.folder.name, "log")

    def run_steps(self, steps, budget=60, machine="GPU A", **options):
        report = Report(self.path, machine)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = gpu_check.run_steps(steps, report, budget, **options)
        self.said = said.getvalue()
        with open(self.path) as f:
            self.steps = json.load(f)["steps"]
        return code

    def logged(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log) as f:
            return f.read().split()

    def note(self, name, code=0):
        return Step(name, shell(f"echo {name} >> {self.log}; echo said {name}; exit {code}"), 20)

    def test_records_what_every_step_came_to(self):
        steps = [
            Step("good", shell("echo 41"), 20, parse=lambda text: {"number": int(text)}),
            self.note("bad", code=7),
            Step("absent", ["/no/such/program"], 20),
            Step("impossible", shell("exit 9"), 20, missing=lambda: "no such chip"),
            Step("nonsense", shell("echo forty"), 20, parse=lambda text: {"number": int(text)}),
            Step("slow", shell("sleep 30 & sleep 30"), 0.3),
        ]
        begin = time.monotonic()
        self.assertEqual(self.run_steps(steps), 1)
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual({n: s["state"] for n, s in self.steps.items()},
                         {"good": "ok", "bad": "failed", "absent": "failed", "impossible": "skipped",
                          "nonsense": "failed", "slow": "failed"})
        self.assertEqual(self.steps["good"]["result"], {"number": 41})
        self.assertEqual(self.steps["bad"]["reason"], "exit code 7")
        self.assertIn("said bad", self.steps["bad"]["output"])
        self.assertEqual(self.steps["impossible"]["reason"], "no such chip")
        self.assertIn("invalid literal", self.steps["nonsense"]["reason"])
        self.assertIn("no end within", self.steps["slow"]["reason"])

    def test_goes_on_where_it_stopped(self):
        steps = [self.note("one"), self.note("two", code=1), self.note("three")]
        self.assertEqual(self.run_steps(steps[:2]), 1)
        self.assertEqual(self.run_steps(steps), 1)  # the failure of before still counts
        self.assertEqual(self.logged(), ["one", "two", "three"])
        self.assertIn("[1/3] one: ok before", self.said)
        self.assertIn("[2/3] two: failed before", self.said)
        self.assertEqual(self.run_steps([steps[0], self.note("two"), steps[2]], retry=True), 0)
        self.assertEqual(self.logged(), ["one", "two", "three", "two"])

    def test_another_machine_starts_over(self):
        self.assertEqual(self.run_steps([self.note("one")]), 0)
        with contextlib.redirect_stdout(io.StringIO()):
            self.run_steps([self.note("one")], machine="GPU B")
        self.assertEqual(self.logged(), ["one", "one"])

    def test_time_is_up(self):
        steps = [self.note("one"), Step("long", shell("sleep 30"), 90), self.note("two")]
        with unittest.mock.patch.object(gpu_check, "LEAST_SECONDS", 0.5):
            self.assertEqual(self.run_steps(steps, budget=2), 3)
        self.assertEqual(list(self.steps), ["one"])  # long was cut short, two not begun
        self.assertIn("long: left for the next start", self.said)
        self.assertEqual(self.run_steps([steps[0], self.note("long"), steps[2]]), 0)
        self.assertEqual(self.logged(), ["one", "long", "two"])

    def test_a_parser_can_call_it_a_skip_and_sees_earlier_results(self):
        def refuse(text):
            raise Skip(f"it says {text.strip()}")

        seen = []
        steps = [Step("first", shell("echo"), 20, parse=lambda _: {"peak": 5}),
                 Step("second", lambda results: seen.append(results) or shell("echo no; exit 3"), 20,
                      parse=refuse)]
        self.assertEqual(self.run_steps(steps), 0)
        self.assertEqual(self.steps["second"]["reason"], "it says no")
        self.assertEqual(seen, [{"first": {"peak": 5}}])


class Parsers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, text):
        path = os.path.join(self.folder.name, "file")
        with open(path, "w") as f:
            f.write(text)
        return path

    def test_sanitizer(self):
        text = "x\n========= ERROR SUMMARY: 0 errors\n"
        self.assertEqual(gpu_check.parse_sanitizer(text), {"summary": "ERROR SUMMARY: 0 errors"})
        with self.assertRaisesRegex(ValueError, "3 errors"):
            gpu_check.parse_sanitizer(text + "========= ERROR SUMMARY: 3 errors\n")
        with self.assertRaises(ValueError):
            gpu_check.parse_sanitizer("nothing of the kind")
        with self.assertRaises(Skip):
            gpu_check.parse_sanitizer("Error: Device not supported\n")

    def test_golden(self):
        self.assertEqual(gpu_check.parse_golden("x\n[  PASSED  ] 6 tests.\n"),
                         {"summary": "[  PASSED  ] 6 tests."})
        with self.assertRaisesRegex(Skip, "libcublasLt is not found"):
            gpu_check.parse_golden("[cuda] cuBLASLt cannot be loaded: libcublasLt.so.13\n")

    def test_train(self):
        lines = [{"train/tok_per_sec": r, "train/mfu": r / 1e6, "train/loss": 3.0}
                 for r in (1, 50, 100, 300, 200)]
        path = self.file("\n".join(map(json.dumps, [{"model/params": 5}, *lines])))
        result = gpu_check.parse_train(path)("")
        self.assertEqual(result, {"tok_per_sec": 200, "mfu": 0.0002, "loss": 3.0})
        with self.assertRaises(ValueError):
            gpu_check.parse_train(self.file(json.dumps(lines[0])))("")
        with self.assertRaises(Skip):
            gpu_check.parse_train("/none")("[cuda] cuBLASLt cannot be loaded: libcublasLt.so.13")

    def test_bench_and_table(self):
        row = {"plugin": "cuda_flash", "op": "forward", "seq_len": 1024, "head_dim": 128,
               "window_left": 256, "gflops": 412345.0, "kernel": "mma"}
        refused = {**row, "plugin": "cudnn", "refused": "no", "window_left": -1}
        del refused["gflops"]
        path = self.file(json.dumps({"machine": "m", "peak_flops": 9e14, "rows": [row, refused]}))
        result = gpu_check.parse_bench(path)("")
        self.assertEqual(result["rows"][0]["tflops"], 412.3)
        report = Report(os.path.join(self.folder.name, "report"), "GPU A")
        report.record("attention_d128_t1024", {"state": "failed", "reason": "exit code 5",
                                               "result": result})
        report.record("train_d12_L", {"state": "ok", "result": {"tok_per_sec": 123456, "mfu": 0.4}})
        report.record("nccl", {"state": "skipped", "reason": "one GPU"})
        table = gpu_check.make_table(report)
        self.assertIn("| 128 | T/4 | 1024 | 412.3 | - | - | - |", table)
        self.assertIn("| 128 | full | 1024 | - | - | refused | - |", table)
        self.assertIn("123,456 tokens/s, MFU 40.0 %", table)
        self.assertIn("- nccl: skipped, one GPU", table)
        self.assertIn("- attention_d128_t1024: failed, exit code 5", table)


class Bundle(unittest.TestCase):
    def test_packed_libraries_are_unpacked_once(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "lib", "heddle"))
            path = os.path.join(folder, "lib", "heddle", "lib.so")
            with lzma.open(path + ".xz", "wb") as f:
                f.write(b"machine code")
            gpu_check.unpack(folder)
            gpu_check.unpack(folder)
            with open(path, "rb") as f:
                self.assertEqual(f.read(), b"machine code")
            self.assertEqual(os.listdir(os.path.dirname(path)), ["lib.so"])


class Here(unittest.TestCase):
    def test_every_step_says_what_it_lacks(self):
        place = gpu_check.Place("/nowhere", "/nowhere", "/nowhere/out")
        steps = gpu_check.make_steps(place, "")
        names = [s.name for s in steps]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(sum(n.startswith("attention_") for n in names), 12)
        for step in steps:
            self.assertIn("not", step.missing())  # built, or found
        with contextlib.redirect_stdout(io.StringIO()) as said:
            gpu_check.dry_run(steps)
        self.assertEqual(said.getvalue().count("cannot run here"), len(steps))


if __name__ == "__main__":
    unittest.main()
