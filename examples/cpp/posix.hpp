// What a client needs of Linux: descriptors that close themselves, waits that a signal can end, sealed memory.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace fenced {

constexpr std::int64_t kNsPerS = 1'000'000'000;

// Ours or the wire's: the program ends with exit code 1.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail_errno(const std::string& what) {
  const int error = errno;
  throw Fault(what + ": " + std::generic_category().message(error));
}

// ---- descriptors and time ---------------------------------------------------------------------------------------

// Owns one file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

inline std::int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) fail_errno("clock_gettime");
  return static_cast<std::int64_t>(time.tv_sec) * kNsPerS + time.tv_nsec;
}

enum class Wait { ready, timeout, stopped };

// SIGINT and SIGTERM end a wait, and nothing else: they are blocked outside `wait_for`, so none is ever missed.
inline volatile std::sig_atomic_t stop_requested = 0;
inline const sigset_t* mask_while_waiting = nullptr;

inline void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM}) {
    sigaddset(&blocked, number);
    if (::sigaction(number, &action, nullptr) != 0) fail_errno("sigaction");
  }
  static sigset_t before;
  if (::sigprocmask(SIG_BLOCK, &blocked, &before) != 0) fail_errno("sigprocmask");
  mask_while_waiting = &before;
}

// Waits until `fd` is ready for `events` (or has hung up), or CLOCK_MONOTONIC reaches `deadline_ns`.
inline Wait wait_for(int fd, short events, std::int64_t deadline_ns) {
  for (;;) {
    if (stop_requested) return Wait::stopped;
    const std::int64_t left_ns = std::max<std::int64_t>(deadline_ns - now_ns(), 0);
    const timespec timeout{static_cast<time_t>(left_ns / kNsPerS), static_cast<long>(left_ns % kNsPerS)};
    pollfd entry{fd, events, 0};
    const int count = ::ppoll(&entry, 1, &timeout, mask_while_waiting);
    if (count > 0) return Wait::ready;
    if (count < 0 && errno != EINTR) fail_errno("ppoll");
    if (count == 0 && left_ns == 0) return Wait::timeout;
  }
}

// ---- memory -----------------------------------------------------------------------------------------------------

// A memfd of exactly `bytes` zeros that can never shrink or grow and is not executable.
inline Descriptor create_sealed(const char* name, std::size_t bytes) {
  constexpr unsigned kNoExecSeal = 0x0008;  // MFD_NOEXEC_SEAL: since Linux 6.3; older kernels answer EINVAL
  int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail_errno("memfd_create");
  Descriptor memory(fd);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail_errno("ftruncate of a memfd");
  if (::fchmod(fd, 0644) != 0) fail_errno("fchmod of a memfd");  // so that a recorder cannot write it
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail_errno("F_ADD_SEALS");
  return memory;
}

// Throws Fault unless the owner of received memory can no longer shrink it, which would turn our reads into SIGBUS.
inline void require_shrink_sealed(const Descriptor& memory) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) throw Fault("memory from the daemon: not sealed against shrinking");
}

// A shared mapping of a whole descriptor: `bytes` from its start.
class Mapping {
 public:
  Mapping(const Descriptor& memory, std::size_t bytes, int protection) : bytes_(bytes) {
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0) fail_errno("fstat");
    if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
      throw Fault("memory: expected at least " + std::to_string(bytes) + " bytes, found " +
                  std::to_string(status.st_size));
    }
    void* const address = ::mmap(nullptr, bytes, protection, MAP_SHARED, memory.get(), 0);
    if (address == MAP_FAILED) fail_errno("mmap");
    data_ = static_cast<std::byte*>(address);
  }
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // The u64 at a multiple of 8, shared with another process; used with the compiler's __atomic operations.
  std::uint64_t* word(std::size_t offset) const { return reinterpret_cast<std::uint64_t*>(data_ + offset); }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace fenced
