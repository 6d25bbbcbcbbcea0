// A consumer: subscribes to a model's results, maps the result ring read-only and prints each result with the fence
// that stands behind it.
//
// Nothing is ever locked: the ring's slots are overwritten whether we read them or not. So a result is copied first
// and believed only if the slot's sequence word is still the one that the Result packet named.

#include "fenced.hpp"
#include "program.hpp"
#include "tensor.hpp"

namespace {

using namespace fenced;

constexpr const char* kUsage =
    "usage: consumer --socket PATH --model NAME [options]\n"
    "  --policy NAME  latest: only the newest result waits; every: up to --queue wait   (latest)\n"
    "  --queue N      results that may wait under `every`, fewer than the ring has slots (4)\n"
    "  --count N      stop after N results                                              (never)\n"
    "  --name NAME    who subscribes, for the daemon's log                              (fenced-cpp)\n"
    "exit: 0 done, 1 fault, 2 usage, 3 refused by the daemon\n";

const std::vector<std::string> kOptions{"--socket", "--model", "--policy", "--queue", "--count", "--name"};

std::string hex(const std::uint8_t* bytes, std::size_t count) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t index = 0; index < count; ++index) {
    text += digits[bytes[index] >> 4];
    text += digits[bytes[index] & 15];
  }
  return text;
}

// The model digest of a receipt: four little-endian words.
std::string digest_of(abi::Result::Receipt::Reader receipt) {
  std::string text;
  for (const std::uint64_t word : {receipt.getModelDigest0(), receipt.getModelDigest1(), receipt.getModelDigest2(),
                                   receipt.getModelDigest3()}) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      const auto byte = static_cast<std::uint8_t>(word >> shift);
      text += hex(&byte, 1);
    }
  }
  return text;
}

// A subscription and its ring.
class Subscription {
 public:
  Subscription(Connection& connection, abi::Subscribe::Reader request)
      : subscribed_(subscribe(connection, request)), answer_(subscribed_.as<abi::Subscribed>()) {
    const std::uint64_t slots = answer_.getSlots(), slot_bytes = answer_.getSlotBytes();
    if (slots == 0 || slot_bytes < sizeof(std::uint64_t) || slot_bytes % sizeof(std::uint64_t) != 0 ||
        slot_bytes > kMostRingBytes / slots) {
      throw Fault("result ring: " + std::to_string(slots) + " slots of " + std::to_string(slot_bytes) + " bytes");
    }
    for (const auto output : answer_.getOutputs()) {
      tensors_.emplace_back(output);
      if (output.getOffset() > slot_bytes || output.getSizeBytes() > slot_bytes - output.getOffset()) {
        throw Fault("output " + tensors_.back().name + " reaches beyond its ring slot");
      }
    }
    require_shrink_sealed(subscribed_.descriptors[0]);
    ring_ = std::make_unique<Mapping>(subscribed_.descriptors[0], slots * slot_bytes, PROT_READ);
    copy_.resize(slot_bytes);
    std::cout << "subscribed model_digest=" << hex(answer_.getModelDigest().begin(), answer_.getModelDigest().size())
              << " slots=" << slots << " slot_bytes=" << slot_bytes;
    for (const Tensor& tensor : tensors_) std::cout << ' ' << tensor.describe();
    std::cout << std::endl;
  }

  // Copies and prints one result. A result that the ring has moved past is counted as torn and not shown.
  void show(Packet& packet) {
    Connection::require_kind(packet, abi::Kind::RESULT, 0);
    const auto result = packet.as<abi::Result>();
    const auto receipt = result.getReceipt();
    if (result.getSubscriptionId() != answer_.getSubscriptionId() || result.getSlot() >= answer_.getSlots() ||
        result.getSlotSequence() % 2 != 0) {
      throw Fault("result from the daemon: of another subscription, or of a slot that the ring does not have");
    }
    if (receipt.getFenceStatus() != abi::FenceStatus::SIGNALED) {
      throw Fault("result from the daemon: its fence is " + name_of(receipt.getFenceStatus()) + ", not signaled");
    }
    if (!copy_slot(result.getSlot(), result.getSlotSequence())) {
      std::cout << "torn slot=" << result.getSlot() << " fence=" << receipt.getFenceValue() << std::endl;
      return;
    }
    std::cout << "result sequence=" << receipt.getFrame0().getSequence()
              << " generation=" << receipt.getFrame0().getGeneration() << " frames=" << receipt.getFrameCount();
    for (const Tensor& tensor : tensors_) std::cout << ' ' << tensor.format(copy_.data());
    std::cout << " fence=" << receipt.getFenceValue() << " timeline=" << receipt.getTimeline()
              << " status=" << name_of(receipt.getFenceStatus()) << " flags=" << receipt.getFlags()
              << " run_ns=" << receipt.getCompletedNs() - receipt.getStartedNs()
              << " sof_to_published_ns=" << receipt.getPublishedNs() - receipt.getFrame0().getSofMonotonicNs()
              << " missed=" << result.getMissed() << " model=" << digest_of(receipt) << std::endl;
  }

 private:
  static constexpr std::uint64_t kMostRingBytes = std::uint64_t{1} << 34;

  static Packet subscribe(Connection& connection, abi::Subscribe::Reader request) {
    connection.send(abi::Kind::SUBSCRIBE, request);
    return connection.expect(abi::Kind::SUBSCRIBED, 1);
  }

  // The reader's half of a sequence lock. The first look only saves a vain copy. The copy may race with the daemon's
  // writes; then the second look at the word, which the fence keeps behind the copy, differs and the copy is dropped.
  bool copy_slot(std::uint32_t slot, std::uint64_t sequence) {
    const std::uint64_t at = slot * answer_.getSlotBytes();
    if (__atomic_load_n(ring_->word(at), __ATOMIC_ACQUIRE) != sequence) return false;
    std::memcpy(copy_.data(), ring_->data() + at, copy_.size());
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(ring_->word(at), __ATOMIC_RELAXED) == sequence;
  }

  Packet subscribed_;  // `answer_` reads from it
  abi::Subscribed::Reader answer_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<Mapping> ring_;
  std::vector<std::byte> copy_;
};

void run(int argc, char** argv) {
  const Options options(argc, argv, kOptions);
  const std::uint64_t count = options.number("--count", 0, 1, std::numeric_limits<std::uint32_t>::max());
  capnp::MallocMessageBuilder message;
  auto request = message.initRoot<abi::Subscribe>();
  request.setModel(options.text("--model"));
  request.setPolicy(options.enumerant<abi::DeliveryPolicy>("--policy", abi::DeliveryPolicy::LATEST));
  request.setQueue(static_cast<std::uint32_t>(options.number("--queue", 4, 1, 64)));

  Connection connection(options.text("--socket"), abi::Role::CONSUMER, options.text("--name", "fenced-cpp"));
  Subscription subscription(connection, request.asReader());
  for (std::uint64_t shown = 0; (count == 0 || shown < count) && !stop_requested;) {
    std::optional<Packet> packet = connection.receive(std::numeric_limits<std::int64_t>::max());
    if (!packet) continue;
    subscription.show(*packet);
    ++shown;
  }
  connection.bye("done");
}

}  // namespace

int main(int argc, char** argv) { return run_program("consumer", kUsage, argc, argv, run); }
