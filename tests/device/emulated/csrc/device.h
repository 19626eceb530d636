#pragma once

#include "runtime.h"

#include <ATen/core/Generator.h>

#include <optional>

namespace emulated {

// Makes the device known to torch: allocators and hooks.
void register_device();

// The generator that a CPU kernel draws from for a device: that of the caller's generator, or of the device's own.
at::Generator cpu_generator(int device, const std::optional<at::Generator>& given);

}  // namespace emulated
