# cmake -DSOURCE= -DPREFIX= -DC_COMPILER= -DCXX_COMPILER= -DGENERATOR= -DMAKE_PROGRAM= -P build_onednn.cmake
#   Builds oneDNN once and installs it in PREFIX for all our builds. Only its matrix products are used.
file(LOCK ${PREFIX}.lock GUARD PROCESS)  # two builds may need it at the same time
if(EXISTS ${PREFIX}/done)
    return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${PREFIX}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
    -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG"
    -DCMAKE_INSTALL_PREFIX=${PREFIX} -DCMAKE_INSTALL_LIBDIR=lib
    -DONEDNN_BUILD_TESTS=OFF -DONEDNN_BUILD_EXAMPLES=OFF -DONEDNN_BUILD_DOC=OFF -DONEDNN_BUILD_GRAPH=OFF
    -DONEDNN_LIBRARY_TYPE=STATIC "-DONEDNN_ENABLE_PRIMITIVE=MATMUL;REORDER" RESULT_VARIABLE failed)
if(NOT failed)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${PREFIX}/build --target install RESULT_VARIABLE failed)
endif()
if(failed)
    message(FATAL_ERROR "oneDNN cannot be built in ${PREFIX}/build (above)")
endif()
file(REMOVE_RECURSE ${PREFIX}/build)
file(TOUCH ${PREFIX}/done)
