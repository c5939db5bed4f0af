# make install and make install-gpu install this build's programs, the data that they read, scripts, man pages and bash completion. tokenize and
# convert are installed as tokenize_gpt2 and convert_gpt2, since other packages have programs of those names.
include(GNUInstallDirs)
set(INSTALLED_DATA ${CMAKE_INSTALL_DATADIR}/flatgpt)  # where system/data_directory.cpp looks, relative to the program
install(DIRECTORY data DESTINATION ${INSTALLED_DATA} PATTERN "*.cache.bin" EXCLUDE PATTERN "*.tmp-*" EXCLUDE)
install(PROGRAMS scripts/plot.py scripts/compare_runs.py scripts/export_metrics.py scripts/finetune.sh DESTINATION ${INSTALLED_DATA}/scripts)
install(FILES scripts/run_metrics.py scripts/own_options.sh DESTINATION ${INSTALLED_DATA}/scripts)
foreach(program train_gpt2 evaluate_gpt2 generate_gpt2 train_gpt2cu evaluate_gpt2cu generate_gpt2cu tokenize convert)
    if(NOT TARGET ${program})
        continue()
    endif()
    set(name ${program})
    if(program MATCHES "^(tokenize|convert)$")
        set(name ${program}_gpt2)
    endif()
    install(PROGRAMS $<TARGET_FILE:${program}> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME ${name})
    set(page ${CMAKE_BINARY_DIR}/manual/${name}.1)
    set(completion ${CMAKE_BINARY_DIR}/manual/${name})
    # The program prints them from its options. It is called by its installed name, because --print-* uses that name.
    install(CODE "
        file(MAKE_DIRECTORY \"${CMAKE_BINARY_DIR}/manual\")
        foreach(form \"man-page;${page}\" \"bash-completion;${completion}\")
            list(GET form 0 print)
            list(GET form 1 file)
            execute_process(COMMAND bash -c \"exec -a '${name}' '$<TARGET_FILE:${program}>' --print-\${print}\" OUTPUT_FILE \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)
        endforeach()")
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endforeach()
