#!/usr/bin/env python3
"""test/gpu/test_machine_code.py: what runs on a multiprocessor at once, and whether enough of it is in flight."""
import sys
import unittest

from common import ROOT  # beside this file

sys.path.insert(0, str(ROOT / "test" / "gpu"))
import test_machine_code as machine_code  # noqa: E402

# One load, and its use: bytes in flight depend on the warps alone.
LINES = [("LDG.E.128", " R4, desc[UR4][R2.64]"), ("FADD", " R8, R4, R5")]
LAUNCH = machine_code.Launch("a kernel", r"\ba_kernel<", 128, loads=1)


def kernel(registers, shared=0):
    return machine_code.Kernel(lines=LINES, registers=registers, shared=shared)


def blocks(architectures, *arguments):
    return [machine_code.blocks_of_sm(*arguments, architecture) for architecture in architectures]


class Occupancy(unittest.TestCase):
    def test_what_runs_out_first_limits_the_blocks(self):
        every = [80, 86, 89, 90, 100, 120]
        self.assertEqual(list(machine_code.SM), every)
        self.assertEqual(blocks(every, kernel(32), 256, 0), [8, 6, 6, 8, 8, 6])  # threads
        self.assertEqual(blocks(every, kernel(16), 32, 0), [32, 16, 24, 32, 32, 24])  # blocks
        self.assertEqual(blocks(every, kernel(80), 96, 0), [8] * 6)  # registers: 6 warps in each of four parts
        self.assertEqual(blocks(every, kernel(54), 512, 100512), [1, 1, 1, 2, 2, 1])  # shared memory
        most = 99 * 1024
        self.assertEqual(blocks([86, 89, 120], kernel(54), 512, most), [1, 1, 1])
        self.assertEqual(blocks([86, 89, 120], kernel(54, shared=16), 512, most), [0, 0, 0])

    def test_a_gpu_runs_the_newest_code_of_its_generation(self):
        self.assertEqual(machine_code.code_for(86, [75, 80, 90, 120]), 80)
        self.assertEqual(machine_code.code_for(89, [80, 86, 89]), 89)
        self.assertIsNone(machine_code.code_for(80, [75, 86]))
        self.assertIsNone(machine_code.code_for(120, [80, 90, 100]))

    def judged(self, registers, launch=LAUNCH):
        """The architectures on which a kernel of so many registers is faulty, and why."""
        kernels = {"void a_kernel<8>(float*)": kernel(registers)}
        found = {sm: machine_code.occupancy(launch, kernels, sm) for sm in machine_code.SM}
        return {sm: fault for sm, of_sm in found.items() if (fault := machine_code.fault_of(of_sm, sm))}

    def test_memory_that_is_faster_for_an_sm_needs_more_in_flight(self):
        self.assertEqual(self.judged(32), {})
        little = "too little is in flight"  # 8 warps have 4 KiB
        self.assertEqual(self.judged(255), {80: little, 86: little, 90: little, 100: little, 120: little})

    def test_missing_loads_warps_and_blocks_are_faults(self):
        def faults(**wanted):
            launch = machine_code.Launch("a kernel", r"\ba_kernel<", **({"block": 128} | wanted))
            return set(self.judged(255, launch).values())

        self.assertEqual(faults(loads=2), {"expected 2 loads"})
        self.assertEqual(faults(warps=8), set())
        self.assertEqual(faults(warps=12), {"expected 12 warps"})
        self.assertEqual(faults(block=512), {"no block fits on an SM"})
        self.assertEqual(faults(loads=1, whole=True, shared=30000, grid=3), {"registers leave room for fewer than 3 blocks"})

    def test_a_kernel_that_is_not_there_is_a_fault(self):
        fault = machine_code.occupancy(LAUNCH, {}, 90)
        self.assertEqual(fault, r"0 kernels are called \ba_kernel<; expected 1")


if __name__ == "__main__":
    unittest.main()
