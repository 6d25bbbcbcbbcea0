/* The memory that host and queue runtime share. Written once here and once in hal/cpu_layout.py; a change of any offset
 * raises FENCED_QUEUE_VERSION, which the host compares before it starts a worker.
 *
 * One control block a loaded module, page aligned, zeroed by the host. Each 64-byte line has one writer side, so that
 * polling readers do not steal the line from its writer. Addresses are stored as u64.
 */
#ifndef FENCED_QUEUE_H
#define FENCED_QUEUE_H

typedef unsigned int u32;
typedef unsigned long u64;
typedef int i32;
typedef long i64;
_Static_assert(sizeof(u64) == 8 && sizeof(void *) == 8, "64-bit targets only");

#define FENCED_QUEUE_MAGIC 0x51434e46u /* "FNCQ" */
#define FENCED_QUEUE_VERSION 1u
#define FENCED_MAX_CORES 64u

enum { FENCED_RUN_OK = 0, FENCED_RUN_CANCELLED = 1 };

/* The entry of a kernel: buffer addresses and then scalars in args; core counts 0 .. cores - 1. */
typedef void (*fenced_shim)(void **args, int core);

struct fenced_launch {
  u64 shim; /* fenced_shim */
  u64 args; /* void *[] */
  u32 cores;
  u32 reserved;
};

/* Where a run's bound address goes: args word = binding + offset. */
struct fenced_patch {
  u64 word;
  u64 offset;
  u32 binding;
  u32 reserved;
};

struct fenced_entry {
  u64 launches; /* struct fenced_launch[launch_count] */
  u64 patches;  /* struct fenced_patch[patch_count] */
  u32 launch_count;
  u32 patch_count;
  u32 binding_count;
  u32 reserved;
};

/* One run on its way to the device; followed by max_bindings addresses. */
struct fenced_submission {
  u64 value;
  u32 entry;
  u32 reserved;
  u64 bindings[];
};

/* One run as the device reports it; stored before the timeline reaches `value`. */
struct fenced_record {
  u64 value;
  i64 started_ns;   /* CLOCK_MONOTONIC */
  i64 completed_ns; /* CLOCK_MONOTONIC */
  u64 status;       /* FENCED_RUN_* */
};

struct fenced_control {
  /* 0: set by the host before the workers start, then constant */
  u32 magic;
  u32 version;
  u32 threads;
  u32 ring_slots;   /* a power of two */
  u32 max_bindings; /* addresses in a submission */
  u32 spin;         /* pauses before a waiter sleeps */
  i32 event;        /* eventfd written after every advance of the timeline */
  u32 entry_count;
  u64 entries; /* struct fenced_entry[entry_count] */
  u64 ring;    /* submissions, each 16 + 8 * max_bindings bytes */
  u64 records; /* struct fenced_record[ring_slots] */
  u64 trace;   /* 0, or i64[launches of the longest entry]: end of each launch of the latest run */
  /* 64: host to device */
  u64 submitted; /* the last value handed over */
  u64 cancel;    /* runs up to this value end before their next launch */
  u32 doorbell;  /* futex */
  u32 leader_asleep;
  u32 stop;
  u32 idle_spin_ns; /* how long the leader looks for a submission before it sleeps; constant */
  u32 pad0[8];
  /* 128: device to host */
  u64 value;    /* the timeline */
  u64 launches; /* launches run since load */
  u64 pad1[6];
  /* 192: leader to helpers */
  u64 work;   /* launch sequence << 16 | cores */
  u64 launch; /* struct fenced_launch * of that sequence */
  u32 work_bell; /* futex */
  u32 sleepers;
  u64 pad2[5];
  /* 256: helpers to leader */
  u32 done; /* cores finished; futex */
  u32 leader_waits;
  u64 pad3[7];
  /* 320: the last sequence in which each core index was taken */
  u64 claim[FENCED_MAX_CORES];
};

#define FENCED_AT(field, offset) _Static_assert(__builtin_offsetof(struct fenced_control, field) == (offset), #field)
FENCED_AT(event, 24);
FENCED_AT(entries, 32);
FENCED_AT(trace, 56);
FENCED_AT(submitted, 64);
FENCED_AT(cancel, 72);
FENCED_AT(idle_spin_ns, 92);
FENCED_AT(value, 128);
FENCED_AT(launches, 136);
FENCED_AT(work, 192);
FENCED_AT(done, 256);
FENCED_AT(claim, 320);
_Static_assert(sizeof(struct fenced_control) == 832, "control");
_Static_assert(sizeof(struct fenced_launch) == 24, "launch");
_Static_assert(sizeof(struct fenced_patch) == 24, "patch");
_Static_assert(sizeof(struct fenced_entry) == 32, "entry");
_Static_assert(sizeof(struct fenced_submission) == 16, "submission");
_Static_assert(sizeof(struct fenced_record) == 32, "record");

#endif
