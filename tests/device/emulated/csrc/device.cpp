// The emulated accelerator as torch sees it: its allocators, device guard, generators and hooks.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <mutex>
#include <set>

namespace emulated {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

int index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const int device = current_device();
    void* pointer = emulated::allocate(device, size, current_stream(device));
    return {pointer, pointer, &release, c10::Device(kType, static_cast<c10::DeviceIndex>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(host_address(to), host_address(from), count);
  }
  bool initialized() override {
    return begun();
  }
  void emptyCache(c10::MempoolId_t) override {
    for (int device = 0; device < knobs().devices; ++device) {
      empty_cache(device);
    }
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (pointer) {
      use_on(pointer.get(), stream.device_index(), stream.id());
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto used = usage(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[kAggregate].current = used.allocated;
    stats.allocated_bytes[kAggregate].peak = used.peak_allocated;
    stats.reserved_bytes[kAggregate].current = used.reserved;
    stats.reserved_bytes[kAggregate].peak = used.peak_reserved;
    stats.num_ooms = used.out_of_memory;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {knobs().memory - usage(device).reserved, knobs().memory};
  }
};

// Pinned memory is ordinary memory that is known as pinned: a copy that is not waited for keeps it (kernels.cpp).
std::mutex pinned_mutex;
std::set<const char*>& pinned_blocks() {
  static auto* blocks = new std::set<const char*>;
  return *blocks;
}

struct PinnedHeader {
  size_t size;
  size_t padding[7];
};

void release_pinned(void* pointer) {
  if (pointer != nullptr) {
    std::lock_guard lock(pinned_mutex);
    pinned_blocks().erase(static_cast<char*>(pointer));
    std::free(static_cast<char*>(pointer) - sizeof(PinnedHeader));
  }
}

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t size) override {
    auto* start = static_cast<char*>(std::aligned_alloc(64, (size + sizeof(PinnedHeader) + 63) / 64 * 64));
    TORCH_CHECK(start != nullptr, "no memory to pin");
    reinterpret_cast<PinnedHeader*>(start)->size = size;
    char* pointer = start + sizeof(PinnedHeader);
    std::lock_guard lock(pinned_mutex);
    pinned_blocks().insert(pointer);
    return {pointer, pointer, &release_pinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release_pinned;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Memory memory;
PinnedMemory pinned_memory;

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  using Held = std::shared_ptr<Event>;

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto former = getDevice();
    if (device.has_index()) {
      set_current_device(device.index());
    }
    return former;
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device device) const override {
    exchangeDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(knobs().devices);
  }
  c10::Stream make(c10::Device device, c10::StreamId stream) const {
    const c10::Device indexed(kType, static_cast<c10::DeviceIndex>(index_of(device)));
    return c10::Stream(c10::Stream::UNSAFE, indexed, stream);
  }
  c10::Stream getStream(c10::Device device) const override {
    return make(device, current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make(device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return make(device, new_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return make(device, new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto former = getStream(stream.device());
    set_current_stream(stream.device_index(), stream.id());
    return former;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_idle(stream.device_index(), stream.id());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    drain(stream.device_index(), stream.id());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    drain_all(device);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  // An event of torch is a pointer, of which this guard owns what it points to.
  static Held& held(void* event) {
    return *static_cast<Held*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Held;
    }
    emulated::record(held(*event), stream.device_index(), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      wait_on_stream(held(event), stream.device_index(), stream.id());
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_done(held(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      wait(held(event));
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Held*>(event);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "both events must be recorded");
    return milliseconds_between(held(start), held(end));
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    memory.recordStream(pointer, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

// Numbers of the device come from a generator of the CPU's kind, one for each device.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator(c10::default_rng_seed_val)) {}
  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    inner.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner.get_offset();
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  static c10::DeviceType device_type() {
    return kType;
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->inner = inner.clone();
    return copy;
  }

  at::Generator inner;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return begun();
  }
  void init() const override {
    begin();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(knobs().devices);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto former = getCurrentDevice();
    set_current_device(device);
    return former;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    return {kType, static_cast<c10::DeviceIndex>(device_of(data))};
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard lock(pinned_mutex);
    const auto* address = static_cast<const char*>(data);
    auto after = pinned_blocks().upper_bound(address);
    if (after == pinned_blocks().begin()) {
      return false;
    }
    const char* start = *std::prev(after);
    const auto* header = reinterpret_cast<const PinnedHeader*>(start - sizeof(PinnedHeader));
    return address < start + std::max<size_t>(header->size, 1);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static auto* generators = [this] {
      auto* made = new std::vector<at::Generator>;
      for (int number = 0; number < kMostDevices; ++number) {
        made->push_back(getNewGenerator(static_cast<c10::DeviceIndex>(number)));
      }
      return made;
    }();
    return generators->at(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? getCurrentDevice() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* bytes = storage.unsafeGetStorageImpl();
    const auto former = bytes->device();
    c10::OptionalDeviceGuard guard(former);
    auto fresh = memory.allocate(size);
    const auto kept = std::min(size, bytes->nbytes());
    if (kept > 0) {
      drain(former.index(), current_stream(former.index()));
      memory.copy_data(fresh.get(), bytes->data(), kept);
    }
    bytes->set_data_ptr_noswap(std::move(fresh));
    bytes->set_nbytes(size);
  }
};

}  // namespace

at::Generator cpu_generator(int device, const std::optional<at::Generator>& given) {
  const auto& chosen = given && given->defined()
      ? *given
      : at::detail::getPrivateUse1Hooks().getDefaultGenerator(static_cast<c10::DeviceIndex>(device));
  TORCH_CHECK(
      chosen.device().type() == kType, "Expected a '", c10::get_privateuse1_backend(), "' device type for generator but found '",
      chosen.device().type(), "'");
  return static_cast<DeviceGenerator*>(chosen.unsafeGetGeneratorImpl())->inner;
}

void register_device() {
  c10::SetAllocator(kType, &memory);
  at::setHostAllocator(kType, &pinned_memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace emulated
