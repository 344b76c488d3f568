// Stands before torch's own header of this name; see types.h beside it.
#pragma once
#include <torch/types.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
