// The part of torch/types.h that kernels use: tensors, factories, dispatch, checks. The whole one takes a C++ compiler
// 12 s longer and nvcc 33 s (2 cores, torch 2.13). Whatever needs more is compiled again with torch's own header.
#pragma once
#define KERNELWRIGHT_SHORT
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#if __has_include(<kernelwright_named_operations.h>)
#include <kernelwright_named_operations.h>
#endif
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#undef KERNELWRIGHT_SHORT

namespace torch {
using namespace at;  // as torch's own header does
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}  // namespace torch
