# The programs in an image. Those for CPUs run on the kind of processor that the image is built on, or with FLATGPT_MARCH on others, too.
#   docker build -t flatgpt .                                                    for this machine's CPU
#   docker build -t flatgpt --build-arg FLATGPT_MARCH=x86-64-v3 .                for every CPU with AVX2, which is slower where there is AVX-512
#   docker build -t flatgpt --build-arg BASE=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 --build-arg PROGRAMS=install-gpu .    for NVIDIA GPUs
#   docker run --rm -it -v "$PWD:/work" flatgpt train_gpt2 --train-data my_book.txt          with --gpus all: train_gpt2cu
ARG BASE=debian:12
FROM ${BASE}
ARG PROGRAMS=install
ARG FLATGPT_MARCH=native
COPY . /flatgpt
RUN cd /flatgpt && apt-get update && apt-get install -y --no-install-recommends make python3-venv && scripts/setup.sh build && make ${PROGRAMS} && rm -rf build /var/lib/apt/lists/*
WORKDIR /work
CMD ["train_gpt2", "--help"]
