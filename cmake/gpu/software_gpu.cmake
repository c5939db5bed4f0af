# make software-gpu links the GPU programs and tests a second time, from the same objects, with the software GPU
# of test/gpu/software_gpu instead of the CUDA runtime, cuBLASLt and NCCL, and without cuDNN. They have the same
# names, in build/software-gpu/. The names of their tests end in _software.
set(software_gpu ${PROJECT_SOURCE_DIR}/test/gpu/software_gpu)
set(software_programs ${PROJECT_SOURCE_DIR}/build/software-gpu)
pkg_check_modules(ZSTD QUIET IMPORTED_TARGET libzstd)
pkg_check_modules(LZ4 QUIET IMPORTED_TARGET liblz4)
add_custom_target(software-gpu)
if(NOT ZSTD_FOUND OR NOT LZ4_FOUND)
    add_custom_command(TARGET software-gpu COMMAND ${CMAKE_COMMAND} -E echo "make software-gpu: libzstd-dev or liblz4-dev is missing; run scripts/setup.sh"
        COMMAND ${CMAKE_COMMAND} -E false)
    return()
endif()

file(GLOB software_sources CONFIGURE_DEPENDS ${software_gpu}/*.cpp)
list(FILTER software_sources EXCLUDE REGEX "/(test_[^/]*|tests_root)\\.cpp$")
if(NOT FLATGPT_NCCL OR NOT NCCL OR NOT NCCL_INCLUDE)
    list(FILTER software_sources EXCLUDE REGEX "/nccl\\.cpp$")
endif()
add_library(software_gpu STATIC EXCLUDE_FROM_ALL ${software_sources})
target_include_directories(software_gpu PUBLIC ${software_gpu})
target_include_directories(software_gpu SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE})
# A sum of products must be exactly what the PTX says. At -O3, g++ 12 warns about fmt's own code.
target_compile_options(software_gpu PRIVATE -O2 -ffp-contract=off)
# Training spends most of its time in the matrix products of cuBLASLt's stand-in.
set_source_files_properties(${software_gpu}/blocked_product.cpp PROPERTIES
    COMPILE_OPTIONS "-O3;-march=native;-mprefer-vector-width=512;-ffp-contract=fast")
# A lane's arithmetic depends on its type alone, so this machine's vector instructions may compute it.
set_source_files_properties(${software_gpu}/execute.cpp ${software_gpu}/memory_access.cpp PROPERTIES
    COMPILE_OPTIONS "-O3;-march=native;-fno-math-errno")
target_link_libraries(software_gpu PUBLIC flatgpt_flags nlohmann_json::nlohmann_json Threads::Threads PRIVATE PkgConfig::ZSTD PkgConfig::LZ4)
# This part replaces the one in the archive of the GPU's library, which needs cuDNN.
add_library(software_gpu_parts OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/kernels/attention/attention_no_cudnn.cpp)
target_link_libraries(software_gpu_parts PRIVATE flatgpt_flags)

# The linker sends these calls to the software GPU: gaps between an arena's tensors (cuda_runtime.cpp), and
# measurements (peaks.cpp).
set(wrapped _ZN4simt10poison_gapEPvm _ZN4simt12unpoison_gapEPvm _Z22measure_copy_bandwidthv _Z19measure_matmul_rate5DTypeb
    _Z11matmul_peakRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE5DTyped)

# The archives are named by their paths, without the libraries that CMake would add, so that a function of the
# CUDA runtime that the software GPU does not have is a linker error. libstdc++ comes before them; otherwise
# pieces of std::string would be linked from their part for cuDNN.
function(add_software_executable program)
    add_executable(${program}_software EXCLUDE_FROM_ALL ${ARGN} $<TARGET_OBJECTS:software_gpu_parts>)
    set_target_properties(${program}_software PROPERTIES OUTPUT_NAME ${program} RUNTIME_OUTPUT_DIRECTORY ${software_programs}
        LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None
        LINK_DEPENDS "$<TARGET_FILE:flatgpt_gpu>")
    list(TRANSFORM wrapped PREPEND -Wl,--wrap= OUTPUT_VARIABLE options)
    target_link_options(${program}_software PRIVATE ${options})
    set(test_libraries)
    if(program MATCHES "^bench_")
        set(test_libraries $<TARGET_FILE:flatgpt_bench>)
    elseif(program MATCHES "^test_")
        set(test_libraries $<TARGET_FILE:flatgpt_test> GTest::gtest)
        if(NOT program MATCHES "_(communicator|data_parallel)cu$")  # these tests have their own main
            list(APPEND test_libraries GTest::gtest_main)
        endif()
    endif()
    target_link_libraries(${program}_software PRIVATE stdc++ ${test_libraries} $<TARGET_FILE:flatgpt_gpu> software_gpu flatgpt_host)
    if(TARGET flatgpt_mpi)
        target_link_libraries(${program}_software PRIVATE flatgpt_mpi)
    endif()
    if(program MATCHES "^bench_")
        target_link_libraries(${program}_software PRIVATE benchmark::benchmark)
    endif()
    add_dependencies(${program}_software flatgpt_gpu)
    add_dependencies(software-gpu ${program}_software)
endfunction()

foreach(path ${PROGRAMS})
    get_filename_component(program ${path} NAME)
    add_software_executable(${program}cu $<TARGET_OBJECTS:${program}cu>)
endforeach()

# The benchmarks, and build/cuda/'s tokenize, are run only by gpu_check's rehearsal.
if(FLATGPT_BENCHMARKS)
    foreach(source ${BENCHMARKS})
        get_filename_component(name ${source} NAME_WE)
        add_software_executable(${name}cu $<TARGET_OBJECTS:${name}cu>)
        add_dependencies(${name}cu_software flatgpt_bench)
    endforeach()
endif()
add_dependencies(software-gpu tokenize)

if(FLATGPT_TESTS)
    # Tests start the programs of build/cuda/ under the root that FLATGPT_ROOT names, here a folder of links
    # that looks like this source tree.
    cmake_path(RELATIVE_PATH CMAKE_BINARY_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE build_folder)
    cmake_path(GET build_folder PARENT_PATH above)
    set(root ${software_programs}/tree)
    file(MAKE_DIRECTORY ${root}/${above})
    file(CREATE_LINK ${software_programs} ${root}/${build_folder} SYMBOLIC)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/test ${root}/test SYMBOLIC)
    add_library(software_tests_root OBJECT EXCLUDE_FROM_ALL ${software_gpu}/tests_root.cpp)
    target_compile_definitions(software_tests_root PRIVATE SOFTWARE_ROOT="${root}")
    target_link_libraries(software_tests_root PRIVATE flatgpt_flags)

    # Tests that train models for a long time, or that start the programs many times, have the label long:
    # ctest --preset software-gpu-long.
    set(long test_data_parallel test_generate_program test_resume test_train_program test_training test_watch_program)
    # The kernels and the models also run with other orders of blocks and warps, with approximate instructions
    # that are wrong by as many ulp as docs/software-gpu.md says, and with truncated sums of products. The
    # descending order is among the long tests. test_elementwise compares bits, which such instructions change.
    set(kernel_tests test_attention test_capped_cross_entropy test_column_sum test_cross_entropy test_decode_attention test_decode_matmul test_encoder
        test_gelu test_global_norm test_gpt2 test_layernorm test_llama test_mma test_optimizers test_random test_relu2 test_rmsnorm test_rope test_simt
        test_swiglu)
    set(descending order=descending,seed=2,approximation=up,truncate)
    set(seeded order=seeded,seed=3,approximation=seeded,truncate)
    foreach(source ${KERNEL_TESTS})
        get_filename_component(name ${source} NAME_WE)
        add_software_executable(${name}cu $<TARGET_OBJECTS:${name}cu> $<TARGET_OBJECTS:software_tests_root>)
        add_dependencies(${name}cu_software flatgpt_test)
        set(labels)
        if(name IN_LIST long)
            set(labels LABELS long)
        endif()
        gtest_discover_tests(${name}cu_software TEST_SUFFIX _software DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 1800 ${labels})
        if(name IN_LIST kernel_tests)
            foreach(order descending seeded)
                # It is enough to train for many steps, and to generate, in one order.
                add_test(NAME ${name}cu_${order}_software COMMAND ${name}cu_software --gtest_filter=-*TheModelFollowsPyTorchForTwentySteps:*LearnsATable:*Decoder*)
                set_tests_properties(${name}cu_${order}_software PROPERTIES TIMEOUT 600 COST 50 ENVIRONMENT "SOFTWARE_GPU=${${order}}")
                if(order STREQUAL "descending")
                    set_tests_properties(${name}cu_${order}_software PROPERTIES LABELS long)
                endif()
            endforeach()
        endif()
    endforeach()

    # Tests of host code, by its calls of the libraries and their errors.
    set(traced_tests step_graphs.cpp gemm_tuning.cpp cuda_errors.cu)
    if(FLATGPT_NCCL AND NCCL AND NCCL_INCLUDE)
        list(APPEND traced_tests communicator_nccl.cpp)
    endif()
    foreach(path ${traced_tests})
        get_filename_component(name test_${path} NAME_WE)
        add_software_executable(${name} ${PROJECT_SOURCE_DIR}/test/gpu/test_${path})
        add_dependencies(${name}_software flatgpt_test)
        target_include_directories(${name}_software PRIVATE ${PROJECT_SOURCE_DIR}/test)
        target_compile_options(${name}_software PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
        set_target_properties(${name}_software PROPERTIES CUDA_ARCHITECTURES 80-virtual)
        gtest_discover_tests(${name}_software TEST_SUFFIX _software DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
    endforeach()
    target_compile_definitions(test_step_graphs_software PRIVATE SOFTWARE_TRAIN_PROGRAM="$<TARGET_FILE:train_gpt2cu_software>")
    add_dependencies(test_step_graphs_software train_gpt2cu_software)
    if(TARGET test_communicator_nccl_software)
        target_sources(test_communicator_nccl_software PRIVATE ${PROJECT_SOURCE_DIR}/trainer/distributed/bootstrap_no_mpi.cpp)
        target_link_options(test_communicator_nccl_software PRIVATE -Wl,--wrap=ncclCommAbort -Wl,--wrap=ncclCommInitRank -Wl,--wrap=ncclGetLastError)
    endif()
    # Replaced: the GPU's and cuBLASLt's description, and the time between events.
    target_link_options(test_gemm_tuning_software PRIVATE -Wl,--wrap=_ZN4simt11device_infoEv -Wl,--wrap=cublasLtGetVersion
        -Wl,--wrap=_ZN4simt16event_elapsed_msEP10CUevent_stS1_)

    # The software GPU's own tests.
    file(GLOB sources CONFIGURE_DEPENDS ${software_gpu}/test_*.cpp)
    foreach(source ${sources})
        get_filename_component(name ${source} NAME_WE)
        add_executable(${name}_software EXCLUDE_FROM_ALL ${source})
        set_target_properties(${name}_software PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${software_programs})
        target_compile_options(${name}_software PRIVATE -O1)
        target_link_libraries(${name}_software PRIVATE software_gpu GTest::gtest GTest::gtest_main PkgConfig::ZSTD PkgConfig::LZ4)
        add_dependencies(software-gpu ${name}_software)
        gtest_discover_tests(${name}_software TEST_SUFFIX _software DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
    endforeach()

    # The kernels with planted faults are run from their PTX.
    add_library(planted_faults OBJECT EXCLUDE_FROM_ALL ${software_gpu}/planted_faults.cu)
    set_target_properties(planted_faults PROPERTIES CUDA_PTX_COMPILATION ON CUDA_ARCHITECTURES 80-virtual)
    target_compile_options(planted_faults PRIVATE -lineinfo -Werror=all-warnings)
    target_link_libraries(planted_faults PRIVATE flatgpt_flags)
    add_dependencies(test_planted_faults_software planted_faults)
    target_compile_definitions(test_planted_faults_software PRIVATE PLANTED_FAULTS_PTX="$<TARGET_OBJECTS:planted_faults>")
endif()

if(FLATGPT_TESTS AND TARGET test_communicatorcu)
    foreach(source ${MPI_TESTS})
        get_filename_component(name ${source} NAME_WE)
        add_software_executable(${name}cu $<TARGET_OBJECTS:${name}cu> $<TARGET_OBJECTS:software_tests_root>)
        add_dependencies(${name}cu_software flatgpt_test)
        foreach(processes 1 2 3)
            if(processes GREATER 1 OR name STREQUAL test_communicator)
                set(test ${name}cu@${processes}_processes_software)
                add_test(NAME ${test} COMMAND ${PROJECT_SOURCE_DIR}/test/mpi/mpirun.sh -np ${processes} $<TARGET_FILE:${name}cu_software>)
                if(name IN_LIST long)
                    set_tests_properties(${test} PROPERTIES LABELS long)
                endif()
                set_tests_properties(${test} PROPERTIES TIMEOUT 1800 PROCESSORS 2
                    ENVIRONMENT "MPIRUN=${MPIEXEC_EXECUTABLE}")
            endif()
        endforeach()
    endforeach()
endif()

# train_gpt2cu beside train_gpt2, which `make` builds.
if(FLATGPT_TESTS)
    set(groups Fp32 Bf16 LlamaFp32 LlamaBf16 NanochatFp32 NanochatBf16)
    if(TARGET test_communicatorcu)
        list(APPEND groups Processes)
    endif()
    foreach(group ${groups})
        string(TOLOWER training_${group}_software test)
        add_test(NAME ${test} COMMAND ${PYTHON} ${software_gpu}/test_training.py --gpu $<TARGET_FILE:train_gpt2cu_software> ${group})
        set_tests_properties(${test} PROPERTIES TIMEOUT 600 COST 100 SKIP_RETURN_CODE 77)
    endforeach()
    if(TARGET test_communicatorcu)
        set_tests_properties(training_processes_software PROPERTIES PROCESSORS 2)
    endif()
    if(FLATGPT_BENCHMARKS)
        add_test(NAME rehearsal_software COMMAND ${PYTHON} ${software_gpu}/test_rehearsal.py)
        set_tests_properties(rehearsal_software PROPERTIES TIMEOUT 1800 COST 200 SKIP_RETURN_CODE 77
            ENVIRONMENT "SOFTWARE_PROGRAMS=${software_programs};TOKENIZE_PROGRAM=$<TARGET_FILE:tokenize>")
    endif()

    # By this list of the kernels' registers, the programs reject launches that need more than an SM has.
    set(registers ${software_programs}/registers.txt)
    set(machine_code ${PROJECT_SOURCE_DIR}/test/gpu/test_machine_code.py)
    add_custom_command(OUTPUT ${registers} DEPENDS flatgpt_gpu ${machine_code}
        COMMAND ${PYTHON} ${machine_code} $<TARGET_FILE:flatgpt_gpu> --registers ${registers})
    add_custom_target(software_registers DEPENDS ${registers})
    add_dependencies(software-gpu software_registers)

    # A program that launches kernels with shapes of GPT-2 124M, for test_counters.py.
    add_library(training_kernels OBJECT EXCLUDE_FROM_ALL ${software_gpu}/training_kernels.cu)
    set_target_properties(training_kernels PROPERTIES CUDA_ARCHITECTURES 90-virtual)
    target_link_libraries(training_kernels PRIVATE flatgpt_gpu)
    add_software_executable(training_kernels $<TARGET_OBJECTS:training_kernels>)
    add_test(NAME counters_software COMMAND ${PYTHON} ${software_gpu}/test_counters.py
        --kernels $<TARGET_FILE:training_kernels_software> --train $<TARGET_FILE:train_gpt2cu_software>
        --archive $<TARGET_FILE:flatgpt_gpu>)
    set_tests_properties(counters_software PROPERTIES TIMEOUT 600 COST 100 SKIP_RETURN_CODE 77)
endif()
