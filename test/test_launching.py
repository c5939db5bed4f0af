#!/usr/bin/env python3
"""scripts/run_multi_gpu.sh and the jobs in scripts/slurm/ start, signal and end their processes correctly.

The training program, nvidia-smi, mpirun, srun and scontrol are simulated: nothing here needs a GPU, MPI or SLURM.
"""
import os
import signal
import subprocess
import time
import unittest

from common import ROOT, FolderTest  # beside this file

RUN = ROOT / "scripts" / "run_multi_gpu.sh"

# Writes its arguments and environment, then acts as FAKE_rank, or FAKE, requests. A process that got SIGUSR1 ends like
# train_gpt2, with 0.
PROGRAM = """#!/bin/bash
rank=${RANK:-${SLURM_PROCID:-none}}
trap 'touch "$FOLDER/usr1.$rank"; exit 0' USR1
echo "$rank ${WORLD_SIZE:-} ${LOCAL_RANK:-} ${LOCAL_WORLD_SIZE:-} ${MASTER_ADDR:-} ${MASTER_PORT:-}" >"$FOLDER/env.$rank"
printf '%s\\n' "$@" >"$FOLDER/args.$rank"
echo $$ >"$FOLDER/pid.$rank"
do=FAKE_$rank
case "${!do:-${FAKE:-}}" in
    fail) sleep 0.2; exit 3 ;;
    killed) sleep 0.2; kill -KILL $$ ;;
    wait) for ((i = 0; i < 600; i++)); do sleep 0.1; done ;;
    stubborn) trap '' TERM; for ((i = 0; i < 600; i++)); do sleep 0.1; done ;;
esac
"""


class Launching(FolderTest):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.fake("bin/program", PROGRAM)
        self.fake("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "FOLDER": str(self.folder), "TRAIN_PROGRAM": str(self.bin / "program")}
        for name in ("CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"):
            self.environment.pop(name, None)

    def fake_gpus(self, count):
        self.fake("bin/nvidia-smi", "#!/bin/sh\n" + "echo '81920, NVIDIA H100 80GB HBM3'\n" * count)

    def run_script(self, *arguments, **environment):
        command = [RUN, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env={**self.environment, **environment}, timeout=60)

    def start(self, command, **environment):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**self.environment, **environment})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def read(self, name):
        return (self.folder / name).read_text()

    def wait_for(self, *names):
        end = time.monotonic() + 30
        while not all((self.folder / name).exists() and self.read(name) for name in names):
            self.assertLess(time.monotonic(), end, f"no {names}")
            time.sleep(0.02)

    def test_every_process_learns_its_place_and_gets_all_options(self):
        self.fake_gpus(3)
        result = self.run_script("--launcher", "environment", "--model", "d12", "--train-data", "a b_*.bin")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        ports = set()
        for rank in range(3):
            *place, port = self.read(f"env.{rank}").split()
            self.assertEqual(place, [str(rank), "3", str(rank), "3", "127.0.0.1"])
            ports.add(int(port))
            self.assertEqual(self.read(f"args.{rank}").splitlines(), ["--model", "d12", "--train-data", "a b_*.bin"])
        self.assertEqual(len(ports), 1)
        self.assertFalse((self.folder / "env.3").exists())

    def test_the_number_of_processes(self):
        self.fake_gpus(8)
        result = self.run_script("--launcher", "environment", CUDA_VISIBLE_DEVICES="4,5")
        self.assertEqual((result.returncode, self.read("env.1").split()[1]), (0, "2"))
        result = self.run_script("--processes", 4, "--launcher", "environment")
        self.assertEqual((result.returncode, self.read("env.3").split()[1]), (0, "4"))

    def test_mpirun_is_used_where_it_is(self):
        self.fake_gpus(8)
        self.fake("bin/mpirun", '#!/bin/sh\nprintf "%s\\n" "$@" >"$FOLDER/mpirun"; echo "$OMPI_ALLOW_RUN_AS_ROOT" >"$FOLDER/root"; exit 5\n')
        result = self.run_script("--zero", 1)
        self.assertEqual(result.returncode, 5)
        self.assertEqual(self.read("mpirun").split(), ["-np", "8", "--bind-to", "none", str(self.bin / "program"), "--zero", "1"])
        self.assertEqual(self.read("root").strip(), "1" if os.getuid() == 0 else "")

    def test_one_failure_ends_all(self):
        for how, code in (("fail", 3), ("killed", 137)):
            with self.subTest(how=how):
                start = time.monotonic()
                result = self.run_script("--processes", 4, "--launcher", "environment", FAKE="wait", FAKE_2=how, FAKE_3="stubborn")
                self.assertLess(time.monotonic() - start, 20)
                self.assertEqual(result.returncode, code)
                self.assertIn(f"run_multi_gpu: process 2 ended with exit code {code}; the others are ended too\n", result.stderr)
                for rank in range(4):
                    self.assertRaises(ProcessLookupError, os.kill, int(self.read(f"pid.{rank}")), 0)

    def test_signals_reach_every_process(self):
        process = self.start([RUN, "--processes", 3, "--launcher", "environment"], FAKE="wait")
        self.wait_for("env.0", "env.1", "env.2")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertTrue(all((self.folder / f"usr1.{rank}").exists() for rank in range(3)))

    def test_mpirun_is_given_time_for_a_checkpoint(self):
        # Like mpirun, it passes SIGUSR1 on, and kills its processes soon after SIGINT or SIGTERM.
        self.fake("bin/mpirun", """#!/bin/bash
trap 'echo USR1 >>"$FOLDER/got"; [ "$FAKE" = slow ] || exit 0' USR1
trap 'echo TERM >>"$FOLDER/got"; exit 7' TERM
trap 'echo INT >>"$FOLDER/got"; exit 8' INT
touch "$FOLDER/ready"; echo yes >"$FOLDER/ready"
for ((i = 0; i < 600; i++)); do sleep 0.05; done
""")
        for sent, gap, how, got, code in (
            ([signal.SIGINT, signal.SIGINT], 0.01, "fast", "USR1\n", 0),
            ([signal.SIGTERM, signal.SIGINT], 0.3, "slow", "USR1\nUSR1\n", None),
            ([signal.SIGTERM, signal.SIGTERM], 0.3, "slow", "USR1\n", None),
            ([signal.SIGINT, signal.SIGINT], 1.0, "slow", "USR1\nTERM\n", 7),
            ([signal.SIGHUP, signal.SIGUSR1], 0.3, "slow", "USR1\nUSR1\n", None),
        ):
            with self.subTest(sent=sent, gap=gap):
                for name in ("ready", "got"):
                    (self.folder / name).unlink(missing_ok=True)
                process = self.start([RUN, "--processes", 2, "--launcher", "mpirun"], FAKE=how)
                self.wait_for("ready")
                for name in sent:
                    process.send_signal(name)
                    time.sleep(gap)
                if code is not None:
                    self.assertEqual(process.wait(timeout=30), code)
                time.sleep(0.3)
                self.assertEqual(self.read("got"), got)
                process.kill()  # and mpirun, which must not outlive its script, gets SIGTERM
                process.wait()
                time.sleep(0.3)
                self.assertEqual(self.read("got"), got if code is not None else got + "TERM\n")

    def test_wrong_use_is_one_line(self):
        for arguments, expected in (
            (["--processes"], "--processes ; expected a number from 1"),
            (["--processes", "0"], "--processes 0; expected a number from 1"),
            (["--launcher", "ssh"], "--launcher ssh; expected mpirun or environment"),
            ([], "nvidia-smi lists no GPU; to start processes without, give --processes N"),
        ):
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stderr), (2, f"run_multi_gpu: {expected}\n"))
        result = self.run_script("--processes", 2, TRAIN_PROGRAM="/none")
        self.assertEqual((result.returncode, result.stderr), (2, "run_multi_gpu: /none is not built yet; run make gpu first\n"))

    def test_help_needs_no_program(self):
        result = self.run_script("--help", TRAIN_PROGRAM="/none")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("  scripts/run_multi_gpu.sh [--processes N]", result.stdout)

    def start_job(self, job, *arguments, **environment):
        """Starts a job like sbatch: from a copy of the script elsewhere. srun starts two tasks and passes signals on to them."""
        self.fake("bin/scontrol", '#!/bin/sh\necho "$@" >>"$FOLDER/scontrol"\n')
        self.fake("bin/srun", """#!/bin/bash
            options=()
            while [[ $1 == --* ]]; do options+=("$1"); shift; done
            echo "${options[@]}" >"$FOLDER/srun"
            pids=()
            trap 'kill -USR1 "${pids[@]}"' USR1
            for task in 0 1; do SLURM_PROCID=$task "$@" & pids+=($!); done
            status=0
            for pid in "${pids[@]}"; do while kill -0 $pid 2>/dev/null; do wait $pid; done; wait $pid || status=$?; done
            exit $status
            """.replace("\n            ", "\n"))
        copy = self.folder / "slurm_script"
        copy.write_bytes((ROOT / "scripts" / "slurm" / job).read_bytes())
        return self.start(["bash", copy, *arguments], SLURM_SUBMIT_DIR=str(ROOT), SLURM_JOB_ID="77", **environment)

    def test_a_job_that_ends_is_not_queued_again(self):
        for job in ("one_node.sbatch", "many_nodes.sbatch"):
            process = self.start_job(job, "--out", "runs/x", "--zero", "1", SRUN_OPTIONS="--mpi=pmix --label")
            self.assertEqual(process.wait(timeout=30), 0)
            self.assertEqual(self.read("args.1").split(), ["--out", "runs/x", "--zero", "1", "--resume", "auto"])
            self.assertEqual(self.read("srun").split(), ["--kill-on-bad-exit=1", "--mpi=pmix", "--label"])
            self.assertFalse((self.folder / "scontrol").exists())

    def test_the_jobs_folder_may_be_given_in_every_way(self):
        for arguments in (["--out=runs/x"], ["-o", "runs/x"], ["-oruns/x"]):
            process = self.start_job("one_node.sbatch", *arguments)
            self.assertEqual(process.wait(timeout=30), 0)
            self.assertEqual(self.read("args.0").split(), [*arguments, "--resume", "auto"])

    def test_a_job_whose_time_is_up_saves_and_is_queued_again(self):
        process = self.start_job("many_nodes.sbatch", "--out", "runs/x", FAKE="wait")
        self.wait_for("env.0", "env.1")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertTrue((self.folder / "usr1.0").exists() and (self.folder / "usr1.1").exists())
        self.assertEqual(self.read("scontrol"), "requeue 77\n")

    def test_a_job_that_fails_stays_down(self):
        process = self.start_job("one_node.sbatch", "--out", "runs/x", FAKE="fail")
        self.assertEqual(process.wait(timeout=30), 3)
        self.assertFalse((self.folder / "scontrol").exists())
        process = self.start_job("one_node.sbatch", "--model", "d12")
        self.assertEqual(process.wait(timeout=30), 2)
        self.assertIn("--out is missing", process.stderr.read())

    def test_jobs_ask_for_the_warning_that_they_expect(self):
        for job in (ROOT / "scripts" / "slurm").glob("*.sbatch"):
            options = [line.split(None, 1)[1].strip() for line in job.read_text().splitlines() if line.startswith("#SBATCH")]
            for needed in ("--signal=B:USR1@120", "--requeue", "--open-mode=append"):
                self.assertIn(needed, options, job)


if __name__ == "__main__":
    unittest.main()
