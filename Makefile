# make             the CPU programs: ./train_gpt2 ./evaluate_gpt2 ./generate_gpt2 ./tokenize ./convert
# make quickstart  installs what is missing, builds, trains a small model on Shakespeare, plots its loss
# make test        installs what is missing, builds and runs every test, plain and checked
# make gpu         the GPU programs: ./train_gpt2cu ./evaluate_gpt2cu ./generate_gpt2cu; ARCHITECTURES="80 90a": for these GPUs instead of those here
# make test-gpu    builds and runs the GPU's tests, and builds its benchmarks
# make software-gpu  the GPU programs, tests and benchmarks on a software GPU, which runs and checks their PTX on any machine, in build/software-gpu/;
#                  ctest --preset software-gpu runs the tests
# make gpu-bundle  builds and packs them for a machine with NVIDIA's driver and PyTorch, but no compiler: build/flatgpt-gpu.tar.xz;
#                  ARCHITECTURES=90a (or "80 90a"): for these GPUs only, which is smaller and builds faster
# CUDA_HOME=/usr/local/cuda-12.9 before make gpu, software-gpu or gpu-bundle: with this toolkit instead of the nvcc in PATH
# make install     installs the CPU programs, their data, man pages and bash completion: PREFIX=/usr/local, below DESTDIR; make install-gpu: the GPU's
# make fuzz        runs the fuzz targets of every reader, SECONDS=60 each; TARGETS="safetensors token_shard" selects some
# make bench       the CPU benchmarks, in build/release/
# make format      clang-format over our sources; make tidy: clang-tidy
# make setup       installs what is missing; make clean: removes what was built
# FLATGPT_MARCH=x86-64-v3 before make: CPU programs for every processor with AVX2, instead of for this machine's alone, see docs/machines.md
# FLATGPT_FETCH=ON before make: nothing is installed; missing libraries are fetched and built, see docs/machines.md
.PHONY: all install install-gpu quickstart test gpu test-gpu software-gpu gpu-bundle fuzz bench format tidy clean setup

CPU_PROGRAMS := train_gpt2 evaluate_gpt2 generate_gpt2 tokenize convert
GPU_PROGRAMS := train_gpt2cu evaluate_gpt2cu generate_gpt2cu

export PATH := $(CURDIR)/build/tools/bin:$(PATH)

all:
	@command -v cmake >/dev/null && command -v ninja >/dev/null || { echo "make: cmake or ninja is missing; run scripts/setup.sh" >&2; exit 1; }
	scripts/configure.sh release
	cmake --build --preset release --target $(CPU_PROGRAMS)
	@for program in $(CPU_PROGRAMS); do ln -sf build/release/$$program $$program; done

PREFIX := /usr/local
install: all
	@DESTDIR='$(DESTDIR)' cmake --install build/release --prefix "$$(realpath -m '$(PREFIX)')"

install-gpu: gpu
	@DESTDIR='$(DESTDIR)' cmake --install build/cuda --prefix "$$(realpath -m '$(PREFIX)')"

setup:
	@scripts/setup.sh

quickstart:
	@scripts/setup.sh build plot
	@scripts/quickstart.sh

space := $(subst ,, )
for_architectures = $(if $(ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES='$(subst $(space),;,$(ARCHITECTURES:%=%-real))')

# The shell condition for fuzzing: clang may be missing if nothing may be installed.
fuzzes = [ "$(or $(FLATGPT_FETCH),OFF)" = OFF ] || command -v clang++ >/dev/null
test: setup
	scripts/configure.sh release
	cmake --build --preset release --target tests $(CPU_PROGRAMS)
	@for program in $(CPU_PROGRAMS); do ln -sf build/release/$$program $$program; done
	scripts/configure.sh checked
	cmake --build --preset checked
	@if $(fuzzes); then scripts/configure.sh fuzz && cmake --build --preset fuzz; fi
	ctest --preset checked
	ctest --preset release
	@if $(fuzzes); then ctest --preset fuzz; else echo "Left out: the fuzz targets (they need clang, which FLATGPT_FETCH does not fetch)"; fi
	@if scripts/check_cuda.sh >/dev/null 2>&1; then how="run by: make software-gpu && ctest --preset software-gpu"; else how="they need nvcc, of the CUDA Toolkit"; fi; \
		echo "Left out: the tests that execute the GPU programs on the software GPU ($$how)"

gpu:
	@scripts/check_cuda.sh gpu
	@MAKE_TARGET=gpu scripts/setup.sh gpu
	scripts/configure.sh cuda $(for_architectures)
	cmake --build --preset cuda --target $(GPU_PROGRAMS) tokenize convert
	@for program in $(GPU_PROGRAMS); do ln -sf build/cuda/$$program $$program; done
	@for program in tokenize convert; do [ -x $$program ] || ln -sf build/cuda/$$program $$program; done

test-gpu: setup gpu
	cmake --build --preset cuda
	ctest --preset cuda

software-gpu: setup
	@scripts/check_cuda.sh software-gpu
	scripts/configure.sh cuda
	cmake --build --preset cuda --target software-gpu

# Built in a separate folder, because its programs look for their libraries in the bundle. DT_RPATH also applies to libraries of libraries.
BUNDLE := build/gpu-$(if $(ARCHITECTURES),$(subst $(space),-,$(ARCHITECTURES)),bundle)
gpu-bundle: setup
	@scripts/check_cuda.sh gpu-bundle
	scripts/configure.sh cuda -B $(BUNDLE) $(for_architectures) \
		-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$$ORIGIN/../../lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
	cmake --build $(BUNDLE)
	@scripts/gpu_bundle.sh $(BUNDLE)

SECONDS := 60
fuzz: setup
	@scripts/fuzz.sh $(SECONDS) $(TARGETS)

bench: setup
	scripts/configure.sh release
	cmake --build --preset release

SOURCES := $(shell git ls-files '*.cu' '*.cuh' '*.h' '*.cpp' 2>/dev/null)
format:
	clang-format -i $(SOURCES)
# Files that clang does not compile: those that include headers of CUDA, cuDNN or NCCL, or shuffle vectors with g++'s builtin.
NOT_TIDIED := trainer/distributed/bootstrap%.cpp trainer/distributed/communicator_nccl.cpp %cublaslt.cpp %cublaslt_product.cpp %_cuda.cpp %attention_cudnn.cpp %gemm_onednn.cpp
tidy: all
	clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option $(filter system/%.cpp trainer/%.cpp tokenize.cpp kernels/%.cpp,$(filter-out $(NOT_TIDIED),$(SOURCES)))

clean:
	rm -rf build $(CPU_PROGRAMS) $(GPU_PROGRAMS)
