#!/usr/bin/env python3
"""Fails on an #include that the architecture does not allow (docs/architecture.md, "Arrows").

Every quoted include is written from the repository root. A file may include its own folder and
what its folder may reach; tests and tools may include anything. Kernels reach the standard
library, SIMD headers and each other, nothing else.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tiers of framework/, lowest first. A folder reaches every lower tier, not its neighbours.
TIERS = [
    ["core"],
    ["config"],
    ["device"],
    ["attention", "comm", "data"],
    ["model"],
    ["generate", "checkpoint", "optim"],
    ["train", "report"],
    ["cli"],
]

# What a folder reaches besides lower tiers of framework/.
EXTRA = {
    "framework/device": ["kernels/cpu/ops", "kernels/cuda/ops"],
    "framework/attention": ["plugins/abi", "kernels/reference"],
    "framework/cli": ["plugins/conformance"],
    "plugins/conformance": ["plugins/abi", "kernels/reference"],
}

KERNEL_SYSTEM = re.compile(
    r"^(algorithm|array|atomic|bit|climits|cmath|concepts|cstddef|cstdint|cstdlib|cstring|limits|numbers|"
    r"span|tuple|type_traits|utility|vector|functional|memory|initializer_list|\w*intrin\.h|cpuid\.h|cuda[\w.]*|mma\.h|time\.h)$")


def reachable(path: str) -> list[str] | None:
    """Folders that the file may include from, or None for anything."""
    parts = path.split("/")
    if parts[0] in ("tests", "tools"):
        return None
    if parts[0] == "kernels":
        return ["kernels"]
    folder = "/".join(parts[:2])
    allowed = [folder]
    for name, more in EXTRA.items():
        if folder == name:
            allowed += more
    if parts[0] == "plugins":
        if folder != "plugins/conformance":
            allowed += ["plugins/abi", "kernels"]
        return allowed
    for i, tier in enumerate(TIERS):
        if parts[1] in tier:
            for lower in TIERS[:i]:
                for name in lower:
                    allowed.append(f"framework/{name}")
                    # "each also reaches what lies below its target"
                    allowed += EXTRA.get(f"framework/{name}", [])
            return allowed
    return []


def main() -> int:
    problems = []
    files = [p for top in ("framework", "plugins", "kernels") for p in (ROOT / top).rglob("*")
             if p.suffix in (".h", ".hpp", ".cpp", ".c", ".cu", ".cuh", ".inc")]
    for file in sorted(files):
        path = file.relative_to(ROOT).as_posix()
        allowed = reachable(path)
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if not match or allowed is None:
                continue
            kind, target = match.groups()
            if kind == "<":
                if path.startswith("kernels/") and not KERNEL_SYSTEM.match(target):
                    problems.append(f"{path}:{number}: kernels may not include <{target}>")
                continue
            if target == "heddle_build.h" and path.startswith("framework/core/"):
                continue
            if not any(target.startswith(folder + "/") for folder in allowed):
                problems.append(f"{path}:{number}: may not include {target}; allowed: "
                                + ", ".join(sorted(set(allowed))))
            elif not (ROOT / target).exists():
                problems.append(f"{path}:{number}: {target} does not exist (write includes from "
                                "the repository root)")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_includes: {len(files)} files, {len(problems)} arrows that are not allowed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
