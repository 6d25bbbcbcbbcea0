// A camera: opens a stream, shares its buffers once, and gives the daemon one written slot a frame.
//
// Without --input it is live: it draws a moving test picture, and when no slot is free at a frame's time that frame is
// dropped and its sequence number skipped, as a sensor would. With --input it replays: every frame of the file is
// sent, and the next one waits for a slot.

#include "fenced.hpp"
#include "pixels.hpp"
#include "program.hpp"

namespace {

using namespace fenced;

constexpr const char* kUsage =
    "usage: camera --socket PATH --stream NAME --format NAME --size WxH --range R --matrix M --primaries P\n"
    "              --transfer T --chroma-site S [options]\n"
    "  --format       NV12 NV21 YU12 YUYV UYVY RGB24 BGR24 ABGR8888 XRGB8888 R8 R10 R12 R16 SRGGB10P ... SBGGR12P\n"
    "  --range --matrix --primaries --transfer --chroma-site    by the names of abi/frame.capnp; nothing is guessed\n"
    "  --cfa NAME     mosaic order of R8..R16; packed Bayer names have their own        (none)\n"
    "  --stride N     bytes between rows of the first plane                             (tight)\n"
    "  --rows N       luma rows with room in the buffer                                 (the height)\n"
    "  --crop X,Y,W,H valid part of the picture                                         (all of it)\n"
    "  --clock NAME   clock of the frame times                                          (monotonic)\n"
    "  --mark NAME    the instant a frame time marks                                    (exposureStart)\n"
    "  --name NAME    the camera's name                                                 (fenced-cpp)\n"
    "  --rate-hz X    frames a second                                                   (20)\n"
    "  --count N      stop after N frames                                               (never)\n"
    "  --slots N      buffers, as far as the daemon allows                              (4)\n"
    "  --input PATH   raw frames of the buffer's size, one after another; - is stdin    (test picture)\n"
    "exit: 0 done, 1 fault, 2 usage, 3 refused by the daemon\n";

const std::vector<std::string> kOptions{
    "--socket", "--stream", "--format", "--size", "--range", "--matrix", "--primaries", "--transfer", "--chroma-site",
    "--cfa",    "--stride", "--rows",   "--crop", "--clock", "--mark",   "--name",      "--rate-hz",  "--count",
    "--slots",  "--input"};

clockid_t posix_clock(abi::ClockId clock) {
  switch (clock) {
    case abi::ClockId::BOOTTIME: return CLOCK_BOOTTIME;
    case abi::ClockId::REALTIME: return CLOCK_REALTIME;
    case abi::ClockId::TAI: return CLOCK_TAI;
    default: return CLOCK_MONOTONIC;
  }
}

// The session of one camera with one stream.
class Camera {
 public:
  struct Slot {
    Mapping pixels;
    std::uint64_t* control_word;   // odd while we write (session.capnp RegisterBuffers)
    std::uint64_t generation = 0;  // of the last Submit
    std::uint64_t sequence = 0;    // of the last Submit
    bool held = false;             // by the daemon, until its Release
  };

  Camera(const std::string& path, const std::string& name) : connection_(path, abi::Role::CAMERA, name) {}

  // Returns how many buffers the daemon will register.
  std::uint32_t open(abi::OpenStream::Reader request) {
    connection_.send(abi::Kind::OPEN_STREAM, request);
    Packet answer = connection_.expect(abi::Kind::STREAM_OPENED, 0);
    stream_id_ = answer.as<abi::StreamOpened>().getStreamId();
    return answer.as<abi::StreamOpened>().getMaxSlots();
  }

  // Shares the lease page and `count` buffers. Returns whether the accelerator reads them in place.
  bool register_buffers(std::uint32_t count, std::size_t buffer_bytes) {
    std::vector<Descriptor> memory;
    memory.push_back(create_sealed("fenced-lease", count * kLeaseBytes));
    lease_page_ = std::make_unique<Mapping>(memory[0], count * kLeaseBytes, PROT_READ | PROT_WRITE);
    std::vector<int> descriptors{memory[0].get()};
    for (std::uint32_t index = 0; index < count; ++index) {
      memory.push_back(create_sealed("fenced-frame", buffer_bytes));
      descriptors.push_back(memory.back().get());
      slots_.push_back({Mapping(memory.back(), buffer_bytes, PROT_READ | PROT_WRITE),
                        lease_page_->word(index * kLeaseBytes)});
    }
    capnp::MallocMessageBuilder message;
    auto request = message.initRoot<abi::RegisterBuffers>();
    request.setStreamId(stream_id_);
    request.setSlots(count);
    connection_.send(abi::Kind::REGISTER_BUFFERS, request.asReader(), descriptors);
    Packet answer = connection_.expect(abi::Kind::BUFFERS_REGISTERED, 0);
    return answer.as<abi::BuffersRegistered>().getZeroCopy();
  }

  Slot* free_slot() {
    for (Slot& slot : slots_) {
      if (!slot.held) return &slot;
    }
    return nullptr;
  }

  std::size_t held() const {
    std::size_t count = 0;
    for (const Slot& slot : slots_) count += slot.held ? 1 : 0;
    return count;
  }

  // Raises the control word before the first byte of a frame is written, and `submit` lowers it after the last, so
  // that the daemon can tell a frame that was touched while it held it.
  static void begin_write(Slot& slot) {
    __atomic_store_n(slot.control_word, *slot.control_word + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
  }

  // Gives a written slot to the daemon. Its pixels must not be touched until its Release has come.
  void submit(Slot& slot, std::uint64_t sequence, std::int64_t sof_ns, std::int64_t eof_ns) {
    __atomic_store_n(slot.control_word, *slot.control_word + 1, __ATOMIC_RELEASE);
    capnp::MallocMessageBuilder message;
    auto submit = message.initRoot<abi::Submit>();
    submit.setStreamId(stream_id_);
    submit.setSlot(static_cast<std::uint32_t>(&slot - slots_.data()));
    submit.setGeneration(slot.generation + 1);
    submit.setSequence(sequence);
    submit.setSofNs(sof_ns);
    submit.setEofNs(eof_ns);
    submit.setControlWord(*slot.control_word);
    connection_.send(abi::Kind::SUBMIT, submit.asReader());
    slot.generation += 1;
    slot.sequence = sequence;
    slot.held = true;
  }

  // Takes one slot back and prints how. False when none came before the deadline (CLOCK_MONOTONIC).
  bool take_release(std::int64_t deadline_ns) {
    std::optional<Packet> packet = connection_.receive(deadline_ns);
    if (!packet) return false;
    Connection::require_kind(*packet, abi::Kind::RELEASE, 0);
    const auto release = packet->as<abi::Release>();
    const std::uint32_t index = release.getSlot();
    if (release.getStreamId() != stream_id_ || index >= slots_.size() || !slots_[index].held ||
        release.getGeneration() != slots_[index].generation || release.getSequence() != slots_[index].sequence) {
      throw Fault("release from the daemon: of a slot, generation or sequence that it does not hold");
    }
    slots_[index].held = false;
    std::cout << "release slot=" << index << " generation=" << release.getGeneration()
              << " sequence=" << release.getSequence() << " status=" << name_of(release.getStatus())
              << " code=" << name_of(release.getCode()) << " held_ns=" << release.getHeldNs() << std::endl;
    return true;
  }

  void close() {
    capnp::MallocMessageBuilder message;
    auto request = message.initRoot<abi::CloseStream>();
    request.setStreamId(stream_id_);
    connection_.send(abi::Kind::CLOSE_STREAM, request.asReader());
    connection_.bye("done");
  }

 private:
  Connection connection_;
  std::uint32_t stream_id_ = 0;
  std::unique_ptr<Mapping> lease_page_;
  std::vector<Slot> slots_;
};

// Raw frames from a file or a pipe.
class Input {
 public:
  explicit Input(const std::string& path)
      : path_(path), file_(path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_.get() < 0) fail_errno(path_);
  }

  // Fills `buffer`. False at the end of the input or when the program shall stop; a part of a frame is a Fault.
  bool read(std::byte* buffer, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      if (wait_for(file_.get(), POLLIN, std::numeric_limits<std::int64_t>::max()) != Wait::ready) return false;
      const ssize_t count = ::read(file_.get(), buffer + done, bytes - done);
      if (count < 0 && errno != EINTR && errno != EAGAIN) fail_errno(path_);
      if (count == 0 && done == 0) return false;
      if (count == 0) {
        throw Fault(path_ + ": expected whole frames of " + std::to_string(bytes) + " bytes, found " +
                    std::to_string(done) + " at the end");
      }
      if (count > 0) done += static_cast<std::size_t>(count);
    }
    return true;
  }

 private:
  std::string path_;
  Descriptor file_;
};

void describe(abi::StreamFormat::Builder format, const Layout& layout, const Options& options,
              std::uint64_t period_ns) {
  format.setFourcc(layout.pixel->fourcc());
  format.setModifier(0);  // DRM_FORMAT_MOD_LINEAR
  format.setWidth(layout.width);
  format.setHeight(layout.height);
  std::vector<std::uint32_t> crop{0, 0, layout.width, layout.height};
  if (options.has("--crop")) crop = options.numbers("--crop", 4, ',');
  auto rect = format.initCrop();
  rect.setX(crop[0]);
  rect.setY(crop[1]);
  rect.setWidth(crop[2]);
  rect.setHeight(crop[3]);
  auto planes = format.initPlanes(static_cast<capnp::uint>(layout.planes.size()));
  for (capnp::uint index = 0; index < planes.size(); ++index) {
    const Plane& plane = layout.planes[index];
    planes[index].setOffset(plane.offset);
    planes[index].setStride(static_cast<std::int64_t>(plane.stride));
    planes[index].setRows(plane.rows);
    planes[index].setSizeBytes(plane.size_bytes);
  }
  format.setBufferBytes(layout.buffer_bytes);
  format.setRange(options.enumerant<abi::Range>("--range"));
  format.setMatrix(options.enumerant<abi::Matrix>("--matrix"));
  format.setPrimaries(options.enumerant<abi::Primaries>("--primaries"));
  format.setTransfer(options.enumerant<abi::Transfer>("--transfer"));
  format.setChromaSite(options.enumerant<abi::ChromaSite>("--chroma-site"));
  format.setCfa(options.enumerant<abi::CfaOrder>("--cfa", layout.pixel->cfa));
  format.setClock(options.enumerant<abi::ClockId>("--clock", abi::ClockId::MONOTONIC));
  format.setMark(options.enumerant<abi::TimeMark>("--mark", abi::TimeMark::EXPOSURE_START));
  format.setPeriodNs(period_ns);
  format.setCameraName(options.text("--name", "fenced-cpp"));
}

// One frame a period until `count` frames (0: no end), the end of the input, or a signal.
void stream(Camera& camera, const Layout& layout, std::optional<Input>& input, clockid_t clock, std::int64_t period_ns,
            std::uint64_t count) {
  const TestPicture picture(layout);
  std::int64_t due_ns = now_ns();
  for (std::uint64_t sequence = 0; count == 0 || sequence < count; ++sequence) {
    while (!stop_requested && now_ns() < due_ns) camera.take_release(due_ns);
    while (camera.take_release(0)) {
    }
    if (input && camera.free_slot() == nullptr) {
      if (!camera.take_release(now_ns() + kReplyTimeoutNs) && !stop_requested) throw Fault("no slot was released");
    }
    if (stop_requested) return;
    due_ns = std::max(due_ns + period_ns, now_ns());  // late once, the rate is kept from here: no burst to catch up
    Camera::Slot* const slot = camera.free_slot();
    if (slot == nullptr) {
      std::cout << "dropped sequence=" << sequence << " reason=no-free-slot" << std::endl;
      continue;
    }
    const std::int64_t sof_ns = now_ns(clock);
    Camera::begin_write(*slot);
    if (input && !input->read(slot->pixels.data(), layout.buffer_bytes)) return;
    if (!input) picture.write(slot->pixels.data(), sequence);
    camera.submit(*slot, sequence, sof_ns, now_ns(clock));
  }
}

void run(int argc, char** argv) {
  const Options options(argc, argv, kOptions);
  const auto size = options.numbers("--size", 2, 'x');
  const auto stride = static_cast<std::uint32_t>(options.number("--stride", 0, 1, kMaxBufferBytes));
  const auto rows = static_cast<std::uint32_t>(options.number("--rows", 0, 1, kMaxDimension));
  const Layout layout = lay_out(pixel_format(options.text("--format")), size[0], size[1], stride, rows);
  const double period_s = 1 / options.positive("--rate-hz", 20);
  if (period_s < 1e-6 || period_s > 3600) throw Usage("--rate-hz: expected a period from 1 us to 1 hour");
  const std::int64_t period_ns = std::llround(period_s * static_cast<double>(kNsPerS));
  const std::uint64_t count = options.number("--count", 0, 1, std::numeric_limits<std::uint32_t>::max());
  const auto slots = static_cast<std::uint32_t>(options.number("--slots", 4, 1, kMaxDescriptors - 1));
  std::optional<Input> input;
  if (options.has("--input")) input.emplace(options.text("--input"));

  capnp::MallocMessageBuilder message;
  auto request = message.initRoot<abi::OpenStream>();
  request.setStream(options.text("--stream"));
  describe(request.initFormat(), layout, options, static_cast<std::uint64_t>(period_ns));

  Camera camera(options.text("--socket"), options.text("--name", "fenced-cpp"));
  const std::uint32_t registered = std::min(slots, camera.open(request.asReader()));
  const bool zero_copy = camera.register_buffers(registered, layout.buffer_bytes);
  std::cout << "streaming stream=" << options.text("--stream") << " slots=" << registered
            << " buffer_bytes=" << layout.buffer_bytes << " zero_copy=" << zero_copy << std::endl;

  stream(camera, layout, input, posix_clock(request.getFormat().getClock()), period_ns, count);
  stop_requested = 0;  // from here a signal ends the wait for what the daemon still holds
  while (camera.held() != 0) {
    if (!camera.take_release(now_ns() + kReplyTimeoutNs)) {
      throw Fault(std::to_string(camera.held()) + " slots were not released");
    }
  }
  camera.close();
}

}  // namespace

int main(int argc, char** argv) { return run_program("camera", kUsage, argc, argv, run); }
