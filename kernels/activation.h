// activation.h: the activations, by which host code names the one that follows a matrix product
#pragma once

enum class Activation { none, gelu };  // gelu: gelu.cuh
