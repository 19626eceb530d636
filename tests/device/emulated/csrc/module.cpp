// What Python sees of the emulated accelerator, and its process group: gloo's, on the bytes of the device.
#include "device.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/extension.h>

#include <chrono>

namespace emulated {
namespace {

using Tensors = std::vector<at::Tensor>;

// Work of gloo whose results are tensors of the device.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> inner, Tensors outputs) : inner_(std::move(inner)), outputs_(std::move(outputs)) {}

  bool isCompleted() override {
    return inner_->isCompleted();
  }
  bool isSuccess() const override {
    return inner_->isSuccess();
  }
  std::exception_ptr exception() const override {
    return inner_->exception();
  }
  int sourceRank() const override {
    return inner_->sourceRank();
  }
  Tensors result() override {
    return outputs_;
  }
  void synchronize() override {
    inner_->synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    return inner_->wait(timeout);
  }
  void abort() override {
    inner_->abort();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto inner = inner_->getFuture();
    std::vector<c10::Device> devices;
    for (const auto& tensor : outputs_) {
      if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
        devices.push_back(tensor.device());
      }
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    inner->addCallback([future, outputs = outputs_](c10::ivalue::Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        future->markCompleted(c10::IValue(outputs));
      }
    });
    return future;
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  Tensors outputs_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Each collective waits for the current stream, as a kernel does, and hands gloo the bytes.
class DeviceBackend final : public c10d::Backend {
 public:
  explicit DeviceBackend(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override {
    return "emulated";
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return gloo_->getBackendOptions();
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(&Backend::broadcast, tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(&Backend::allreduce, tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return in_place(&Backend::allreduce_coalesced, tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return in_place(&Backend::reduce, tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return into_outputs(&Backend::allgather, outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return into_outputs(&Backend::_allgather_base, output, input, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return into_outputs(&Backend::allgather_into_tensor_coalesced, outputs, inputs, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return into_outputs(&Backend::gather, outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return into_outputs(&Backend::scatter, outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    return into_outputs(&Backend::reduce_scatter, outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return into_outputs(&Backend::_reduce_scatter_base, output, input, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return into_outputs(&Backend::reduce_scatter_tensor_coalesced, outputs, inputs, options);
  }
  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    auto to = bytes(output);
    auto from = bytes(input);
    return work(gloo_->alltoall_base(to, from, output_sizes, input_sizes, options), {output});
  }
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    auto twins = bytes(tensors);
    return work(gloo_->send(twins, rank, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    auto twins = bytes(tensors);
    return work(gloo_->recv(twins, rank, tag), tensors);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    auto plain = options;
    plain.device_ids.clear();
    plain.device.reset();
    return work(gloo_->barrier(plain), {});
  }

 private:
  template <class Options>
  WorkPtr in_place(WorkPtr (Backend::*collective)(Tensors&, const Options&), Tensors& tensors, const Options& options) {
    auto twins = bytes(tensors);
    return work((*gloo_.*collective)(twins, options), tensors);
  }
  template <class Outputs, class Inputs, class Options>
  WorkPtr into_outputs(
      WorkPtr (Backend::*collective)(Outputs&, Inputs&, const Options&), Outputs& outputs, Inputs& inputs,
      const Options& options) {
    auto to = bytes(outputs);
    auto from = bytes(inputs);
    return work((*gloo_.*collective)(to, from, options), flat(outputs));
  }
  static at::Tensor bytes(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_privateuseone()) {
      before_kernel(tensor.device().index());
    }
    return cpu_twin(tensor);
  }
  static Tensors bytes(const Tensors& tensors) {
    Tensors twins;
    for (const auto& tensor : tensors) {
      twins.push_back(bytes(tensor));
    }
    return twins;
  }
  static std::vector<Tensors> bytes(const std::vector<Tensors>& lists) {
    std::vector<Tensors> twins;
    for (const auto& tensors : lists) {
      twins.push_back(bytes(tensors));
    }
    return twins;
  }
  static Tensors flat(const at::Tensor& tensor) {
    return {tensor};
  }
  static Tensors flat(const Tensors& tensors) {
    return tensors;
  }
  static Tensors flat(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const auto& tensors : lists) {
      all.insert(all.end(), tensors.begin(), tensors.end());
    }
    return all;
  }
  static WorkPtr work(WorkPtr inner, Tensors outputs) {
    return c10::make_intrusive<DeviceWork>(std::move(inner), std::move(outputs));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

c10::intrusive_ptr<c10d::Backend> over_gloo(const c10::intrusive_ptr<c10d::Backend>& gloo) {
  return c10::make_intrusive<DeviceBackend>(gloo);
}

void delay(double milliseconds) {
  const int device = current_device();
  enqueue(device, current_stream(device), [milliseconds] { sleep_ms(milliseconds); });
}

// What torch refuses for a device of another package: the tensor becomes another one and keeps its identity.
struct Metadata : c10::TensorImpl {
  static void copy(const c10::TensorImpl* from, c10::TensorImpl* to) {
    copy_tensor_metadata(from, to, to->version_counter(), to->allow_tensor_metadata_change());
  }
};

void set_data(const at::Tensor& tensor, const at::Tensor& other) {
  Metadata::copy(other.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl());
  auto* autograd = torch::autograd::impl::get_autograd_meta(tensor);
  if (autograd != nullptr) {
    std::lock_guard lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
}

void configure(int devices, double copy_ms, double kernel_ms, double event_ms, int64_t memory, int64_t fault_after) {
  knobs() = {devices, copy_ms, kernel_ms, event_ms, memory, fault_after};
}

}  // namespace
}  // namespace emulated

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace emulated;
  register_device();
  m.def("begun", &begun);
  m.def("device_count", [] { return knobs().devices; });
  m.def("begin", &begin);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("delay", &delay, py::call_guard<py::gil_scoped_release>());
  m.def("configure", &configure);
  m.def("set_data", &set_data);
  m.def("default_generator", [](int device) {
    return at::globalContext().getAcceleratorHooksInterface(c10::DeviceType::PrivateUse1).getDefaultGenerator(
        static_cast<c10::DeviceIndex>(device));
  });
  m.def("over_gloo", &over_gloo);
}
