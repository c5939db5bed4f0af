# Finds NCCL: NCCL_INCLUDE and NCCL. NCCL_ROOT or NCCL_HOME, of the environment, name its folder; otherwise the CUDA Toolkit, Python's packages
#   (nvidia-nccl-cu13) and the system are searched. Python's packages have no libnccl.so, and so every folder is searched for both names before the
#   next one: header and library are of one NCCL.
# ${without_nccl} says in the summary why it is not used.
set(get_nccl "libnccl-dev, NCCL_HOME, or pip install nvidia-nccl-cu${CUDAToolkit_VERSION_MAJOR}")
set(without_nccl "one GPU only, without NCCL (${get_nccl})")
if(FLATGPT_NCCL)
    list(TRANSFORM python_packages APPEND /nvidia/nccl OUTPUT_VARIABLE nccl_packages)
    find_path(NCCL_INCLUDE nccl.h HINTS ENV NCCL_ROOT ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} ${nccl_packages} PATH_SUFFIXES include)
    find_library(NCCL NAMES nccl libnccl.so.2 NAMES_PER_DIR
        HINTS ENV NCCL_ROOT ENV NCCL_HOME ${CUDAToolkit_LIBRARY_DIR} ${nccl_packages} PATH_SUFFIXES lib lib64)
    # Each NCCL is made for one major version of CUDA, which it says in a text that it contains.
    if(NCCL)
        file(STRINGS ${NCCL} made_for LIMIT_COUNT 1 REGEX "NCCL version [0-9.]+[+]cuda[0-9]+")
        if(made_for MATCHES "[+]cuda([0-9]+)" AND NOT CMAKE_MATCH_1 EQUAL CUDAToolkit_VERSION_MAJOR)
            set(without_nccl "one GPU only: ${NCCL} is for CUDA ${CMAKE_MATCH_1}, not ${CUDAToolkit_VERSION_MAJOR} (${get_nccl})")
            set(FLATGPT_NCCL OFF)
        endif()
    endif()
endif()
