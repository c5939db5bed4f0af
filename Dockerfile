# The programs in an image, for the kind of processor that it is built on.
#   docker build -t flatgpt .                        for CPUs
#   docker build -t flatgpt --build-arg BASE=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 --build-arg PROGRAMS=install-gpu .    for NVIDIA GPUs
#   docker run --rm -it -v "$PWD:/work" flatgpt train_gpt2 --train-data my_book.txt          with --gpus all: train_gpt2cu
ARG BASE=debian:12
FROM ${BASE}
ARG PROGRAMS=install
COPY . /flatgpt
RUN cd /flatgpt && apt-get update && apt-get install -y --no-install-recommends make && scripts/setup.sh build && make ${PROGRAMS} && rm -rf build /var/lib/apt/lists/*
WORKDIR /work
CMD ["train_gpt2", "--help"]
