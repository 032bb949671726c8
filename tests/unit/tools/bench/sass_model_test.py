#!/usr/bin/env python3
"""Checks tools/bench/sass_model.py against a small kernel written by hand, and occupancy worked out
by hand. Run by ctest, which puts the folder on PYTHONPATH; needs no toolkit."""
import unittest

import sass_model as model

# A loop of 0x20..0xf0 with a masked part (0x80..0x90) that most blocks jump over and one (0xa0..)
# that copies; a loop without tensor cores before it.
LISTING = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

	code for sm_80
		Function : _Z4workv
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;        /* 0x00000a0000017a02 */
                                                                  /* 0x000fc60000000f00 */
        /*0010*/               @P1 BRA 0x0 ;                      /* 0x0000000000007b45 */
        /*0020*/                   LDSM.16.M88.4 R4, [R2+0x40] ;  /* 0x000fe20000000f00 */
        /*0030*/                   LDSM.16.MT88.2 R8, [R2] ;      /* 0x000fe20000000f00 */
        /*0040*/                   HMMA.16816.F32.BF16 R12, R4, R8, R12 ; /* 0x0 */
        /*0050*/                   HMMA.1688.F32 R12, R4, R8, R12 ; /* 0x0 */
        /*0060*/                   ISETP.GE.AND P0, PT, R3, c[0x0][0x2c8], PT ; /* 0x0 */
        /*0070*/              @!P0 BRA 0xa0 ;                     /* 0x0 */
        /*0080*/                   FSEL R12, R12, -INF , P0 ;     /* 0x0 */
        /*0090*/                   FSEL R13, R13, -INF , P0 ;     /* 0x0 */
        /*00a0*/              @!PT LDS RZ, [RZ] ;                 /* 0x0 */
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R9], [R10.64], P0 ; /* 0x0 */
        /*00c0*/                   MUFU.EX2 R12, R12 ;            /* 0x0 */
        /*00d0*/                   FFMA R12, R12, R13, R14 ;      /* 0x0 */
        /*00e0*/                   UIADD3 UR4, UR4, 0x1, URZ ;    /* 0x0 */
        /*00f0*/               @P2 BRA 0x20 ;                     /* 0x0 */
        /*0100*/                   STL [R1], R12 ;                /* 0x0 */
        /*0110*/                   EXIT ;                         /* 0x0 */
		..........
"""

USAGE = """
Fatbin elf code:
================
arch = sm_80
Resource usage:
 Common:
  GLOBAL:0
 Function _Z4workv:
  REG:168 STACK:8 SHARED:16 LOCAL:0 CONSTANT[0]:760 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

INFO = """
arch = sm_80
.nv.info._Z4workv
	<0x6>
	Attribute:	EIATTR_MAXREG_COUNT
	Format:	EIFMT_HVAL
	Value:	0xff
	<0x9>
	Attribute:	EIATTR_MAX_THREADS
	Format:	EIFMT_SVAL
	Value:	0x40 0x2 0x1
"""


class Parser(unittest.TestCase):
    def setUp(self):
        (self.kernel,) = model.parse_sass(LISTING)

    def test_instructions(self):
        self.assertEqual((self.kernel.name, self.kernel.arch), ("_Z4workv", "sm_80"))
        self.assertEqual(len(self.kernel.code), 18)
        jump = self.kernel.code[7]
        self.assertEqual((jump.address, jump.guard, jump.opcode, jump.target()),
                         (0x70, "@!P0", "BRA", 0xa0))

    def test_resources(self):
        usage = model.parse_usage(USAGE)["sm_80", "_Z4workv"]
        self.assertEqual((usage["REG"], usage["STACK"], usage["SHARED"]), (168, 8, 16))
        self.assertEqual(model.parse_threads(INFO), {("sm_80", "_Z4workv"): 128})

    def test_spills_outside_of_the_loop_are_not_the_loops(self):
        self.assertEqual(model.spills(self.kernel.code), 1)
        self.assertEqual(model.analyse(self.kernel)["spills"], 0)


class Loop(unittest.TestCase):
    def setUp(self):
        (kernel,) = model.parse_sass(LISTING)
        self.loop = model.analyse(kernel)

    def test_counts_leave_the_mask_out(self):
        self.assertEqual(self.loop["issue"], 12)
        self.assertEqual(self.loop["instructions"],
                         {"tensor": 2, "fma": 1, "alu": 1, "mufu": 1, "lsu": 3, "uniform": 1,
                          "control": 3})
        self.assertEqual((self.loop["inner_loops"], self.loop["calls"]), (0, 0))

    def test_clocks(self):
        # ldmatrix.x4 and .x2 and a copy of 16 bytes a lane: 4 + 2 + 4 clocks of the SM.
        self.assertEqual(self.loop["clocks"]["lsu"], 4 * (4 + 2 + 4))
        self.assertEqual(self.loop["clocks"]["tensor"], 8 + 4)
        self.assertEqual(self.loop["clocks"]["mufu"], 8)

    def test_bounds(self):
        self.assertEqual(self.loop["busiest"], "lsu")
        self.assertAlmostEqual(self.loop["overlapped"], 12 / 40)
        self.assertEqual(self.loop["other_slots"], 9 + 8)  # 9 instructions and MUFU's 8
        self.assertAlmostEqual(self.loop["serial"], 12 / (12 + 17))
        self.assertAlmostEqual(self.loop["serial_every_branch"], 12 / (12 + 19))

    def test_an_inner_loop_is_reported(self):
        text = LISTING.replace("FFMA R12, R12, R13, R14", "@P3 BRA 0xc0").replace(
            "                   @P3 BRA", "               @P3 BRA")
        (kernel,) = model.parse_sass(text)
        self.assertEqual(model.analyse(kernel)["inner_loops"], 1)

    def test_a_kernel_without_tensor_cores_has_no_main_loop(self):
        (kernel,) = model.parse_sass(LISTING.replace("HMMA", "IMAD"))
        self.assertIsNone(model.analyse(kernel))


class Occupancy(unittest.TestCase):
    def check(self, arch, registers, shared, threads, blocks, by):
        found = model.occupancy(model.ARCHS[arch], registers, shared, threads)
        self.assertEqual((found["blocks"], found["by"]), (blocks, by))

    def test_limits(self):
        self.check("sm_80", 255, 0, 128, 2, "registers")
        self.check("sm_80", 168, 0, 128, 3, "registers")
        self.check("sm_80", 32, 52224, 128, 3, "shared")
        self.check("sm_90", 32, 52224, 128, 4, "shared")
        self.check("sm_80", 16, 0, 1024, 2, "warps")
        self.check("sm_80", 32, 0, 32, 32, "blocks")

    def test_share(self):
        self.assertAlmostEqual(
            model.occupancy(model.ARCHS["sm_80"], 128, 0, 256)["share"], 16 / 64)


if __name__ == "__main__":
    unittest.main()
