# Sets python_packages: the folders of Python's packages. Machines with PyTorch have NCCL and cuDNN there.
execute_process(COMMAND python3 -c "import site, sysconfig; print(*{sysconfig.get_path('purelib'), site.getusersitepackages()}, sep=';', end='')"
    OUTPUT_VARIABLE python_packages ERROR_QUIET)
