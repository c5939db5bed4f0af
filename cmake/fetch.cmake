# Builds libraries from their release archives, for machines on which they are missing and packages may not be installed.
#   FLATGPT_FETCH=OFF   uses the system's libraries
#                 ON    fetches those that the system lacks
#                 ALL   fetches all of them
#   FLATGPT_ARCHIVES    a folder with the archives, or the beginning of their URLs on a mirror; default: GitHub
# An archive whose checksum differs is an error. The archives are called NAME-VERSION.tar.gz, as in the list below.
set(FLATGPT_FETCH OFF CACHE STRING "Libraries from their releases' archives: OFF, ON (those that the system lacks), ALL")
set(FLATGPT_ARCHIVES "" CACHE STRING "A folder or a URL that holds these archives, instead of GitHub")
if(NOT FLATGPT_FETCH MATCHES "^(OFF|ON|ALL)$")
    refuse(FLATGPT_FETCH "FLATGPT_FETCH=${FLATGPT_FETCH}; expected OFF, ON or ALL")
endif()
accept(FLATGPT_FETCH)
if(NOT FLATGPT_FETCH STREQUAL "OFF")
    enable_language(C)
    enable_language(ASM)
    include(FetchContent)
endif()

# Declares a release's archive: its repository on GitHub, tag, version and checksum.
function(declare_archive name repository tag version sha256)
    set(file ${name}-${version}.tar.gz)
    set(url https://github.com/${repository}/archive/refs/tags/${tag}.tar.gz)
    set(${name}_URL ${url} PARENT_SCOPE)
    set(${name}_FILE ${file} PARENT_SCOPE)
    if(FLATGPT_ARCHIVES)
        set(url ${FLATGPT_ARCHIVES}/${file})
    endif()
    set(timestamps)
    if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.24)
        set(timestamps DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    endif()
    if(FLATGPT_FETCH STREQUAL "OFF")
        return()
    endif()
    # SOURCE_SUBDIR is a folder without CMakeLists.txt, so MakeAvailable only unpacks the archive.
    FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_NAME ${file} SOURCE_SUBDIR none ${timestamps})
endfunction()

declare_archive(fmt fmtlib/fmt 10.2.1 10.2.1 1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811)
declare_archive(cli11 CLIUtils/CLI11 v2.4.1 2.4.1 73b7ec52261ce8fe980a29df6b4ceb66243bb0b779451dbd3d014cfec9fdbb58)
declare_archive(nlohmann_json nlohmann/json v3.11.3 3.11.3 0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406)
declare_archive(xxhash Cyan4973/xxHash v0.8.1 0.8.1 3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c)
declare_archive(onednn oneapi-src/oneDNN v3.5.3 3.5.3 ddbc26c75978c5e864050f699dbefbf5bff9c0b8d2af827845708e1376471f17)
declare_archive(boost_context boostorg/context boost-1.84.0 1.84.0 7dddb5ea90b0f07aa77d23e31e408abcc9bc83a8d831a8d4686987a0bca7038b)
declare_archive(boost_config boostorg/config boost-1.84.0 1.84.0 4c45e04b689e79234cf1ef60f966c93755dca2ff433e72db5b4f367f94007aa9)
declare_archive(googletest google/googletest v1.14.0 1.14.0 8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
declare_archive(benchmark google/benchmark v1.8.3 1.8.3 6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)

# Sets result to true if the library must be fetched. found: the result of looking for it on the system.
function(wants_fetch result found)
    if(FLATGPT_FETCH STREQUAL "ALL" OR (FLATGPT_FETCH STREQUAL "ON" AND NOT found))
        set(${result} ON PARENT_SCOPE)
    else()
        set(${result} OFF PARENT_SCOPE)
    endif()
endfunction()

# Unpacks a library into ${name}_SOURCE_DIR.
macro(unpack name)
    if(IS_DIRECTORY "${FLATGPT_ARCHIVES}" AND NOT EXISTS "${FLATGPT_ARCHIVES}/${${name}_FILE}")
        message(FATAL_ERROR "${FLATGPT_ARCHIVES}/${${name}_FILE} is missing; it is ${${name}_URL}")
    endif()
    message(STATUS "fetching ${${name}_FILE}")
    FetchContent_MakeAvailable(${name})
endmacro()

# Unpacks a library that has a CMakeLists.txt and adds its targets, which are built if something needs them. Its headers count as system headers,
# without warnings. Options of the library's CMakeLists.txt must be set before.
function(add_library_of name)
    unpack(${name})
    unset(CMAKE_CXX_STANDARD)  # the library chooses it
    set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
    set(CMAKE_CXX_FLAGS_CHECKED "-O2 -DNDEBUG")
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    add_subdirectory(${${name}_SOURCE_DIR} ${${name}_BINARY_DIR} EXCLUDE_FROM_ALL)
    foreach(target ${ARGN})
        get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
        set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${folders}")
    endforeach()
endfunction()

function(fetch_fmt)
    add_library_of(fmt fmt)
endfunction()

function(fetch_cli11)
    set(CLI11_BUILD_TESTS OFF)
    set(CLI11_BUILD_EXAMPLES OFF)
    set(CLI11_BUILD_DOCS OFF)
    add_library_of(cli11 CLI11)
endfunction()

function(fetch_nlohmann_json)
    set(JSON_BuildTests OFF)
    add_library_of(nlohmann_json nlohmann_json)
endfunction()

# Built as a library, because g++ 12 warns about its AVX-512 code when it is inlined into our sources (GCC bug 105593).
function(fetch_xxhash)
    unpack(xxhash)
    add_library(fetched_xxhash STATIC ${xxhash_SOURCE_DIR}/xxhash.c)
    target_include_directories(fetched_xxhash SYSTEM INTERFACE ${xxhash_SOURCE_DIR})
    add_library(PkgConfig::XXHASH ALIAS fetched_xxhash)
endfunction()

# Builds only the context switch, which is assembly.
function(fetch_boost_context)
    unpack(boost_context)
    unpack(boost_config)
    set(abi x86_64_sysv_elf_gas)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        set(abi arm64_aapcs_elf_gas)
    endif()
    add_library(boost_context STATIC ${boost_context_SOURCE_DIR}/src/asm/make_${abi}.S ${boost_context_SOURCE_DIR}/src/asm/jump_${abi}.S)
    target_include_directories(boost_context SYSTEM INTERFACE ${boost_context_SOURCE_DIR}/include ${boost_config_SOURCE_DIR}/include)
endfunction()

# oneDNN takes half an hour of processor time to build. It is built once per compiler and configuration, in build/fetched, and all our builds link it.
function(fetch_onednn)
    unpack(onednn)
    file(SHA256 ${PROJECT_SOURCE_DIR}/cmake/build_onednn.cmake how)
    string(SUBSTRING ${how} 0 8 how)
    string(REPLACE .tar.gz "" version ${onednn_FILE})
    set(prefix ${PROJECT_SOURCE_DIR}/build/fetched/${version}-${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}-${how})
    add_custom_command(OUTPUT ${prefix}/lib/libdnnl.a
        COMMAND ${CMAKE_COMMAND} -DSOURCE=${onednn_SOURCE_DIR} -DPREFIX=${prefix} -DC_COMPILER=${CMAKE_C_COMPILER}
            -DCXX_COMPILER=${CMAKE_CXX_COMPILER} -DMAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} "-DGENERATOR=${CMAKE_GENERATOR}" -P ${PROJECT_SOURCE_DIR}/cmake/build_onednn.cmake
        COMMENT "Building oneDNN" USES_TERMINAL VERBATIM)
    add_custom_target(build_onednn DEPENDS ${prefix}/lib/libdnnl.a)
    file(MAKE_DIRECTORY ${prefix}/include)
    add_library(dnnl STATIC IMPORTED GLOBAL)
    find_package(OpenMP REQUIRED)
    set_target_properties(dnnl PROPERTIES IMPORTED_LOCATION ${prefix}/lib/libdnnl.a INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include
        INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${prefix}/include INTERFACE_LINK_LIBRARIES "OpenMP::OpenMP_CXX;${CMAKE_DL_LIBS}")
    add_dependencies(dnnl build_onednn)
endfunction()

function(fetch_googletest)
    set(INSTALL_GTEST OFF)
    set(BUILD_GMOCK OFF)
    add_library_of(googletest gtest gtest_main)
endfunction()

function(fetch_benchmark)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    set(BENCHMARK_ENABLE_WERROR OFF)
    add_library_of(benchmark benchmark)
endfunction()
