// Kernels of the emulated accelerator: the CPU's, on the same bytes; copies that are not waited for; autocast.
#include "device.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace emulated {
namespace {

using c10::IValue;

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

int index_of(const at::Tensor& tensor) {
  return tensor.device().index();
}

// A tensor of the CPU over the bytes of a tensor of the device. It may be resized: its storage is then one of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  void* bytes = host_address(storage.data_ptr().get());
  c10::Storage same(
      c10::Storage::use_byte_size_t{}, storage.nbytes(), c10::DataPtr(bytes, c10::DeviceType::CPU), c10::GetCPUAllocator(),
      /*resizable=*/true);
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

at::Tensor over_storage(const c10::Storage& storage, const at::Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  return result;
}

at::Tensor to_device(const at::Tensor& cpu, int device) {
  c10::DeviceGuard guard({c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)});
  at::Tensor result = at::detail::empty_strided_generic(
      cpu.sizes(), cpu.strides(), c10::GetAllocator(c10::DeviceType::PrivateUse1),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), cpu.scalar_type());
  if (cpu.numel() > 0) {
    on_cpu(result).copy_(cpu);
  }
  return result;
}

// The tensors of one call, each with its twin over the same bytes.
class Twins {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!is_on_device(tensor)) {
      return tensor;
    }
    for (const auto& [device_side, cpu_side] : pairs_) {
      if (device_side.is_same(tensor)) {
        return cpu_side;
      }
    }
    pairs_.emplace_back(tensor, on_cpu(tensor));
    return pairs_.back().second;
  }

  // A result is what an argument became, a view of an argument, or new.
  at::Tensor back(const at::Tensor& result, int device) const {
    if (!result.defined()) {
      return result;
    }
    for (const auto& [device_side, cpu_side] : pairs_) {
      if (cpu_side.is_same(result)) {
        return device_side;
      }
    }
    for (const auto& [device_side, cpu_side] : pairs_) {
      const bool shares = result.storage().is_alias_of(cpu_side.storage());
      if (shares) {
        return over_storage(device_side.storage(), result);
      }
    }
    return to_device(result, device);
  }

  // An argument for results may have been resized by the kernel.
  void write_back() const {
    for (const auto& [device_side, cpu_side] : pairs_) {
      const auto* bytes = cpu_side.storage().data_ptr().get();
      const bool moved = bytes != host_address(device_side.storage().data_ptr().get());
      const bool reshaped = device_side.sizes() != cpu_side.sizes() || device_side.strides() != cpu_side.strides();
      if (!moved && !reshaped) {
        continue;
      }
      at::native::resize_(device_side, cpu_side.sizes(), std::nullopt);
      device_side.unsafeGetTensorImpl()->set_sizes_and_strides(cpu_side.sizes(), cpu_side.strides());
      if (moved) {
        on_cpu(device_side).copy_(cpu_side);
      }
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// Operations of which some arguments are read by the CPU, on other accelerators too.
bool takes_cpu_tensors(const std::string& name) {
  static const char* const kNames[] = {"index", "_index_put_impl_", "_pack_padded", "ctc_loss", "_foreach", "_fused", "_amp"};
  for (const char* part : kNames) {
    if (name.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    const auto count = op_.schema().arguments().size();
    const auto begin = stack_->size() - count;
    for (size_t i = begin; i < stack_->size(); ++i) {
      find_device((*stack_)[i]);
    }
    const int device = device_ < 0 ? current_device() : device_;
    c10::DeviceGuard guard({c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)});
    before_kernel(device);
    bool has_generator = false;
    for (size_t i = 0; i < count; ++i) {
      auto& argument = (*stack_)[begin + i];
      if (takes_generator(op_.schema().arguments()[i])) {
        has_generator = true;
        argument = cpu_generator(device, argument.toOptional<at::Generator>());
      } else {
        argument = to_cpu(argument);
      }
    }
    const bool draws = op_.hasTag(at::Tag::nondeterministic_seeded) && !has_generator;
    draws ? with_device_numbers(device) : redispatch();
    twins_.write_back();
    for (size_t i = stack_->size() - op_.schema().returns().size(); i < stack_->size(); ++i) {
      (*stack_)[i] = to_device_side((*stack_)[i], device);
    }
    after_kernel(device);
  }

 private:
  static bool takes_generator(const c10::Argument& argument) {
    return argument.type()->str().find("Generator") != std::string::npos;
  }

  void redispatch() {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
  }

  // A kernel that draws and takes no generator uses the CPU's default one, which then holds the state of the device's.
  void with_device_numbers(int device) {
    auto numbers = cpu_generator(device, std::nullopt);
    auto cpu = at::detail::getDefaultCPUGenerator();
    const auto kept = cpu.get_state();
    cpu.set_state(numbers.get_state());
    redispatch();
    numbers.set_state(cpu.get_state());
    cpu.set_state(kept);
  }

  void find_device(const IValue& value) {
    if (value.isTensor()) {
      meet(value.toTensor());
    } else if (value.isDevice()) {
      device_ = device_ < 0 && value.toDevice().has_index() ? value.toDevice().index() : device_;
    } else if (value.isList()) {
      for (const IValue& item : value.toListRef()) {
        find_device(item);
      }
    }
  }

  void meet(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    const bool is_other_device = is_on_device(tensor) && device_ >= 0 && index_of(tensor) != device_;
    const bool is_cpu_data = tensor.is_cpu() && tensor.dim() > 0 && !takes_cpu_tensors(op_.schema().name());
    cpu_data_ |= is_cpu_data;
    if (is_on_device(tensor) && device_ < 0) {
      device_ = index_of(tensor);
    }
    TORCH_CHECK(
        !is_other_device && !(cpu_data_ && device_ >= 0),
        "Expected all tensors to be on the same device, but found at least two devices, ", c10::get_privateuse1_backend(), ":",
        device_, " and ", is_other_device ? tensor.device().str() : std::string("cpu"), "! (when checking arguments for ",
        op_.schema().name(), ")");
  }

  IValue to_cpu(const IValue& value) {
    if (value.isTensor()) {
      return twins_.of(value.toTensor());
    }
    if (value.isDevice()) {
      return c10::Device(c10::DeviceType::CPU);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) {
        list.push_back(twins_.of(item));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : value.toOptionalTensorVector()) {
        list.push_back(item ? std::optional(twins_.of(*item)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  IValue to_device_side(const IValue& value, int device) const {
    if (value.isTensor()) {
      return twins_.back(value.toTensor(), device);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) {
        list.push_back(twins_.back(item, device));
      }
      return list;
    }
    return value;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  Twins twins_;
  int device_ = -1;
  bool cpu_data_ = false;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}

// torch leaves convolutions to a device of a third party whole, with names of their own.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
  const int device = index_of(input);
  before_kernel(device);
  const auto offset = bias && bias->defined() ? std::optional(on_cpu(*bias)) : std::nullopt;
  const auto result = at::convolution(
      on_cpu(input), on_cpu(weight), offset, stride, padding, dilation, transposed, output_padding, groups);
  after_kernel(device);
  return to_device(result, device);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> needed) {
  const int device = index_of(input);
  before_kernel(device);
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), c10::IntArrayRef{channels}, stride, padding, dilation, transposed,
      output_padding, groups, needed);
  after_kernel(device);
  const auto place = [device](const at::Tensor& tensor) { return tensor.defined() ? to_device(tensor, device) : tensor; };
  return {place(of_input), place(of_weight), place(of_bias)};
}

// Copies.
// The bytes arrive at the end of the time that the copy takes.
void copy_on_stream(int device, at::Tensor to, at::Tensor from) {
  enqueue(device, current_stream(device), [to = std::move(to), from = std::move(from)] {
    c10::InferenceMode no_autograd;
    sleep_ms(knobs().copy_ms);
    at::native::copy_(const_cast<at::Tensor&>(to), from, false);
  });
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int device = index_of(to);
  // What is pinned is read when the copy takes place; other memory is copied now, and may change afterwards.
  const bool is_pinned = non_blocking && from.is_pinned() && from.scalar_type() == to.scalar_type();
  const auto source = is_pinned ? from : from.to(to.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  copy_on_stream(device, on_cpu(to), source);
  if (!non_blocking) {
    drain(device, current_stream(device));
  }
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int device = index_of(from);
  copy_on_stream(device, to, on_cpu(from));
  if (!non_blocking || !to.is_pinned()) {
    drain(device, current_stream(device));
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) {
    return to;
  }
  if (is_on_device(from) && is_on_device(to)) {
    before_kernel(index_of(from));
    before_kernel(index_of(to));
    on_cpu(to).copy_(on_cpu(from));
    after_kernel(index_of(to));
  } else if (is_on_device(to)) {
    copy_to_device(from, to, non_blocking);
  } else {
    copy_to_host(from, to, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  before_kernel(index_of(tensor));
  return at::native::_local_scalar_dense_cpu(on_cpu(tensor));
}

// Making and viewing tensors.
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device chosen_device(const std::optional<c10::Device>& device) {
  return device.value_or(c10::Device(c10::DeviceType::PrivateUse1));
}

at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device,
    std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(chosen_device(device));
  auto* allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(chosen_device(device));
  auto* allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), allocator, kKeys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset) {
    start = offset->guard_int(__FILE__, __LINE__);
  }
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor& set_storage_at(
    at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage_at(self, std::move(storage), 0, {count}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  auto sizes = source.sym_sizes();
  return set_storage_at(self, source.storage(), source.sym_storage_offset(), sizes, source.sym_strides());
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  const auto& pointer = self.storage().data_ptr();
  use_on(pointer.get(), stream.device_index(), stream.id());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("view", &view);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_at);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  // Without these, torch calls the variants with an output, which resize it with a warning.
  m.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("smooth_l1_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace

at::Tensor cpu_twin(const at::Tensor& tensor) {
  return is_on_device(tensor) ? on_cpu(tensor) : tensor;
}

}  // namespace emulated

namespace at::autocast {

#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FULL_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FULL)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULL_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
}

}  // namespace at::autocast
