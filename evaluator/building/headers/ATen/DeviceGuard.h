// Stands before torch's own header of this name, which every operator includes. That one also says on which device a
// list of tensors is, for which it brings in boxed values and the types of TorchScript: 3 s of the 10 s that nvcc's host
// half took with the short torch/types.h (2 cores, torch 2.13). Here they come only with what a text includes itself.
#ifndef KERNELWRIGHT_DEVICE_GUARD
#define KERNELWRIGHT_DEVICE_GUARD
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>
#include <optional>

namespace at {

/// The device of a tensor; none of one that is undefined.
inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}

/// The device of a tensor; none if there is no tensor or it is undefined.
inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  return tensor ? device_of(*tensor) : std::nullopt;
}

}  // namespace at
#endif

#if !defined(KERNELWRIGHT_SHORT) && !defined(KERNELWRIGHT_DEVICE_GUARD_OF_LISTS)
#define KERNELWRIGHT_DEVICE_GUARD_OF_LISTS
#include <ATen/core/IListRef.h>

namespace at {

/// The device of the first of some tensors; none if there is none.
inline std::optional<Device> device_of(ITensorListRef tensors) {
  return tensors.empty() ? std::nullopt : device_of(tensors.front());
}

}  // namespace at
#endif
