"""What a disassembled CUDA kernel says about its speed: the main loop, its instructions by pipe,
two bounds on the share of the tensor cores' peak, and occupancy. No GPU is involved; what is
assumed stands in ASSUMPTIONS and in the tables below. Input: the text of `cuobjdump -sass`,
`-res-usage` and `-elf`."""
import dataclasses
import re

ASSUMPTIONS = """\
How the figures come about
- Counted is one pass of the main loop, by one warp: the innermost loop that holds most of the
  kernel's HMMA. Everything before and after it, memory latency, barriers, dependences, bank
  conflicts, misses of the instruction cache and the pairs that a mask throws away are left out:
  each makes a kernel slower than the bounds.
- Of branches inside the loop the path with all tensor work, exponentials and memory accesses and
  otherwise the fewest instructions is taken: a block without a mask. "every branch" takes the
  longest path instead.
- A scheduler issues one instruction per clock. HMMA.16816 keeps its tensor core busy for 8 clocks
  on sm_80 (312 TFLOP/s at 1410 MHz on 108 SMs) and for 4 on sm_90, the peak of wgmma, which
  mma.sync is not known to reach.
- overlapped: tensor time / time of the busiest pipe: the ceiling, however many warps there are.
- serial: tensor time / (tensor time + the other issue slots, MUFU at its rate of 8): nothing is
  issued while a tensor core works, and shared memory costs no more than its issue. Where it is
  above overlapped, shared memory is what limits the kernel, and overlapped is the figure to read.
- Clocks per instruction and scheduler: CUDA programming guide, table of arithmetic throughput, for
  lanes per clock and SM over 4 schedulers; shared memory moves 128 bytes per clock and SM, so that
  an ldmatrix.x4 costs each of 4 schedulers 16 clocks of it; conversions (F2FP) at 64 lanes."""


@dataclasses.dataclass(frozen=True)
class Arch:
    """Limits per SM and clocks per warp instruction (of one of the 4 schedulers)."""
    registers: int
    shared: int        # bytes; a block reserves 1 KiB of them for the system
    warps: int
    blocks: int
    hmma: int          # clocks of an m16n8k16 with 16-bit operands
    fp32: int          # FFMA, FADD, FMUL


# CUDA programming guide, technical specifications per compute capability.
ARCHS = {
    "sm_80": Arch(65536, 164 * 1024, 64, 32, hmma=8, fp32=2),
    "sm_90": Arch(65536, 228 * 1024, 64, 32, hmma=4, fp32=1),
}
SYSTEM_SHARED = 1024
PIPES = ("tensor", "fma", "alu", "mufu", "lsu", "uniform", "control")

FMA = {"FFMA", "FADD", "FMUL", "FFMA32I", "FMUL32I", "FADD32I"}
FMA_INT = {"IMAD"}  # the multiplier of the fma pipe, 64 lanes; also moves and adds in disguise
CONTROL = {"BRA", "BRX", "EXIT", "RET", "CALL", "BAR", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "NOP",
           "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "YIELD", "NANOSLEEP", "BMOV", "KILL", "S2R",
           "S2UR", "CS2R", "VOTE", "WARPGROUP", "SYNCS", "CCTL", "FENCE", "ENDCOLLECTIVE"}
MEMORY = {"LDS", "STS", "LDSM", "STSM", "LDG", "STG", "LDL", "STL", "LDGSTS", "RED", "REDG", "ATOM",
          "ATOMG", "ATOMS", "SHFL", "LD", "ST", "LDC"}


def base_arch(name):
    """sm_90a has the limits of sm_90."""
    return name.rstrip("af")


@dataclasses.dataclass
class Instruction:
    address: int
    guard: str      # "@!P0" or ""
    opcode: str     # with modifiers
    operands: str

    @property
    def name(self):
        return self.opcode.split(".")[0]

    def pipe(self):
        name = self.name
        if self.guard == "@!PT":
            return "control"  # never done; ptxas puts such loads before LDGSTS
        if name in ("HMMA", "IMMA", "DMMA", "HGMMA"):
            return "tensor"
        if name in FMA or name in FMA_INT:
            return "fma"
        if name == "MUFU":
            return "mufu"
        if name in MEMORY:
            return "lsu"
        if name in CONTROL:
            return "control"
        if name.startswith("U") or name in ("R2UR", "LDCU"):
            return "uniform"
        return "alu"

    def clocks(self, arch):
        """Of its pipe, seen by one of the four schedulers."""
        name, pipe = self.name, self.pipe()
        if pipe == "tensor":
            return arch.hmma // 2 if ".1688." in self.opcode else arch.hmma
        if pipe == "fma":
            return 2 if name in FMA_INT else arch.fp32
        if pipe == "mufu":
            return 8
        if pipe == "alu":
            return 2
        if pipe == "lsu":
            return 4 * self.shared_clocks()
        return 1

    def shared_clocks(self):
        """Clocks of the SM's one memory pipe, without bank conflicts."""
        if self.name in ("LDSM", "STSM"):
            return int(self.opcode.rsplit(".", 1)[1]) if self.opcode[-1] in "24" else 1
        for width, clocks in ((".128", 4), (".64", 2)):
            if width in self.opcode:
                return clocks
        return 1

    def target(self):
        found = re.findall(r"\b0x([0-9a-f]+)\b", self.operands)
        return int(found[-1], 16) if found else None


@dataclasses.dataclass
class Kernel:
    name: str        # mangled
    arch: str
    code: list
    registers: int = 0
    stack: int = 0
    shared: int = 0  # static bytes
    threads: int = 0


_CODE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_ARCH = re.compile(r"^arch = (sm_\w+)")
_USAGE = re.compile(r"^\s*Function (\S+):")


def parse_sass(text):
    """Kernels of `cuobjdump -sass`."""
    kernels, arch = [], None
    for line in text.splitlines():
        if m := _ARCH.match(line):
            arch = m[1]
        elif m := _FUNCTION.match(line):
            kernels.append(Kernel(m[1], arch, []))
        elif kernels and (m := _CODE.match(line)):
            kernels[-1].code.append(
                Instruction(int(m[1], 16), (m[2] or "").strip(), m[3], m[4].strip()))
    return kernels


def parse_usage(text):
    """{(arch, function): {"REG": n, "STACK": n, "SHARED": n, ...}} of `cuobjdump -res-usage`."""
    usage, arch, function = {}, None, None
    for line in text.splitlines():
        if m := _ARCH.match(line):
            arch = m[1]
        elif m := _USAGE.match(line):
            function = m[1]
        elif function and "REG:" in line:
            usage[arch, function] = {k: int(v) for k, v in re.findall(r"([A-Z]+):(\d+)", line)}
            function = None
    return usage


def parse_threads(text):
    """{(arch, function): threads of a block by its launch bounds} of `cuobjdump -elf`."""
    threads, arch, function, wanted = {}, None, None, False
    for line in text.splitlines():
        if m := _ARCH.match(line):
            arch = m[1]
        elif m := re.match(r"^\.nv\.info\.(\S+)$", line):
            function = m[1]
        elif "EIATTR_" in line:
            wanted = "EIATTR_MAX_THREADS" in line
        elif wanted and (m := re.search(r"Value:\s+(.*)", line)):
            x, y, z = (int(n, 16) for n in m[1].split()[:3])
            threads[arch, function] = x * y * z
    return threads


# --- control flow -------------------------------------------------------------------------------


class Flow:
    """Basic blocks of a kernel, its natural loops, and paths through them."""

    def __init__(self, code):
        self.code = code
        self.at = {i.address: n for n, i in enumerate(code)}
        self._split()
        self._dominate()
        self._find_loops()

    def _next(self, n):
        """Indices that may follow instruction n."""
        i = self.code[n]
        after = [n + 1] if n + 1 < len(self.code) else []
        conditional = i.guard != "" or re.search(r"\bU?P\d\b", i.operands)
        if i.name == "BRA":
            if ".DIV" in i.opcode:
                return after  # lanes that are apart meet elsewhere; warps here are whole
            to = [self.at[i.target()]] if i.target() in self.at else []
            return to + after if conditional else to
        if i.name == "BSYNC":
            to = self.meeting.get(n)
            return [to] if to is not None else after
        if i.name in ("EXIT", "RET", "BRX", "KILL"):
            return after if i.guard else []
        return after

    def _split(self):
        self.meeting, waiting = {}, {}
        for n, i in enumerate(self.code):
            if i.name == "BSSY":
                waiting[i.operands.split(",")[0]] = self.at.get(i.target())
            elif i.name == "BSYNC":
                self.meeting[n] = waiting.get(i.operands.strip())
        starts = {0}
        for n, i in enumerate(self.code):
            if i.name in ("BRA", "BSYNC", "EXIT", "RET", "BRX", "KILL"):
                starts.update(self._next(n))
                starts.add(n + 1)
        starts = sorted(s for s in starts if s < len(self.code))
        self.blocks = [range(a, b) for a, b in zip(starts, starts[1:] + [len(self.code)])]
        number = {b.start: k for k, b in enumerate(self.blocks)}
        self.follow = [[number[n] for n in self._next(b.stop - 1)] for b in self.blocks]

    def _dominate(self):
        order, seen, stack = [], {0}, [(0, iter(self.follow[0]))]
        while stack:
            block, children = stack[-1]
            for child in children:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(self.follow[child])))
                    break
            else:
                order.append(block)
                stack.pop()
        self.order = order[::-1]  # reverse postorder
        before = {b: [] for b in self.order}
        for b in self.order:
            for f in self.follow[b]:
                before[f].append(b)
        self.before = before
        everything = set(self.order)
        self.dominators = {b: everything for b in self.order}
        self.dominators[0] = {0}
        changed = True
        while changed:
            changed = False
            for b in self.order[1:]:
                new = set.intersection(*(self.dominators[p] for p in before[b])) | {b}
                if new != self.dominators[b]:
                    self.dominators[b], changed = new, True

    def _find_loops(self):
        self.loops = {}  # header -> blocks
        for b in self.order:
            for header in self.follow[b]:
                if header not in self.dominators[b]:
                    continue
                body, stack = {header}, [b]
                while stack:
                    n = stack.pop()
                    if n not in body:
                        body.add(n)
                        stack.extend(self.before[n])
                self.loops.setdefault(header, set()).update(body)

    def count(self, blocks, name):
        return sum(self.code[n].name == name for b in blocks for n in self.blocks[b])

    def main_loop(self):
        """Header of the smallest loop with more than half of the kernel's HMMA, or None."""
        total = self.count(self.order, "HMMA")
        holding = [h for h, body in self.loops.items() if 2 * self.count(body, "HMMA") > total > 0]
        return min(holding, key=lambda h: len(self.loops[h]), default=None)

    def path(self, header, value):
        """Instructions of the pass through a loop with the largest sum of value(instruction), a
        tuple; and the loops inside that it enters, whose instructions count once."""
        body = self.loops[header]
        best = {}
        for b in self.order:
            if b not in body:
                continue
            # Edges backwards in reverse postorder close loops.
            into = [best[p] for p in self.before[b] if p in best and b != header]
            if b != header and not into:
                continue
            own = [value(self.code[n]) for n in self.blocks[b]]
            score, way = max(into, default=(None, ()), key=lambda x: x[0])
            own = own + ([score] if score is not None else [])
            best[b] = (tuple(map(sum, zip(*own))), way + (b,))
        ends = [best[b] for b in body if b in best and header in self.follow[b]]
        _, way = max(ends, key=lambda x: x[0])
        inner = [h for h in self.loops if h != header and h in way]
        return [self.code[n] for b in way for n in self.blocks[b]], inner


# --- bounds -------------------------------------------------------------------------------------


def without_masks(i):
    return (i.name == "HMMA", i.name == "MUFU", i.pipe() == "lsu", -1)


def every_branch(i):
    return (i.name == "HMMA", 1 if i.name != "MUFU" else 8)


def bounds(code, arch):
    """Of one pass: instructions and clocks per pipe, and both bounds."""
    count = dict.fromkeys(PIPES, 0)
    clocks = dict.fromkeys(PIPES, 0)
    for i in code:
        count[i.pipe()] += 1
        clocks[i.pipe()] += i.clocks(arch)
    busy = {p: clocks[p] for p in PIPES if p not in ("uniform", "control")} | {"issue": len(code)}
    tensor = clocks["tensor"]
    other = sum(8 if i.name == "MUFU" else 1 for i in code if i.pipe() != "tensor")
    busiest = max(busy, key=busy.get)
    return {"instructions": count, "clocks": clocks, "issue": len(code), "other_slots": other,
            "busiest": busiest, "overlapped": tensor / busy[busiest],
            "serial": tensor / (tensor + other)}


def analyse(kernel):
    """Report of the main loop, or None for kernels without tensor cores in a loop."""
    if not any(i.name == "HMMA" for i in kernel.code):
        return None
    flow = Flow(kernel.code)
    header = flow.main_loop()
    if header is None:
        return None
    arch = ARCHS[base_arch(kernel.arch)]
    fast, inner = flow.path(header, without_masks)
    slow, _ = flow.path(header, every_branch)
    opcodes = {}
    for i in fast:
        opcodes[i.opcode] = opcodes.get(i.opcode, 0) + 1
    body = [flow.code[n] for b in flow.loops[header] for n in flow.blocks[b]]
    return {
        **bounds(fast, arch),
        "serial_every_branch": bounds(slow, arch)["serial"],
        "hmma": sum(i.name == "HMMA" for i in fast),
        "inner_loops": len(inner),
        "calls": sum(i.name == "CALL" and not i.guard for i in fast),
        "spills": spills(body),
        "opcodes": dict(sorted(opcodes.items(), key=lambda x: -x[1])),
    }


def spills(code):
    """Loads and stores of local memory."""
    return sum(i.name in ("LDL", "STL") for i in code)


def occupancy(arch, registers, shared, threads):
    """Blocks and warps per SM."""
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256  # allocated in steps of 256
    limits = {
        "registers": arch.registers // 4 // per_warp * 4 // warps,
        "shared": arch.shared // (-(-shared // 128) * 128 + SYSTEM_SHARED),
        "warps": arch.warps // warps,
        "blocks": arch.blocks,
    }
    by = min(limits, key=limits.get)
    blocks = limits[by]
    return {"blocks": blocks, "warps": blocks * warps, "share": blocks * warps / arch.warps,
            "by": by}
