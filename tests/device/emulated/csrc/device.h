#pragma once

#include "runtime.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace emulated {

// Makes the device known to torch: allocators and hooks.
void register_device();

// The generator that a CPU kernel draws from for a device: that of the caller's generator, or of the device's own.
at::Generator cpu_generator(int device, const std::optional<at::Generator>& given);

// A tensor of the CPU over the bytes of a tensor of the device; a tensor of the CPU as it is.
at::Tensor cpu_twin(const at::Tensor& tensor);

}  // namespace emulated
