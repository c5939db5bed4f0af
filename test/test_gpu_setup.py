#!/usr/bin/env python3
"""make gpu looks at a machine before it compiles: packages, CUDA, driver, libraries, and the GPUs that the code is for.

nvcc, nvidia-smi and apt are imitated, so this needs none of them.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from common import ROOT, FolderTest  # beside this file

# Names in the package lists of Ubuntu (main and universe) on 25 November 2026; Debian 12 has those of 24.04.
UBUNTU_22 = set("""build-essential ccache clang cmake libbenchmark-dev libboost-context-dev libcli11-dev libdnnl-dev libedit-dev libfmt-dev
    libgtest-dev liblz4-dev libopenmpi-dev libutf8proc-dev libxxhash-dev libzstd-dev ninja-build nlohmann-json3-dev openmpi-bin pkg-config
    python3 python3-matplotlib python3-numpy python3-venv""".split())  # fmt: skip
UBUNTU_24 = UBUNTU_22 | {"libclang-rt-dev"}
NVCC_13 = "75 80 86 87 88 89 90 100 103 110 120 121".split()
NVCC_12_4 = "50 52 53 60 61 62 70 72 75 80 86 87 89 90".split()


class GpuSetup(FolderTest):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "cuda" / "bin"
        self.bin.mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"}
        self.environment["PATH"] = f"{self.bin}:{os.environ['PATH']}"

    def program(self, name, script):
        self.fake(f"cuda/bin/{name}", f"#!/bin/sh\n{script}\n")

    def nvcc(self, version, architectures):
        listed = " ".join(f"sm_{number}" for number in architectures)
        self.program("nvcc", f'case "$1" in --version) echo "Cuda compilation tools, release {version}, V{version}.1";; *) printf "%s\\n" {listed};; esac')

    def gpus(self, *capabilities, driver="13.1"):
        lines = " ".join(capabilities) or "''"
        self.program("nvidia-smi", f'case "$1" in --query-gpu=compute_cap) printf "%s\\n" {lines};; *) echo "| Driver Version: 1  CUDA Version: {driver} |";; esac')

    def run_program(self, *command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=self.environment, timeout=60)

    def architectures(self, *options):
        script = self.folder / "print.cmake"
        script.write_text(f'include("{ROOT}/cmake/gpu/architectures.cmake")\nmessage("${{CMAKE_CUDA_ARCHITECTURES}} | ${{FLATGPT_TEST_ARCHITECTURES}}")\n')
        result = self.run_program("cmake", f"-DCMAKE_CUDA_COMPILER={self.bin}/nvcc", *options, "-P", script)
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    def test_the_code_is_for_the_gpus_of_the_machine(self):
        self.nvcc("13.0", NVCC_13)
        for capabilities, expected in (
            (["9.0"], "90a-real"),
            (["8.6", "8.9", "8.6"], "86-real;89-real"),
            (["12.0"], "120-real"),
            (["12.4", "12.1"], "121-real"),  # the newest code of the same major number
            (["8.9", "6.1"], "89-real"),
        ):
            self.gpus(*capabilities)
            code, output = self.architectures()
            self.assertEqual(code, 0)
            self.assertTrue(output.endswith(f"{expected} | {expected}"), output)
            self.assertEqual("6.1: left out" in output, "6.1" in capabilities)
        self.assertEqual(self.architectures("-DCMAKE_CUDA_ARCHITECTURES=80"), (0, "80 | 80"))

    def test_a_gpu_that_nvcc_does_not_know_is_refused(self):
        for version, known, capability in (("13.0", NVCC_13, "7.0"), ("12.4", NVCC_12_4, "12.0"), ("12.4", NVCC_12_4, "10.0")):
            self.nvcc(version, known)
            self.gpus(capability)
            code, errors = self.architectures()
            self.assertNotEqual(code, 0)
            self.assertIn(f"nvcc of CUDA {version} makes no code for this machine's GPU of compute capability {capability}; expected a newer", errors)

    def test_without_a_gpu_the_code_is_for_every_generation(self):
        self.gpus()
        self.nvcc("13.0", NVCC_13)
        self.assertEqual(self.architectures(), (0, "75-real;80-real;90a-real;100-real;120-real;120-virtual | 80;90a-real"))
        self.program("nvidia-smi", 'echo "NVIDIA-SMI has failed"; exit 9')
        self.nvcc("12.4", NVCC_12_4)
        code, output = self.architectures()
        self.assertEqual(code, 0)
        self.assertTrue(output.endswith("75-real;80-real;90a-real;90-virtual | 80;90a-real"), output)

    def test_the_driver_is_compared_before_anything_is_compiled(self):
        (self.folder / "cuda/include").mkdir()
        (self.folder / "cuda/include/cublasLt.h").touch()
        self.nvcc("12.8", NVCC_13)
        old = (
            "make gpu: NVIDIA's driver runs programs of CUDA 11.8 and older, not of CUDA 12.8; update the driver, or use CUDA 11\n"
        )
        minor = "make gpu: NVIDIA's driver is for CUDA 12.4, the programs were built with CUDA 12.8; that works for GPUs whose code they contain\n"
        for driver, code, errors in (("11.8", 1, old), ("12.4", 0, minor), ("12.8", 0, ""), ("13.0", 0, "")):
            self.gpus("9.0", driver=driver)
            result = self.run_program(ROOT / "scripts/check_cuda.sh", "gpu")
            self.assertEqual((result.returncode, result.stderr), (code, errors))
            # These are built for other machines, or for the software GPU.
            self.assertEqual(self.run_program(ROOT / "scripts/check_cuda.sh", "gpu-bundle").returncode, 0)
        self.program("nvidia-smi", "exit 9")
        self.assertEqual(self.run_program(ROOT / "scripts/check_cuda.sh").returncode, 0)

    def test_cuda_home_chooses_between_several_toolkits(self):
        other = self.folder / "cuda-12.9"
        self.nvcc("12.9", NVCC_13)
        self.gpus("9.0", driver="12.9")
        (self.folder / "cuda").rename(other)
        (other / "include").mkdir()
        (other / "include/cublasLt.h").touch()
        self.bin.mkdir(parents=True)
        self.nvcc("13.0", NVCC_13)
        self.environment["PATH"] = f"{self.bin}:{other}/bin:{os.environ['PATH']}"
        self.environment["CUDA_HOME"] = str(other)
        result = self.run_program(ROOT / "scripts/check_cuda.sh", "gpu")  # the driver would be too old for 13.0
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # A build folder keeps the compiler that it was configured with.
        build = self.folder / "build"
        build.mkdir()
        self.program("cmake", 'echo "cmake $@"')
        for nvcc, anew in ((self.bin / "nvcc", True), (other / "bin/nvcc", False)):
            (build / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\nCMAKE_CUDA_COMPILER:FILEPATH={nvcc}\n")
            result = self.run_program(ROOT / "scripts/configure.sh", "cuda", "-B", build)
            self.assertEqual(f"{build} was configured for {nvcc}; it is configured anew" in result.stdout, anew, result.stdout)

    def test_no_list_leaves_its_type_to_a_newer_nvcc(self):
        # nvcc before 12.9 does not compile: for (const auto& [a, b] : {std::pair{1, 2}, {3, 4}}). It deduces the list only if each element has a type.
        def untyped(text):
            for loop in re.finditer(r"\bfor \([^;{}]*:\s*(?={)", text):
                depth = 0
                for at, character in enumerate(text[loop.end() :], loop.end()):
                    if character == "{" and depth == 1 and text[:at].rstrip()[-1] in "{,":
                        yield text[loop.start() : at + 20]
                    depth += (character == "{") - (character == "}")
                    if depth == 0:
                        break

        self.assertTrue(list(untyped("for (const auto& [a, b] :\n {std::pair{f(1), 2}, {3, 4}}) {")))
        self.assertFalse(list(untyped("for (const auto& [a, b] : {std::pair{1, g({2})}, std::pair{3, 4}}) { call({1}); }")))
        for path in sorted(ROOT.rglob("*")):
            if path.suffix in (".cu", ".cuh", ".h") and path.relative_to(ROOT).parts[0] not in ("build", "runs"):
                self.assertEqual(list(untyped(path.read_text())), [], path)

    def test_a_folder_that_cannot_be_read_does_not_hide_cublas(self):
        self.nvcc("12.8", NVCC_13)
        self.gpus("9.0")
        self.program("find", f'/usr/bin/find "$@"; echo "find: {self.folder}/root: Permission denied" >&2; exit 1')
        (self.folder / "cuda/include").mkdir()
        (self.folder / "cuda/include/cublasLt.h").touch()
        self.assertEqual(self.run_program(ROOT / "scripts/check_cuda.sh").returncode, 0)

    def library(self, prefix, header, lines, library, code=""):
        """A library in a folder: its header, with #define lines, and its file, with this C code."""
        for folder, name, text in (("include", header, lines), ("lib", library, "")):
            (prefix / folder).mkdir(parents=True, exist_ok=True)
            (prefix / folder / name).write_text(text)
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", prefix / "lib" / library], input=code, text=True, check=True, timeout=60)

    def cudnn(self, prefix, library, cuda, patch=0):
        lines = f"#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL {patch}\n"
        self.library(prefix, "cudnn_version.h", lines, library, f"unsigned long cudnnGetCudartVersion(void) {{ return {cuda}000; }}")

    def found(self):
        """The libraries that the build finds for CUDA 13 where nothing is installed but what the test has put into self.python and self.system."""
        (self.folder / "CMakeLists.txt").write_text(f"""cmake_minimum_required(VERSION 3.22)
            project(found NONE)
            set(CMAKE_SYSTEM_PREFIX_PATH {self.system})
            set(CUDAToolkit_VERSION_MAJOR 13)
            set(FLATGPT_NCCL ON)
            set(FLATGPT_CUDNN ON)
            add_library(CUDA::nvrtc INTERFACE IMPORTED)
            foreach(command add_library target_include_directories target_compile_definitions target_link_libraries)
                function(${{command}})
                endfunction()
            endforeach()
            foreach(part python_packages nccl cudnn)
                include({ROOT}/cmake/gpu/${{part}}.cmake)
            endforeach()
            message("NCCL ${{NCCL_INCLUDE}} ${{NCCL}}")
            if(NOT FLATGPT_NCCL)
                message("${{without_nccl}}")
            endif()
            message("cuDNN ${{CUDNN_INCLUDE}} ${{CUDNN}}: ${{cudnn}}")
        """)
        shutil.rmtree(self.folder / "found", ignore_errors=True)
        result = self.run_program("cmake", "-S", self.folder, "-B", self.folder / "found")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr.replace(f"{self.python}/nvidia", "PYTHON").replace(str(self.system), "SYSTEM").splitlines()

    def empty_machine(self):
        self.system = self.folder / "system"
        venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
        self.python = next(venv.glob("lib/python3*/site-packages"))
        for name in ("NCCL_ROOT", "NCCL_HOME", "CUDNN_ROOT", "CUDNN_FRONTEND_ROOT"):
            self.environment.pop(name, None)
        self.environment |= {"PATH": f"{venv}/bin:{self.environment['PATH']}", "PYTHONUSERBASE": str(self.folder / "user")}
        (self.python / "include").mkdir()
        (self.python / "include/cudnn_frontend_version.h").write_text("#define CUDNN_FRONTEND_MAJOR_VERSION 1\n#define CUDNN_FRONTEND_MINOR_VERSION 32\n")

    def test_nccl_and_cudnn_are_found_where_pytorch_has_them(self):
        self.empty_machine()
        nothing, no_cudnn = self.found()
        self.assertEqual(nothing, "NCCL NCCL_INCLUDE-NOTFOUND NCCL-NOTFOUND")
        self.assertIn("without cuDNN (libcudnn9-dev-cuda-13, CUDNN_ROOT, or pip install nvidia-cudnn-cu13)", no_cudnn)
        self.library(self.python / "nvidia/nccl", "nccl.h", "", "libnccl.so.2")
        self.cudnn(self.python / "nvidia/cudnn", "libcudnn.so.9", 13)
        in_python = [
            "NCCL PYTHON/nccl/include PYTHON/nccl/lib/libnccl.so.2",
            "cuDNN PYTHON/cudnn/include PYTHON/cudnn/lib/libcudnn.so.9: bf16 attention by cuDNN 9.19.0 (frontend 1.32)",
        ]
        self.assertEqual(self.found(), in_python)
        # Header and library are of one version, although the system's libraries have the name that is looked for first.
        self.library(self.system, "nccl.h", "", "libnccl.so")
        self.cudnn(self.system, "libcudnn.so", 13, patch=1)
        self.assertEqual(self.found(), in_python)
        for package in ("nccl", "cudnn"):
            shutil.rmtree(self.python / "nvidia" / package)
        self.assertEqual(self.found(), [
            "NCCL SYSTEM/include SYSTEM/lib/libnccl.so",
            "cuDNN SYSTEM/include SYSTEM/lib/libcudnn.so: bf16 attention by cuDNN 9.19.1 (frontend 1.32)",
        ])  # fmt: skip

    def test_cudnn_for_another_cuda_is_refused(self):
        self.empty_machine()
        self.cudnn(self.python / "nvidia/cudnn", "libcudnn.so.9", 12)
        self.assertIn("by our own kernel: PYTHON/cudnn/lib/libcudnn.so.9 is for CUDA 12, not 13 (libcudnn9-dev-cuda-13, or CUDNN_ROOT)", self.found()[1])

    def test_nccl_for_another_cuda_is_refused(self):
        self.empty_machine()
        for cuda, said in ((13, []), (12, ["one GPU only: PYTHON/nccl/lib/libnccl.so.2 is for CUDA 12, not 13 "
                                           "(libnccl-dev, NCCL_HOME, or pip install nvidia-nccl-cu13)"])):  # fmt: skip
            self.library(self.python / "nvidia/nccl", "nccl.h", "", "libnccl.so.2", f'const char* text = "NCCL version 2.28.9+cuda{cuda}.0";')
            self.assertEqual(self.found()[1:-1], said)
            shutil.rmtree(self.python / "nvidia/nccl")

    def test_make_gpu_builds_the_programs_and_no_test(self):
        for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARCHITECTURES"):
            self.environment.pop(name, None)
        printed = self.run_program("make", "-n", "-C", ROOT, "gpu").stdout
        self.assertEqual([line for line in printed.splitlines() if line.startswith("cmake --build")],
                         ["cmake --build --preset cuda --target train_gpt2cu evaluate_gpt2cu generate_gpt2cu tokenize convert"])  # fmt: skip

    def installed(self, known, *arguments):
        """The packages that setup.sh installs where nothing is installed and apt knows these packages once its lists are updated."""
        for name in ("updated", "installed"):
            (self.folder / name).unlink(missing_ok=True)
        self.program("dpkg-query", "exit 1")
        self.program("id", "echo 0")
        self.program("apt-cache", f'[ -e {self.folder}/updated ] && case " {" ".join(sorted(known))} " in *" $2 "*) exit 0;; esac; exit 100')
        self.program("apt-get", f'if [ "$1" = update ]; then touch {self.folder}/updated; else printf "%s\\n" "$@" >{self.folder}/installed; fi')
        result = self.run_program(ROOT / "scripts/setup.sh", *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return {word for word in (self.folder / "installed").read_text().split() if word != "install" and not word.startswith("-")}

    def test_every_package_is_one_that_the_distribution_has(self):
        for known in (UBUNTU_22, UBUNTU_24):
            self.assertEqual(self.installed(known), known)
            for package in self.installed(known, "gpu"):
                self.assertIn(package, known)

    def test_the_gpu_programs_need_no_packages_of_the_cpus(self):
        packages = self.installed(UBUNTU_24, "gpu")
        self.assertTrue({"build-essential", "cmake", "libfmt-dev", "libopenmpi-dev"} <= packages)
        self.assertFalse(packages & {"clang", "libclang-rt-dev", "libboost-context-dev", "libdnnl-dev", "python3-matplotlib", "libgtest-dev"})

    def test_a_user_who_may_not_install_gets_both_commands(self):
        self.program("dpkg-query", "exit 1")
        self.program("id", "echo 1000")
        self.program("sudo", "exit 1")
        self.environment["MAKE_TARGET"] = "gpu"
        result = self.run_program(ROOT / "scripts/setup.sh", "gpu")
        self.assertEqual(result.returncode, 1)
        self.assertIn("please run: sudo apt-get install -y --no-install-recommends build-essential cmake", result.stderr)
        self.assertIn("FLATGPT_FETCH=ON make gpu\n", result.stderr)

    def test_cuda_12_4_that_cannot_be_fetched_leaves_nothing_behind(self):
        mirrored = 'case "$1" in indextargets) echo http://mirror.test/debian/;; *) echo "E: no answer" >&2; exit 100;; esac'
        for apt, expected in (
            ("echo http://mirror.test/ubuntu/", "this machine's apt has no mirror of Debian"),
            (mirrored, "Debian 13's nvidia-cuda-toolkit cannot be fetched (E: no answer)"),
        ):
            self.program("apt-get", apt)
            result = self.run_program(ROOT / "dev" / "fetch_cuda_12_4.sh", self.folder / "fetched")
            self.assertEqual((result.returncode, result.stdout, result.stderr), (1, "", f"fetch_cuda_12_4: {expected}\n"))
            self.assertFalse((self.folder / "fetched").exists())
        result = self.run_program(ROOT / "dev" / "fetch_cuda_12_4.sh", self.folder / "cuda")
        self.assertEqual((result.returncode, result.stderr), (2, f"fetch_cuda_12_4: {self.folder}/cuda exists; expected a new folder\n"))
        self.assertTrue((self.bin / "apt-get").exists())

    def test_a_missing_python3_was_given_no_reason(self):
        for said in ("ERROR: no such package\nnothing else", "python3: command not found"):
            self.program("python3", f"printf '{said}\n'; exit 127")
            result = self.run_program(ROOT / "scripts/python_packages.sh", self.folder / "environment", "package==1.0")
            reason = said.split("\n", 1)[0]
            expected = f"python_packages: package==1.0 could not be installed into {self.folder}/environment: {reason}\n"
            self.assertEqual((result.returncode, result.stderr), (0, expected))

    def test_warnings_are_errors_only_on_request(self):
        for option, expected in (((), False), (("-DFLATGPT_WERROR=ON",), True)):
            build = self.folder / f"build{len(option)}"
            subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DFLATGPT_TESTS=OFF", "-DFLATGPT_BENCHMARKS=OFF", "-DFLATGPT_MPI=OFF", *option],
                           stdout=subprocess.DEVNULL, check=True, timeout=300)  # fmt: skip
            commands = json.loads((build / "compile_commands.json").read_text())
            self.assertEqual({"-Werror" in entry["command"].split() for entry in commands}, {expected})


if __name__ == "__main__":
    unittest.main()
