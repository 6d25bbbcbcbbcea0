/* The CPU target's queue runtime, linked into every bundle's code: freestanding, no libc, no allocation.
 *
 * Worker 0, the leader, takes submissions in order and walks their launch tables; workers 1 .. threads - 1 help with
 * launches of several cores. A launch's core indices are *claimed*, each worker its own first, so that a worker which
 * lost its processor delays nobody: the others take its share. A launch ends when all its cores are done, and only then
 * the next begins. Waiters spin a little and then sleep on a futex. Memory order: everything a run wrote happens before
 * the timeline's release store; everything the host wrote happens before `submitted`'s.
 * Source of the sleep protocol (set a flag, look again, wait on a word that every event changes): Drepper, "Futexes Are
 * Tricky", 2011.
 */
#include "queue.h"

#define EXPORT __attribute__((visibility("default")))
#define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define load_ordered(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define store_ordered(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define add_ordered(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)

/* System calls, by the kernel's own numbers: asm/unistd_64.h (x86_64), asm-generic/unistd.h (aarch64). */
#if defined(__x86_64__)
enum { SYS_WRITE = 1, SYS_SCHED_YIELD = 24, SYS_FUTEX = 202, SYS_CLOCK_GETTIME = 228 };
static inline long syscall4(long n, long a, long b, long c, long d) {
  long result;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return result;
}
static inline void pause_once(void) { __asm__ volatile("pause" ::: "memory"); }
#elif defined(__aarch64__)
enum { SYS_WRITE = 64, SYS_FUTEX = 98, SYS_CLOCK_GETTIME = 113, SYS_SCHED_YIELD = 124 };
static inline long syscall4(long n, long a, long b, long c, long d) {
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
}
static inline void pause_once(void) { __asm__ volatile("yield" ::: "memory"); }
#else
#error "the queue runtime knows x86_64 and aarch64"
#endif

enum { PAUSES_A_TURN = 256 };
enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129, CLOCK_MONOTONIC = 1 };

/* One of many looks of a spinning worker. Now and then it gives way: whom it waits for may share its core. */
static inline void look_again(u32 spin) {
  if (spin % PAUSES_A_TURN == PAUSES_A_TURN - 1)
    syscall4(SYS_SCHED_YIELD, 0, 0, 0, 0);
  else
    pause_once();
}

static void futex_wait(u32 *word, u32 seen) { syscall4(SYS_FUTEX, (long)word, FUTEX_WAIT_PRIVATE, (long)seen, 0); }

static void futex_wake(u32 *word, i32 count) { syscall4(SYS_FUTEX, (long)word, FUTEX_WAKE_PRIVATE, (long)count, 0); }

static i64 now_ns(void) {
  struct { i64 seconds, nanoseconds; } time;
  syscall4(SYS_CLOCK_GETTIME, CLOCK_MONOTONIC, (long)&time, 0, 0);
  return time.seconds * 1000000000 + time.nanoseconds;
}

static struct fenced_submission *submission(const struct fenced_control *c, u64 value) {
  u64 stride = sizeof(struct fenced_submission) + 8ul * c->max_bindings;
  return (struct fenced_submission *)(c->ring + (value & (c->ring_slots - 1)) * stride);
}

/* Take every core of launch `sequence` that nobody has taken, own share first, and run it. A worker that slept through
 * this launch finds all cores taken by it or by a later one and touches nothing. */
static void run_cores(struct fenced_control *c, u64 sequence, u32 cores, u32 worker) {
  for (u32 k = 0; k < cores; k++) {
    u32 core = (worker + k) % cores;
    u64 held = load_relaxed(&c->claim[core]);
    if (held >= sequence) continue;
    if (!__atomic_compare_exchange_n(&c->claim[core], &held, sequence, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) continue;
    const struct fenced_launch *launch = (const struct fenced_launch *)load_relaxed(&c->launch);
    ((fenced_shim)launch->shim)((void **)launch->args, (int)core);
    if (add_ordered(&c->done, 1) + 1 == cores && load_ordered(&c->leader_waits)) futex_wake(&c->done, 1);
  }
}

static void await_done(struct fenced_control *c, u32 cores) {
  for (u32 spin = 0; spin < c->spin; spin++) {
    if (load_acquire(&c->done) == cores) return;
    look_again(spin);
  }
  store_ordered(&c->leader_waits, 1);
  for (;;) {
    u32 done = load_ordered(&c->done);
    if (done == cores) break;
    futex_wait(&c->done, done);
  }
  store_relaxed(&c->leader_waits, 0);
}

static void launch_parallel(struct fenced_control *c, const struct fenced_launch *launch) {
  u64 sequence = (load_relaxed(&c->work) >> 16) + 1;
  store_relaxed(&c->launch, (u64)launch);
  store_relaxed(&c->done, 0);
  store_ordered(&c->work, sequence << 16 | launch->cores);
  add_ordered(&c->work_bell, 1);
  if (load_ordered(&c->sleepers)) futex_wake(&c->work_bell, 0x7fffffff);
  run_cores(c, sequence, launch->cores, 0);
  await_done(c, launch->cores);
}

static void run(struct fenced_control *c, u64 value) {
  const struct fenced_submission *s = submission(c, value);
  const struct fenced_entry *entry = (const struct fenced_entry *)c->entries + s->entry;
  const struct fenced_launch *launches = (const struct fenced_launch *)entry->launches;
  const struct fenced_patch *patches = (const struct fenced_patch *)entry->patches;
  struct fenced_record *record = (struct fenced_record *)c->records + (value & (c->ring_slots - 1));
  i64 *trace = (i64 *)c->trace;
  record->value = value;
  record->started_ns = now_ns();
  for (u32 i = 0; i < entry->patch_count; i++)
    *(u64 *)patches[i].word = s->bindings[patches[i].binding] + patches[i].offset;
  u64 status = FENCED_RUN_OK;
  u32 i = 0;
  for (; i < entry->launch_count; i++) {
    if (load_relaxed(&c->cancel) >= value) {
      status = FENCED_RUN_CANCELLED;
      break;
    }
    if (launches[i].cores > 1 && c->threads > 1)
      launch_parallel(c, &launches[i]);
    else
      for (u32 core = 0; core < launches[i].cores; core++)
        ((fenced_shim)launches[i].shim)((void **)launches[i].args, (int)core);
    if (trace) trace[i] = now_ns();
  }
  store_relaxed(&c->launches, c->launches + i);
  record->completed_ns = now_ns();
  record->status = status;
  store_release(&c->value, value);
  u64 one = 1;
  syscall4(SYS_WRITE, c->event, (long)&one, sizeof one, 0);
}

/* Look for submission `next` for a while: who hands runs over one behind the other then need not wake a core. The look
 * gives way each time, because whoever is to submit may share this core. */
static void spin_idle(struct fenced_control *c, u64 next) {
  if (!c->idle_spin_ns) return;
  i64 end = now_ns() + c->idle_spin_ns;
  while (load_acquire(&c->submitted) < next && !load_relaxed(&c->stop) && now_ns() < end)
    syscall4(SYS_SCHED_YIELD, 0, 0, 0, 0);
}

static void lead(struct fenced_control *c) {
  for (;;) {
    u64 next = c->value + 1;
    spin_idle(c, next);
    while (load_acquire(&c->submitted) < next) {
      u32 bell = load_ordered(&c->doorbell);
      store_ordered(&c->leader_asleep, 1);
      if (load_ordered(&c->stop)) return;
      if (load_ordered(&c->submitted) < next) futex_wait(&c->doorbell, bell);
      store_relaxed(&c->leader_asleep, 0);
    }
    if (load_relaxed(&c->stop)) return;
    run(c, next);
  }
}

static void help(struct fenced_control *c, u32 worker) {
  u64 seen = 0;
  for (;;) {
    u64 work = load_acquire(&c->work);
    for (u32 spin = 0; work == seen && spin < c->spin; spin++) {
      look_again(spin);
      work = load_acquire(&c->work);
    }
    if (work == seen) {
      u32 bell = load_ordered(&c->work_bell);
      add_ordered(&c->sleepers, 1);
      u32 stop = load_ordered(&c->stop);
      if (!stop && load_ordered(&c->work) == seen) futex_wait(&c->work_bell, bell);
      add_ordered(&c->sleepers, -1);
      if (stop) return;
      continue;
    }
    seen = work;
    run_cores(c, work >> 16, (u32)(work & 0xffff), worker);
  }
}

EXPORT u32 fenced_version(void) { return FENCED_QUEUE_VERSION; }

/* Enter as worker `worker` and stay until fenced_stop. Called once on each thread. */
EXPORT void fenced_worker(struct fenced_control *c, u32 worker) {
  if (worker == 0)
    lead(c);
  else
    help(c, worker);
}

/* Hand a run over. Returns its timeline value, or 0 where the ring is full. Never blocks; one caller at a time. */
EXPORT u64 fenced_submit(struct fenced_control *c, u32 entry, const u64 *bindings) {
  u64 value = load_relaxed(&c->submitted) + 1;
  if (value - load_acquire(&c->value) > c->ring_slots) return 0;
  struct fenced_submission *s = submission(c, value);
  s->value = value;
  s->entry = entry;
  u32 count = ((const struct fenced_entry *)c->entries)[entry].binding_count;
  for (u32 i = 0; i < count; i++) s->bindings[i] = bindings[i];
  store_ordered(&c->submitted, value);
  add_ordered(&c->doorbell, 1);
  if (load_ordered(&c->leader_asleep)) futex_wake(&c->doorbell, 1);
  return value;
}

/* Runs up to `value` end before their next launch with FENCED_RUN_CANCELLED. A kernel that runs is not interrupted. */
EXPORT void fenced_cancel(struct fenced_control *c, u64 value) { store_ordered(&c->cancel, value); }

/* Let the workers leave: the leader after the run it is in, helpers at once. */
EXPORT void fenced_stop(struct fenced_control *c) {
  store_ordered(&c->stop, 1);
  add_ordered(&c->doorbell, 1);
  add_ordered(&c->work_bell, 1);
  futex_wake(&c->doorbell, 1);
  futex_wake(&c->work_bell, 0x7fffffff);
}

/* For hosts whose loads may pass one another: what follows sees all that the timeline value promises. */
EXPORT void fenced_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
