# Target flatgpt_cudnn: attention with cuDNN, if it and its frontend's headers are found. ${cudnn} says in the summary what was found or is missing.
#   CUDNN_ROOT and CUDNN_FRONTEND_ROOT, variables or of the environment, name their folders; otherwise the CUDA Toolkit, the system and the packages
#   of python3 (nvidia-cudnn-cu13, nvidia-cudnn-frontend) are searched. If only the frontend is missing, pip fetches it once.
set(oldest_frontend 1.16)
set(frontend_environment ${PROJECT_SOURCE_DIR}/build/cudnn-frontend)
set(without "bf16 attention by our own kernel")

function(find_cudnn_frontend)
    file(GLOB installed ${frontend_environment}/lib/python3*/site-packages)
    find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend_version.h PATH_SUFFIXES include
        HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${installed} ${python_packages} ${CUDAToolkit_INCLUDE_DIRS})
endfunction()

if(FLATGPT_CUDNN)
    list(TRANSFORM python_packages APPEND /nvidia/cudnn OUTPUT_VARIABLE cudnn_packages)
    find_path(CUDNN_INCLUDE cudnn_version.h PATH_SUFFIXES include
        HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${CUDAToolkit_INCLUDE_DIRS} ${cudnn_packages})
    find_library(CUDNN NAMES cudnn libcudnn.so.9 NAMES_PER_DIR PATH_SUFFIXES lib lib64
        HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${CUDAToolkit_LIBRARY_DIR} ${cudnn_packages})
    find_cudnn_frontend()
    if(CUDNN AND CUDNN_INCLUDE AND NOT CUDNN_FRONTEND_INCLUDE)
        message(STATUS "Getting the headers of cuDNN's frontend into ${frontend_environment}")
        execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/python_packages.sh ${frontend_environment} nvidia-cudnn-frontend==1.32.0)
        find_cudnn_frontend()
    endif()
endif()

if(NOT FLATGPT_CUDNN)
    set(cudnn "${without}, FLATGPT_CUDNN being off")
elseif(NOT CUDNN OR NOT CUDNN_INCLUDE)
    set(cudnn "${without}, without cuDNN (libcudnn9-dev-cuda-${CUDAToolkit_VERSION_MAJOR}, CUDNN_ROOT, or pip install nvidia-cudnn-cu${CUDAToolkit_VERSION_MAJOR})")
elseif(NOT TARGET CUDA::nvrtc)
    set(cudnn "${without}, without libnvrtc of the CUDA Toolkit, which cuDNN's frontend needs")
elseif(NOT CUDNN_FRONTEND_INCLUDE)
    set(cudnn "${without}, without cuDNN's frontend (pip install --no-deps nvidia-cudnn-frontend, or CUDNN_FRONTEND_ROOT)")
else()
    # Joins the numbers of a header's `#define NAME_PART number` lines to a version.
    function(version_of result header)
        set(numbers)
        foreach(name ${ARGN})
            file(STRINGS ${header} line REGEX "#define ${name} +[0-9]+")
            string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
            list(APPEND numbers ${number})
        endforeach()
        list(JOIN numbers . version)
        set(${result} ${version} PARENT_SCOPE)
    endfunction()
    version_of(library ${CUDNN_INCLUDE}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
    # Each cuDNN is made for one major version of CUDA, which only the library says.
    execute_process(COMMAND python3 -c "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetCudartVersion() // 1000, end='')" ${CUDNN}
        OUTPUT_VARIABLE made_for ERROR_QUIET)
    version_of(frontend ${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h CUDNN_FRONTEND_MAJOR_VERSION CUDNN_FRONTEND_MINOR_VERSION)
    if(library VERSION_LESS 9)
        set(cudnn "${without}: cuDNN ${library} is older than 9")
    elseif(made_for AND NOT made_for EQUAL CUDAToolkit_VERSION_MAJOR)
        set(cudnn "${without}: ${CUDNN} is for CUDA ${made_for}, not ${CUDAToolkit_VERSION_MAJOR} (libcudnn9-dev-cuda-${CUDAToolkit_VERSION_MAJOR}, or CUDNN_ROOT)")
    elseif(frontend VERSION_LESS ${oldest_frontend})
        set(cudnn "${without}: the frontend in ${CUDNN_FRONTEND_INCLUDE} is ${frontend}, older than ${oldest_frontend}")
    else()
        set(cudnn "bf16 attention by cuDNN ${library} (frontend ${frontend})")
        add_library(flatgpt_cudnn OBJECT ${PROJECT_SOURCE_DIR}/kernels/attention/attention_cudnn.cpp)
        target_include_directories(flatgpt_cudnn SYSTEM PRIVATE ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE})
        target_compile_definitions(flatgpt_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)  # otherwise it brings another version of nlohmann-json
        target_link_libraries(flatgpt_cudnn PUBLIC flatgpt_flags CUDA::cudart_static CUDA::nvrtc ${CUDNN})
    endif()
endif()
