// The client side of a fenced session for C++17: packets and the connection.
//
// Every kind, enum and struct comes from the repository's own abi/*.capnp through `capnp compile -oc++`; the only
// layout written out by hand is the 8-byte packet header that stands in front of each message (session.capnp, top).
//
//   packet  = header {kind u16, abiVersion u16, descriptors u8, flags u8, reserved u16 = 0} + one message
//   message = 8-byte segment table + one segment, objects in pre-order, every struct at its full length
//
// Errors: Refused carries the daemon's own words; Fault is everything else that went wrong here or on the wire.
// A Cap'n Proto message that is malformed inside raises kj::Exception when it is read.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <capnp/message.h>
#include <capnp/schema.h>
#include <capnp/serialize.h>

#include "posix.hpp"
#include "result.capnp.h"
#include "session.capnp.h"

namespace fenced {

constexpr std::int64_t kReplyTimeoutNs = 5 * kNsPerS;  // for the answer to one packet
constexpr std::size_t kMaxPacketBytes = 1 << 16;       // of what a daemon may send; a longer packet is a Fault
constexpr std::size_t kMaxDescriptors = 64;            // in one packet, either way
constexpr std::size_t kLeaseBytes = 64;  // of the lease page for each slot (session.capnp RegisterBuffers)

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packets are little endian and are written here as words");

// ---- errors -----------------------------------------------------------------------------------------------------

// The name of an enumerant as the schema spells it; its number if it is newer than this build's schema.
template <typename E>
std::string name_of(E value) {
  const auto ordinal = static_cast<std::uint16_t>(value);
  const auto enumerants = capnp::Schema::from<E>().getEnumerants();
  if (ordinal >= enumerants.size()) return std::to_string(ordinal);
  return enumerants[ordinal].getProto().getName().cStr();
}

// The daemon said no. `what()` is its whole answer; the exit code is 3.
struct Refused : std::runtime_error {
  explicit Refused(abi::Refusal::Reader refusal) : std::runtime_error(describe(refusal)), code(refusal.getCode()) {}

  abi::RefusalCode code;

 private:
  static std::string describe(abi::Refusal::Reader refusal) {
    std::string text = "the daemon refused ";
    text += name_of(static_cast<abi::Kind>(refusal.getInReplyTo())) + ": " + name_of(refusal.getCode());
    text += std::string("\n  what:     ") + refusal.getWhat().cStr();
    text += std::string("\n  expected: ") + refusal.getExpected().cStr();
    text += std::string("\n  found:    ") + refusal.getFound().cStr();
    text += std::string("\n  action:   ") + refusal.getAction().cStr();
    return text;
  }
};

// ---- packets ----------------------------------------------------------------------------------------------------

// A whole packet in words: the header is the first, so that the message behind it is aligned.
using Words = std::vector<std::uint64_t>;

inline std::uint64_t header_word(abi::Kind kind, std::size_t descriptors) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(abi::ABI_VERSION) << 16 |
         static_cast<std::uint64_t>(descriptors) << 32;
}

// The packet of `kind` that carries `value`, byte for byte what every other conforming peer would send.
// Copying the value puts its objects into pre-order, in one segment, whatever order they were set in. Structs keep
// their full length: a flat packet has a fixed size, so Cap'n Proto's canonicalize(), which drops zero words, is wrong.
template <typename Reader>
Words encode(abi::Kind kind, std::size_t descriptors, Reader value) {
  const std::size_t segment_words = value.totalSize().wordCount + 1;
  capnp::MallocMessageBuilder builder(static_cast<capnp::uint>(segment_words));
  builder.setRoot(value);
  const auto segments = builder.getSegmentsForOutput();
  if (segments.size() != 1) throw Fault("a message of more than one segment");
  Words packet{header_word(kind, descriptors), static_cast<std::uint64_t>(segments[0].size()) << 32};
  packet.resize(2 + segments[0].size());
  std::memcpy(packet.data() + 2, segments[0].begin(), segments[0].size() * sizeof(capnp::word));
  return packet;
}

// One received packet, its frame already checked. Readers from `as` live as long as the packet.
class Packet {
 public:
  Packet(const Words& inbox, std::size_t bytes, std::vector<Descriptor> received) : descriptors(std::move(received)) {
    const std::size_t words = bytes / sizeof(std::uint64_t);
    require(words >= 2 && bytes % sizeof(std::uint64_t) == 0, "length", "a multiple of 8 from 16", bytes);
    words_.assign(inbox.begin(), inbox.begin() + static_cast<std::ptrdiff_t>(words));
    const std::uint64_t header = words_[0], table = words_[1];
    require((header >> 16 & 0xffff) == abi::ABI_VERSION, "abiVersion", std::to_string(abi::ABI_VERSION),
            header >> 16 & 0xffff);
    require((header >> 32 & 0xff) == descriptors.size(), "descriptors",
            std::to_string(descriptors.size()) + ", as many as came", header >> 32 & 0xff);
    require(header >> 40 == 0, "flags and reserved", "0", header >> 40);
    require((table & 0xffffffff) == 0, "segments", "1", (table & 0xffffffff) + 1);
    const std::uint64_t segment_words = words - 2;
    require(table >> 32 == segment_words, "words of the message", std::to_string(segment_words), table >> 32);
    kind = static_cast<abi::Kind>(header & 0xffff);
    const auto* const message = reinterpret_cast<const capnp::word*>(words_.data() + 1);
    message_ = std::make_unique<capnp::FlatArrayMessageReader>(kj::arrayPtr(message, segment_words + 1));
  }

  template <typename T>
  typename T::Reader as() {
    return message_->getRoot<T>();
  }

  abi::Kind kind = abi::Kind::INVALID;
  std::vector<Descriptor> descriptors;

 private:
  static void require(bool holds, const char* what, const std::string& expected, std::uint64_t found) {
    if (holds) return;
    throw Fault(std::string("packet from the daemon, ") + what + ": expected " + expected + ", found " +
                std::to_string(found));
  }

  Words words_;
  std::unique_ptr<capnp::FlatArrayMessageReader> message_;
};

// ---- the connection ---------------------------------------------------------------------------------------------

class Connection {
 public:
  // Connects to one of the daemon's sockets and says hello in the socket's role.
  Connection(const std::string& path, abi::Role role, const std::string& name)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    if (socket_.get() < 0) fail_errno("socket");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw Fault("socket path too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size());
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      fail_errno("connect to " + path);
    }
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<abi::Hello>();
    hello.setRole(role);
    hello.setName(name);
    send(abi::Kind::HELLO, hello.asReader());
    welcome_ = std::make_unique<Packet>(expect(abi::Kind::WELCOME, 0));
  }

  int fileno() const { return socket_.get(); }
  abi::Welcome::Reader welcome() const { return welcome_->as<abi::Welcome>(); }

  // Sends one packet with copies of `descriptors`. Waits while the daemon's queue is full.
  template <typename Reader>
  void send(abi::Kind kind, Reader value, const std::vector<int>& descriptors = {}) {
    send_words(encode(kind, descriptors.size(), value), descriptors);
  }

  // The next packet, or nothing when the deadline (CLOCK_MONOTONIC) passed or the program shall stop.
  // Throws Refused for a Refusal, Fault for a Bye, a closed session or a packet that is not well formed.
  std::optional<Packet> receive(std::int64_t deadline_ns) {
    if (wait_for(socket_.get(), POLLIN, deadline_ns) != Wait::ready) return std::nullopt;
    std::optional<Packet> packet = receive_now();
    if (!packet) return std::nullopt;
    if (packet->kind == abi::Kind::REFUSAL) throw Refused(packet->as<abi::Refusal>());
    if (packet->kind == abi::Kind::BYE) {
      throw Fault(std::string("the daemon ended the session: ") + packet->as<abi::Bye>().getReason().cStr());
    }
    return packet;
  }

  // The answer of `kind` with exactly `descriptors`, within kReplyTimeoutNs.
  Packet expect(abi::Kind kind, std::size_t descriptors) {
    std::optional<Packet> packet = receive(now_ns() + kReplyTimeoutNs);
    if (!packet) throw Fault(stop_requested ? "stopped while opening the session" : "no answer from the daemon");
    require_kind(*packet, kind, descriptors);
    return std::move(*packet);
  }

  static void require_kind(const Packet& packet, abi::Kind kind, std::size_t descriptors) {
    if (packet.kind == kind && packet.descriptors.size() == descriptors) return;
    throw Fault("packet from the daemon: expected " + name_of(kind) + " with " + std::to_string(descriptors) +
                " descriptors, found " + name_of(packet.kind) + " with " + std::to_string(packet.descriptors.size()));
  }

  // Ends the session politely. The daemon may be gone already; that is no fault any more.
  void bye(const std::string& reason) {
    capnp::MallocMessageBuilder message;
    message.initRoot<abi::Bye>().setReason(reason);
    const Words packet = encode(abi::Kind::BYE, 0, message.getRoot<abi::Bye>().asReader());
    (void)::send(socket_.get(), packet.data(), packet.size() * sizeof packet[0], MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  // Room for the descriptors of one packet, aligned as the kernel asks.
  struct alignas(cmsghdr) Control {
    std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes{};
  };

  void send_words(const Words& packet, const std::vector<int>& descriptors) {
    if (descriptors.size() > kMaxDescriptors) throw Fault("too many descriptors for one packet");
    iovec part{const_cast<std::uint64_t*>(packet.data()), packet.size() * sizeof packet[0]};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    Control control;
    if (!descriptors.empty()) {
      const std::size_t payload = descriptors.size() * sizeof(int);
      message.msg_control = control.bytes.data();
      message.msg_controllen = CMSG_SPACE(payload);
      cmsghdr* const entry = CMSG_FIRSTHDR(&message);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(payload);
      std::memcpy(CMSG_DATA(entry), descriptors.data(), payload);
    }
    const std::int64_t deadline_ns = now_ns() + kReplyTimeoutNs;
    while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      if (errno == EPIPE || errno == ECONNRESET) explain_close();
      if (errno == EINTR) continue;
      if (errno != EAGAIN) fail_errno("sendmsg");
      if (wait_for(socket_.get(), POLLOUT, deadline_ns) != Wait::ready) throw Fault("the daemon takes no packets");
    }
  }

  // The daemon closed the session. If it said why, that Refusal still waits here and is thrown.
  [[noreturn]] void explain_close() {
    while (receive(now_ns())) {
    }
    throw Fault("the daemon closed the session");
  }

  std::optional<Packet> receive_now() {
    iovec part{inbox_.data(), kMaxPacketBytes};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    constexpr int flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
    ssize_t bytes = ::recvmsg(socket_.get(), &message, flags);
    // A peer that closes with our packets unread leaves ECONNRESET once; its last words are still queued behind it.
    if (bytes < 0 && errno == ECONNRESET) bytes = ::recvmsg(socket_.get(), &message, flags);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    if (bytes < 0) fail_errno("recvmsg");
    std::vector<Descriptor> descriptors = take_descriptors(message);  // owned before anything can throw
    if (bytes == 0) throw Fault("the daemon closed the session");
    if (message.msg_flags & MSG_TRUNC) {
      throw Fault("packet from the daemon: longer than " + std::to_string(kMaxPacketBytes) + " bytes");
    }
    if (message.msg_flags & MSG_CTRUNC) throw Fault("packet from the daemon: descriptors were lost");
    return Packet(inbox_, static_cast<std::size_t>(bytes), std::move(descriptors));
  }

  static std::vector<Descriptor> take_descriptors(msghdr& message) {
    std::vector<Descriptor> descriptors;
    descriptors.reserve(kMaxDescriptors);
    for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr; entry = CMSG_NXTHDR(&message, entry)) {
      if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t index = 0; index < count; ++index) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(entry) + index * sizeof fd, sizeof fd);
        descriptors.emplace_back(fd);
      }
    }
    return descriptors;
  }

  Descriptor socket_;
  Words inbox_ = Words(kMaxPacketBytes / sizeof(std::uint64_t));
  std::unique_ptr<Packet> welcome_;
};

}  // namespace fenced
