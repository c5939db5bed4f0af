# Finds NCCL: NCCL_INCLUDE and NCCL. NCCL_ROOT or NCCL_HOME, of the environment, name its folder; otherwise the CUDA Toolkit, Python's packages
#   (nvidia-nccl-cu13) and the system are searched. Python's packages have no libnccl.so, and so every folder is searched for both names before the
#   next one: header and library are of one NCCL.
if(FLATGPT_NCCL)
    list(TRANSFORM python_packages APPEND /nvidia/nccl OUTPUT_VARIABLE nccl_packages)
    find_path(NCCL_INCLUDE nccl.h HINTS ENV NCCL_ROOT ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} ${nccl_packages} PATH_SUFFIXES include)
    find_library(NCCL NAMES nccl libnccl.so.2 NAMES_PER_DIR
        HINTS ENV NCCL_ROOT ENV NCCL_HOME ${CUDAToolkit_LIBRARY_DIR} ${nccl_packages} PATH_SUFFIXES lib lib64)
endif()
