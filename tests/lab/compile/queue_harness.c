/* Drives the queue runtime with real threads and checks every result. argv: threads, runs, spin count.
 * A run is 20 dependent launches over 1, `threads` and `threads` + 3 cores; four runs are in flight at once. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "queue.h"

enum { COUNT = 64, LAUNCHES = 20, SLOTS = 4 };

void fenced_worker(struct fenced_control *c, u32 worker);
u64 fenced_submit(struct fenced_control *c, u32 entry, const u64 *bindings);
void fenced_stop(struct fenced_control *c);

static int scratch[2][COUNT], in[SLOTS][COUNT], out[SLOTS][COUNT];

static void add(void **args, int core) {
  int *to = args[0], *from = args[1], more = (int)(long)args[2], cores = (int)(long)args[3];
  for (int i = core; i < COUNT; i += cores) to[i] = from[i] + more;
}

struct start { struct fenced_control *control; u32 worker; };

static void *enter(void *argument) {
  struct start *start = argument;
  fenced_worker(start->control, start->worker);
  return NULL;
}

static int check(int run) {
  int bad = 0;
  for (int i = 0; i < COUNT; i++) bad += out[run % SLOTS][i] != run * 7 + i + LAUNCHES;
  return bad;
}

int main(int count, char **argv) {
  if (count != 4) return 2;
  int threads = atoi(argv[1]), runs = atoi(argv[2]), bad = 0;
  static struct fenced_launch launches[LAUNCHES];
  static void *args[LAUNCHES][4];
  struct fenced_patch patches[2] = {{(u64)&args[0][1], 0, 0, 0}, {(u64)&args[LAUNCHES - 1][0], 0, 1, 0}};
  struct fenced_entry entry = {(u64)launches, (u64)patches, LAUNCHES, 2, 2, 0};
  struct fenced_control *c = aligned_alloc(4096, 4096);
  memset(c, 0, 4096);
  for (int i = 0; i < LAUNCHES; i++) {
    int cores = i % 3 == 2 ? 1 : i % 3 == 0 ? threads : threads + 3;
    void *words[4] = {scratch[i % 2], scratch[(i + 1) % 2], (void *)1L, (void *)(long)cores};
    memcpy(args[i], words, sizeof words);
    launches[i] = (struct fenced_launch){(u64)add, (u64)args[i], (u32)cores, 0};
  }
  c->magic = FENCED_QUEUE_MAGIC, c->version = FENCED_QUEUE_VERSION, c->threads = (u32)threads, c->ring_slots = SLOTS;
  c->idle_spin_ns = 10 * (u32)atoi(argv[3]);
  c->max_bindings = 2, c->spin = (u32)atoi(argv[3]), c->event = eventfd(0, EFD_NONBLOCK), c->entry_count = 1;
  c->entries = (u64)&entry, c->ring = (u64)calloc(SLOTS, 32), c->records = (u64)calloc(SLOTS, 32);
  pthread_t *workers = calloc((size_t)threads, sizeof *workers);
  struct start *starts = calloc((size_t)threads, sizeof *starts);
  for (int i = 0; i < threads; i++) {
    starts[i] = (struct start){c, (u32)i};
    pthread_create(&workers[i], NULL, enter, &starts[i]);
  }
  for (int run = 0; run < runs + SLOTS; run++) {
    if (run >= SLOTS) {
      while (__atomic_load_n(&c->value, __ATOMIC_ACQUIRE) + SLOTS <= (u64)run) sched_yield();
      bad += check(run - SLOTS);
    }
    if (run >= runs) continue;
    for (int i = 0; i < COUNT; i++) in[run % SLOTS][i] = run * 7 + i, out[run % SLOTS][i] = -1;
    u64 bindings[2] = {(u64)in[run % SLOTS], (u64)out[run % SLOTS]};
    if (!fenced_submit(c, 0, bindings)) bad++;
  }
  fenced_stop(c);
  for (int i = 0; i < threads; i++) pthread_join(workers[i], NULL);
  printf("%d wrong, %lu launches\n", bad, c->launches);
  return bad != 0;
}
