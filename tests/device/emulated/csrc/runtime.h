// The emulated accelerator below torch: memory, streams and events of two devices in host memory.
//
// Memory. Each device has a range of addresses that nothing may touch (a read by the CPU ends the process, as a pointer
// to a GPU's memory would) and a second mapping of the same pages, which only the kernels of this extension use.
// Streams. A stream is a queue with a thread. Copies, delays and events pass through it; a kernel waits for its own
// stream and runs at once in the caller's thread. So an operation on another stream that nobody waits for reads or writes
// too early or too late, as it would on a GPU.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace emulated {

constexpr int kMostDevices = 8;

// What a test sets: times in milliseconds, sizes in bytes, -1 for "never".
struct Knobs {
  int devices = 2;
  double copy_ms = 0;  // each copy between host and device completes that much later
  double kernel_ms = 0;  // each kernel occupies its stream for that time after it was called
  double event_ms = 0;  // each event completes that much later
  int64_t memory = int64_t{1} << 30;  // of each device
  int64_t fault_after = -1;  // kernels until the device fails; every later call fails too
};
Knobs& knobs();

void sleep_ms(double milliseconds);

// Starts using the device in this process; refuses in a child of a process that had already begun.
void begin();
bool in_bad_fork();
bool begun();

// Memory.
void* allocate(int device, size_t size, c10::StreamId stream);
void release(void* pointer);
void use_on(void* pointer, int device, c10::StreamId stream);  // record_stream
void empty_cache(int device);
void* host_address(const void* pointer);  // where the kernels find the bytes of a device pointer
int device_of(const void* pointer);  // -1: not memory of a device
struct Usage {
  int64_t allocated, peak_allocated, reserved, peak_reserved, out_of_memory;
};
Usage usage(int device);
void reset_peak(int device);

// Devices and streams; the current ones are per thread. Stream 0 is the default stream of a device.
int current_device();
void set_current_device(int device);
c10::StreamId current_stream(int device);
void set_current_stream(int device, c10::StreamId stream);
c10::StreamId new_stream(int device);
void enqueue(int device, c10::StreamId stream, std::function<void()> work);
void drain(int device, c10::StreamId stream);  // waits until the stream has done what it has now
void drain_all(int device);
bool is_idle(int device, c10::StreamId stream);

// Counts a kernel on the current stream after it waited for it, and occupies the stream if kernels are slow.
void before_kernel(int device);
void after_kernel(int device);

// Events. A record replaces the former one; what waits for the former one is not changed.
struct Event;
void record(std::shared_ptr<Event>& event, int device, c10::StreamId stream);
void wait_on_stream(const std::shared_ptr<Event>& event, int device, c10::StreamId stream);
bool is_done(const std::shared_ptr<Event>& event);
void wait(const std::shared_ptr<Event>& event);
double milliseconds_between(const std::shared_ptr<Event>& start, const std::shared_ptr<Event>& end);

}  // namespace emulated
