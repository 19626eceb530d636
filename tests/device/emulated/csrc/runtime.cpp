#include "runtime.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace emulated {
namespace {

using Clock = std::chrono::steady_clock;
using Guard = std::unique_lock<std::mutex>;

constexpr size_t kAddresses = size_t{1} << 36;  // of each device; pages that are not used cost nothing
constexpr size_t kRound = 512;

struct Block {
  size_t size;
  c10::StreamId stream;  // on which it was allocated
  std::set<c10::StreamId> used_on;  // by record_stream
};

// Works in the order of its queue, in a thread that starts with the first entry.
class Queue {
 public:
  void add(std::function<void()> work) {
    std::vector<std::function<void()>> done;
    {
      Guard lock(mutex_);
      if (!started_) {
        started_ = true;
        std::thread([this] { run(); }).detach();
      }
      waiting_.push_back(std::move(work));
      ++added_;
      done.swap(done_);
    }
    changed_.notify_all();
  }

  void drain() {
    std::vector<std::function<void()>> done;
    {
      Guard lock(mutex_);
      const uint64_t goal = added_;
      changed_.wait(lock, [&] { return finished_ >= goal; });
      done.swap(done_);
    }
  }

  bool is_idle() {
    Guard lock(mutex_);
    return finished_ == added_;
  }

  // Calls `then` once all that is queued now is done: at once, or by the thread.
  void after(std::function<void()> then) {
    if (is_idle()) {
      then();
    } else {
      add(std::move(then));
    }
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        Guard lock(mutex_);
        changed_.wait(lock, [&] { return !waiting_.empty(); });
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
      work();
      {
        Guard lock(mutex_);
        // What the work refers to is released by a thread of the program: this one must never wait for Python's lock.
        done_.push_back(std::move(work));
        ++finished_;
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::function<void()>> done_;
  uint64_t added_ = 0;
  uint64_t finished_ = 0;
  bool started_ = false;
};

struct DeviceState {
  char* addresses = nullptr;  // which nobody may touch
  char* host = nullptr;  // the same pages
  int file = -1;
  size_t end = 0;  // of what was ever used
  std::map<void*, Block> blocks;
  std::multimap<size_t, std::pair<void*, Block>> cached;
  Usage used{};
  std::mutex memory_mutex;
  std::vector<Queue*> streams{new Queue};
  std::mutex streams_mutex;
};

// Never destroyed: the threads of the streams outlive the end of the program's main function.
DeviceState* devices() {
  static auto* states = new DeviceState[kMostDevices];
  return states;
}

std::atomic<pid_t> owner{0};
std::atomic<int64_t> kernels_left{-1};
std::atomic<bool> failed{false};

thread_local int device_now = 0;
thread_local c10::StreamId streams_now[kMostDevices] = {};

Queue& queue(int device, c10::StreamId stream) {
  Guard lock(devices()[device].streams_mutex);
  return *devices()[device].streams.at(static_cast<size_t>(stream));
}

void drop_cached(DeviceState& state) {
  for (auto& [size, entry] : state.cached) {
    const auto offset = static_cast<size_t>(static_cast<char*>(entry.first) - state.addresses);
    madvise(state.host + offset, size, MADV_REMOVE);
    state.used.reserved -= static_cast<int64_t>(size);
  }
  state.cached.clear();
}

void* take_cached(DeviceState& state, size_t size, c10::StreamId stream) {
  for (auto at = state.cached.lower_bound(size); at != state.cached.end() && at->first <= 2 * size; ++at) {
    auto [pointer, block] = at->second;
    if (block.stream == stream) {
      state.cached.erase(at);
      state.blocks.emplace(pointer, block);
      return pointer;
    }
  }
  return nullptr;
}

std::string mebibytes(int64_t bytes) {
  return c10::str(static_cast<double>(bytes >> 10) / 1024.0, " MiB");
}

}  // namespace

void sleep_ms(double milliseconds) {
  if (milliseconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }
}

Knobs& knobs() {
  static auto* all = new Knobs;
  return *all;
}

bool begun() {
  return owner == getpid();
}

bool in_bad_fork() {
  return owner != 0 && !begun();
}

void begin() {
  static std::mutex once;
  if (begun()) {
    return;
  }
  Guard lock(once);
  TORCH_CHECK(
      !in_bad_fork(),
      "Cannot re-initialize the emulated device in a forked subprocess. To use it with multiprocessing, you must use the "
      "'spawn' start method");
  if (begun()) {
    return;
  }
  for (int device = 0; device < kMostDevices; ++device) {
    auto& state = devices()[device];
    state.file = memfd_create("emulated-device", MFD_CLOEXEC);
    TORCH_CHECK(state.file >= 0 && ftruncate(state.file, kAddresses) == 0, "the emulated device has no memory");
    const int shared = MAP_SHARED | MAP_NORESERVE;
    void* addresses = mmap(nullptr, kAddresses, PROT_NONE, shared, state.file, 0);
    void* host = mmap(nullptr, kAddresses, PROT_READ | PROT_WRITE, shared, state.file, 0);
    TORCH_CHECK(addresses != MAP_FAILED && host != MAP_FAILED, "the emulated device has no addresses");
    // A forked child must not write into the memory of its parent.
    madvise(host, kAddresses, MADV_DONTFORK);
    close(state.file);
    state.addresses = static_cast<char*>(addresses);
    state.host = static_cast<char*>(host);
  }
  kernels_left = knobs().fault_after;
  owner = getpid();
}

int device_of(const void* pointer) {
  const auto* address = static_cast<const char*>(pointer);
  for (int device = 0; device < kMostDevices; ++device) {
    const char* first = devices()[device].addresses;
    if (first != nullptr && address >= first && address < first + kAddresses) {
      return device;
    }
  }
  return -1;
}

void* host_address(const void* pointer) {
  if (pointer == nullptr) {
    return nullptr;
  }
  const int device = device_of(pointer);
  TORCH_CHECK(device >= 0, "an address that is not of the emulated device");
  const auto& state = devices()[device];
  return state.host + (static_cast<const char*>(pointer) - state.addresses);
}

void* allocate(int device, size_t size, c10::StreamId stream) {
  if (size == 0) {
    return nullptr;
  }
  begin();
  auto& state = devices()[device];
  Guard lock(state.memory_mutex);
  size = (size + kRound - 1) / kRound * kRound;
  void* pointer = take_cached(state, size, stream);
  if (pointer == nullptr) {
    const auto needed = static_cast<int64_t>(size);
    if (state.used.reserved + needed > knobs().memory) {
      drop_cached(state);
    }
    if (state.used.reserved + needed > knobs().memory) {
      ++state.used.out_of_memory;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "Emulated device out of memory. Tried to allocate ", mebibytes(needed), ". GPU ",
          device, " has a total capacity of ", mebibytes(knobs().memory), " of which ",
          mebibytes(knobs().memory - state.used.reserved), " is free.");
    }
    TORCH_CHECK(state.end + size <= kAddresses, "the emulated device has no addresses left");
    pointer = state.addresses + state.end;
    state.end += size;
    state.blocks.emplace(pointer, Block{size, stream, {}});
    state.used.reserved += needed;
    state.used.peak_reserved = std::max(state.used.peak_reserved, state.used.reserved);
  }
  state.used.allocated += static_cast<int64_t>(state.blocks.at(pointer).size);
  state.used.peak_allocated = std::max(state.used.peak_allocated, state.used.allocated);
  return pointer;
}

// The block can be allocated again at once, on its own stream: what it still does there comes first. Streams named by
// record_stream are waited for.
void release(void* pointer) {
  if (pointer == nullptr || !begun()) {
    return;
  }
  const int device = device_of(pointer);
  auto& state = devices()[device];
  Block block;
  {
    Guard lock(state.memory_mutex);
    auto at = state.blocks.find(pointer);
    block = at->second;
    state.blocks.erase(at);
    state.used.allocated -= static_cast<int64_t>(block.size);
  }
  auto free_now = [&state, pointer, plain = Block{block.size, block.stream, {}}] {
    Guard lock(state.memory_mutex);
    state.cached.emplace(plain.size, std::make_pair(pointer, plain));
  };
  std::function<void()> then = free_now;
  for (auto stream : block.used_on) {
    then = [device, stream, next = std::move(then)] { queue(device, stream).after(next); };
  }
  then();
}

void use_on(void* pointer, int device, c10::StreamId stream) {
  auto& state = devices()[device];
  Guard lock(state.memory_mutex);
  auto at = state.blocks.find(pointer);
  if (at != state.blocks.end() && at->second.stream != stream) {
    at->second.used_on.insert(stream);
  }
}

void empty_cache(int device) {
  Guard lock(devices()[device].memory_mutex);
  drop_cached(devices()[device]);
}

Usage usage(int device) {
  Guard lock(devices()[device].memory_mutex);
  return devices()[device].used;
}

void reset_peak(int device) {
  Guard lock(devices()[device].memory_mutex);
  auto& used = devices()[device].used;
  used.peak_allocated = used.allocated;
  used.peak_reserved = used.reserved;
}

int current_device() {
  return device_now;
}

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < knobs().devices, "invalid device ordinal ", device, " of ", knobs().devices, " devices");
  device_now = device;
}

c10::StreamId current_stream(int device) {
  return streams_now[device];
}

void set_current_stream(int device, c10::StreamId stream) {
  streams_now[device] = stream;
}

c10::StreamId new_stream(int device) {
  begin();
  Guard lock(devices()[device].streams_mutex);
  devices()[device].streams.push_back(new Queue);
  return static_cast<c10::StreamId>(devices()[device].streams.size()) - 1;
}

void enqueue(int device, c10::StreamId stream, std::function<void()> work) {
  begin();
  queue(device, stream).add(std::move(work));
}

void drain(int device, c10::StreamId stream) {
  queue(device, stream).drain();
}

void drain_all(int device) {
  size_t count;
  {
    Guard lock(devices()[device].streams_mutex);
    count = devices()[device].streams.size();
  }
  for (size_t stream = 0; stream < count; ++stream) {
    drain(device, static_cast<c10::StreamId>(stream));
  }
}

bool is_idle(int device, c10::StreamId stream) {
  return queue(device, stream).is_idle();
}

void before_kernel(int device) {
  begin();
  if (kernels_left > 0 && --kernels_left == 0) {
    failed = true;
  }
  if (failed) {
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 700, "emulated device: an illegal memory access was encountered");
  }
  drain(device, current_stream(device));
}

void after_kernel(int device) {
  if (knobs().kernel_ms > 0) {
    enqueue(device, current_stream(device), [time = knobs().kernel_ms] { sleep_ms(time); });
  }
}

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Clock::time_point time;
};

void record(std::shared_ptr<Event>& event, int device, c10::StreamId stream) {
  event = std::make_shared<Event>();
  auto complete = [event = event] {
    sleep_ms(knobs().event_ms);
    {
      Guard lock(event->mutex);
      event->done = true;
      event->time = Clock::now();
    }
    event->changed.notify_all();
  };
  if (knobs().event_ms > 0) {
    enqueue(device, stream, complete);
  } else {
    queue(device, stream).after(complete);
  }
}

void wait(const std::shared_ptr<Event>& event) {
  if (event) {
    Guard lock(event->mutex);
    event->changed.wait(lock, [&] { return event->done; });
  }
}

void wait_on_stream(const std::shared_ptr<Event>& event, int device, c10::StreamId stream) {
  if (!is_done(event)) {
    enqueue(device, stream, [event] { wait(event); });
  }
}

bool is_done(const std::shared_ptr<Event>& event) {
  if (!event) {
    return true;
  }
  Guard lock(event->mutex);
  return event->done;
}

double milliseconds_between(const std::shared_ptr<Event>& start, const std::shared_ptr<Event>& end) {
  TORCH_CHECK(is_done(start) && is_done(end) && start && end, "both events must be recorded and completed");
  return std::chrono::duration<double, std::milli>(end->time - start->time).count();
}

}  // namespace emulated
