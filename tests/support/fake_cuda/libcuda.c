// A stand-in for libcuda.so.1 below the driver under test: a GPU whose streams are threads and whose kernels are the
// functions at the end. It is as strict as cuda.h lets a driver be: addresses of the device are not those of the host,
// a call needs its thread's context, work is asynchronous and in the order of its stream, an event's time is rounded,
// parameters are copied at launch, a failed kernel fails every later call. Compiled by the tests.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t dptr;
enum { INVALID_VALUE = 1, NO_MEMORY = 2, NO_BINARY = 209, INVALID_IMAGE = 200, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600,
       BAD_ADDRESS = 700, REGISTERED = 712, NOT_REGISTERED = 713, FAILED = 719, NOT_SUPPORTED = 801 };
enum { MAX_REGIONS = 8192, MAX_NODES = 4096, MAX_PARAMS = 80, MAX_FAILURES = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int sticky;                  // once a kernel has failed, what every call answers
static __thread int entered;        // whether the calling thread has the context
static int context_alive;

// knobs and counters, for tests

static struct { const char *name; int value; } knobs[] = {{"devices", 1}, {"version", 12040}, {"host_register", 1},
  {"read_only_register", 1}};
static struct { const char *name; int value; } counts[] = {{"contexts", 0}, {"modules", 0}, {"memory", 0}, {"registered", 0},
  {"streams", 0}, {"events", 0}, {"graphs", 0}, {"updates", 0}, {"launches", 0}};
static struct { char name[48]; int status, after; } failures[MAX_FAILURES];

static int *cell(const char *name) {
  for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) if (!strcmp(knobs[i].name, name)) return &knobs[i].value;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) if (!strcmp(counts[i].name, name)) return &counts[i].value;
  fprintf(stderr, "fake libcuda: no %s\n", name);
  abort();
}
int fake_get(const char *name) { pthread_mutex_lock(&lock); int v = *cell(name); pthread_mutex_unlock(&lock); return v; }
void fake_set(const char *name, int value) { pthread_mutex_lock(&lock); *cell(name) = value; pthread_mutex_unlock(&lock); }
void fake_fail(const char *name, int status, int after) {  // the call after `after` more good ones fails, once
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_FAILURES; i++) if (!failures[i].status) {
    snprintf(failures[i].name, sizeof failures[i].name, "%s", name);
    failures[i].status = status; failures[i].after = after; break;
  }
  pthread_mutex_unlock(&lock);
}
void fake_heal(void) { pthread_mutex_lock(&lock); sticky = 0; memset(failures, 0, sizeof failures); pthread_mutex_unlock(&lock); }

static CUresult planted(const char *name) {
  for (int i = 0; i < MAX_FAILURES; i++) if (failures[i].status && !strcmp(failures[i].name, name) && failures[i].after-- == 0) {
    int status = failures[i].status; failures[i].status = 0; return status;
  }
  return 0;
}
// every call below begins so, and leaves with `lock` held until LEAVE
#define ENTER(needs_context) pthread_mutex_lock(&lock); CUresult status = planted(__func__); \
  if (!status) status = sticky; if (!status && (needs_context) && !(entered && context_alive)) status = NO_CONTEXT; if (status) LEAVE
#define LEAVE do { pthread_mutex_unlock(&lock); return status; } while (0)
#define REFUSE(what) do { status = (what); LEAVE; } while (0)

// memory

static struct region { dptr at; uint64_t bytes; char *host; int is_device; } regions[MAX_REGIONS];
static dptr next_at = 0xD00000000000;

static struct region *add_region(char *host, uint64_t bytes, int is_device) {
  for (int i = 0; i < MAX_REGIONS; i++) if (!regions[i].bytes) {
    regions[i] = (struct region){next_at, bytes, host, is_device};
    next_at += (bytes + 0x1FFFF) & ~0xFFFFull;
    return &regions[i];
  }
  abort();
}
static struct region *find(dptr at) {
  for (int i = 0; i < MAX_REGIONS; i++)
    if (regions[i].bytes && at >= regions[i].at && at < regions[i].at + regions[i].bytes) return &regions[i];
  return NULL;
}
static char *on_host(dptr at) { struct region *r = find(at); return r ? r->host + (at - r->at) : NULL; }
static int is_writable(uintptr_t at) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512]; unsigned long begin, end; char mode[8]; int good = 0;
  while (maps && fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, mode) == 3 && at >= begin && at < end) good = mode[1] == 'w';
  if (maps) fclose(maps);
  return good;
}

// kernels

typedef int (*body)(void **a, unsigned threads);
typedef void (*emulated)(void **a, const unsigned *grid, const unsigned *block);
struct function { const char *name, *params; body run; emulated emulate; };  // params: p a pointer, i an int, l a long
static const struct function functions[];

struct node { const struct function *function; unsigned grid[3], block[3]; uint64_t values[MAX_PARAMS]; };
struct params { void *func; unsigned grid[3], block[3], shared; void **params, **extra; };
_Static_assert(sizeof(struct params) == 56, "CUDA_KERNEL_NODE_PARAMS_v1");

static int take(struct node *node, const struct params *p) {
  if (!p->func || p->extra) return INVALID_VALUE;
  node->function = p->func;
  memcpy(node->grid, p->grid, sizeof node->grid);
  memcpy(node->block, p->block, sizeof node->block);
  for (size_t i = 0; i < strlen(node->function->params); i++) {
    node->values[i] = 0;
    memcpy(&node->values[i], p->params[i], node->function->params[i] == 'i' ? 4 : 8);
  }
  return 0;
}
static int run(const struct node *node) {
  void *arguments[MAX_PARAMS];
  uint64_t values[MAX_PARAMS];
  memcpy(values, node->values, sizeof values);
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < strlen(node->function->params); i++) {
    arguments[i] = node->function->params[i] == 'p' ? (void *)on_host(values[i]) : &values[i];
    if (!arguments[i]) { pthread_mutex_unlock(&lock); return BAD_ADDRESS; }
  }
  pthread_mutex_unlock(&lock);
  if (node->function->emulate) { node->function->emulate(arguments, node->grid, node->block); return 0; }
  unsigned threads = 1;
  for (int i = 0; i < 3; i++) threads *= node->grid[i] * node->block[i];
  return node->function->run(arguments, threads);
}

// streams, events, graphs

struct event { uint64_t wanted, done; int64_t at_ns; };
struct op { struct op *next; int kind, count; struct node *nodes; char *to, *from; uint64_t bytes; struct event *event; uint64_t mark; int owned; };
enum { OP_GRAPH, OP_COPY, OP_SET, OP_RECORD, OP_END };
struct stream { pthread_t thread; struct op *first, *last; int busy; };

static void *serve(void *of) {
  struct stream *stream = of;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (!stream->first) pthread_cond_wait(&changed, &lock);
    struct op *op = stream->first;
    int failed = sticky;
    pthread_mutex_unlock(&lock);
    if (op->kind == OP_GRAPH) for (int i = 0; i < op->count && !failed; i++) failed = run(&op->nodes[i]);
    if (op->kind == OP_COPY && !failed) memcpy(op->to, op->from, op->bytes);
    if (op->kind == OP_SET && !failed) memset(op->to, (int)op->mark, op->bytes);
    struct timespec now; clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    pthread_mutex_lock(&lock);
    if (failed && !sticky) sticky = failed;
    if (op->kind == OP_GRAPH && !failed) *cell("launches") += op->count;
    if (op->kind == OP_RECORD) { op->event->at_ns = now.tv_sec * 1000000000LL + now.tv_nsec; op->event->done = op->mark; }
    stream->first = op->next;
    if (!stream->first) stream->last = NULL;
    int ended = op->kind == OP_END;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(op->nodes);
    if (op->owned) free(op->from);
    free(op);
    if (ended) return NULL;
  }
}
static void push(struct stream *stream, struct op op) {
  struct op *made = malloc(sizeof op);
  *made = op;
  if (stream->last) stream->last->next = made; else stream->first = made;
  stream->last = made;
  pthread_cond_broadcast(&changed);
}

struct graph { int count, alive; struct node nodes[MAX_NODES]; };  // an instantiated one is a copy

// the interface

CUresult cuInit(unsigned flags) { ENTER(0); LEAVE; }
CUresult cuDriverGetVersion(int *version) { ENTER(0); *version = *cell("version"); LEAVE; }
CUresult cuGetErrorName(CUresult error, const char **name) {
  static const struct { int error; const char *name; } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) if (names[i].error == error) { *name = names[i].name; return 0; }
  return INVALID_VALUE;
}
CUresult cuDeviceGetCount(int *count) { ENTER(0); *count = *cell("devices"); LEAVE; }
CUresult cuDeviceGet(int *device, int ordinal) { ENTER(0); if (ordinal < 0 || ordinal >= *cell("devices")) REFUSE(101); *device = ordinal; LEAVE; }
CUresult cuDeviceGetName(char *name, int bytes, int device) { ENTER(0); snprintf(name, bytes, "Fake GPU %d", device); LEAVE; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER(0);
  switch (attribute) {
    case 16: *value = 4; break;
    case 19: *value = 1; break;
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 99: *value = *cell("host_register"); break;
    case 113: *value = *cell("read_only_register"); break;
    default: REFUSE(INVALID_VALUE);
  }
  LEAVE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { ENTER(0); *bytes = 1ull << 32; LEAVE; }
CUresult cuCtxCreate_v2(void **context, unsigned flags, int device) {
  ENTER(0); *context = &context_alive; context_alive++; entered = 1; ++*cell("contexts"); LEAVE;
}
CUresult cuCtxDestroy_v2(void *context) { ENTER(0); context_alive--; --*cell("contexts"); LEAVE; }
CUresult cuCtxSetCurrent(void *context) { ENTER(0); entered = context != NULL; LEAVE; }

CUresult cuModuleLoadData(void **module, const void *image) {
  ENTER(1);
  const unsigned char *bytes = image;
  if (memcmp(bytes, "\x7f" "ELF", 4) || bytes[18] != 190) REFUSE(INVALID_IMAGE);
  if (bytes[48] != 90 && bytes[49] != 90) REFUSE(NO_BINARY);  // e_flags: the architecture, before and since CUDA 13
  *module = malloc(1); ++*cell("modules"); LEAVE;
}
CUresult cuModuleUnload(void *module) { ENTER(1); free(module); --*cell("modules"); LEAVE; }
CUresult cuModuleGetFunction(void **function, void *module, const char *name);
CUresult cuFuncGetAttribute(int *value, int attribute, void *function) { ENTER(1); if (attribute) REFUSE(INVALID_VALUE); *value = 1024; LEAVE; }
CUresult cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes) {
  ENTER(1);
  const char *params = ((struct function *)function)->params;
  if (index >= strlen(params)) REFUSE(INVALID_VALUE);
  *offset = 8 * index; *bytes = params[index] == 'i' ? 4 : 8; LEAVE;
}

CUresult cuMemAlloc_v2(dptr *at, size_t bytes) {
  ENTER(1);
  if (!bytes) REFUSE(INVALID_VALUE);
  char *host = malloc(bytes);
  memset(host, 0xC7, bytes);  // what the memory held before
  *at = add_region(host, bytes, 1)->at; ++*cell("memory"); LEAVE;
}
CUresult cuMemFree_v2(dptr at) {
  ENTER(1);
  struct region *r = find(at);
  if (!r || r->at != at || !r->is_device) REFUSE(INVALID_VALUE);
  free(r->host); r->bytes = 0; --*cell("memory"); LEAVE;
}
CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
  ENTER(1);
  char *begin = host;
  for (int i = 0; i < MAX_REGIONS; i++)
    if (regions[i].bytes && !regions[i].is_device && begin < regions[i].host + regions[i].bytes && regions[i].host < begin + bytes) REFUSE(REGISTERED);
  if ((flags & 8) && !*cell("read_only_register")) REFUSE(NOT_SUPPORTED);
  if (!(flags & 8) && !is_writable((uintptr_t)host)) REFUSE(INVALID_VALUE);
  if (!(flags & 2)) REFUSE(INVALID_VALUE);
  add_region(host, bytes, 0); ++*cell("registered"); LEAVE;
}
CUresult cuMemHostUnregister(void *host) {
  ENTER(1);
  for (int i = 0; i < MAX_REGIONS; i++) if (regions[i].bytes && !regions[i].is_device && regions[i].host == host) {
    regions[i].bytes = 0; --*cell("registered"); LEAVE;
  }
  REFUSE(NOT_REGISTERED);
}
CUresult cuMemHostGetDevicePointer_v2(dptr *at, void *host, unsigned flags) {
  ENTER(1);
  for (int i = 0; i < MAX_REGIONS; i++) {
    struct region *r = &regions[i];
    if (r->bytes && !r->is_device && (char *)host >= r->host && (char *)host < r->host + r->bytes) { *at = r->at + ((char *)host - r->host); LEAVE; }
  }
  REFUSE(NOT_REGISTERED);
}
CUresult cuMemcpyHtoDAsync_v2(dptr to, const void *from, size_t bytes, void *stream) {
  ENTER(1);
  char *target = on_host(to), *staged = malloc(bytes);
  if (!target) REFUSE(INVALID_VALUE);
  memcpy(staged, from, bytes);  // pageable memory is staged before the call returns
  push(stream, (struct op){.kind = OP_COPY, .to = target, .from = staged, .bytes = bytes, .owned = 1}); LEAVE;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, dptr from, size_t bytes, void *stream) {
  ENTER(1);
  char *source = on_host(from);
  if (!source) REFUSE(INVALID_VALUE);
  push(stream, (struct op){.kind = OP_COPY, .to = to, .from = source, .bytes = bytes}); LEAVE;
}
CUresult cuMemsetD8Async(dptr to, unsigned char value, size_t bytes, void *stream) {
  ENTER(1); push(stream, (struct op){.kind = OP_SET, .to = on_host(to), .bytes = bytes, .mark = value}); LEAVE;
}

CUresult cuStreamCreate(void **stream, unsigned flags) {
  ENTER(1);
  struct stream *made = calloc(1, sizeof *made);
  pthread_create(&made->thread, NULL, serve, made);
  *stream = made; ++*cell("streams"); LEAVE;
}
CUresult cuStreamSynchronize(void *of) {
  ENTER(1);
  struct stream *stream = of;
  while (stream->first) pthread_cond_wait(&changed, &lock);
  status = sticky; LEAVE;
}
CUresult cuStreamDestroy_v2(void *of) {
  pthread_mutex_lock(&lock);
  struct stream *stream = of;
  push(stream, (struct op){.kind = OP_END});
  --*cell("streams");
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  free(stream);
  return 0;
}
CUresult cuEventCreate(void **event, unsigned flags) { ENTER(1); *event = calloc(1, sizeof(struct event)); ++*cell("events"); LEAVE; }
CUresult cuEventDestroy_v2(void *event) { ENTER(1); free(event); --*cell("events"); LEAVE; }
CUresult cuEventRecord(void *of, void *stream) {
  ENTER(1);
  struct event *event = of;
  push(stream, (struct op){.kind = OP_RECORD, .event = event, .mark = ++event->wanted}); LEAVE;
}
CUresult cuEventQuery(void *of) { ENTER(1); struct event *event = of; if (event->done < event->wanted) status = NOT_READY; LEAVE; }
CUresult cuEventSynchronize(void *of) {
  ENTER(1);
  struct event *event = of;
  while (event->done < event->wanted) pthread_cond_wait(&changed, &lock);
  status = sticky; LEAVE;
}
CUresult cuEventElapsedTime(float *milliseconds, void *first, void *last) {
  ENTER(1);
  struct event *a = first, *b = last;
  if (!a->wanted || !b->wanted) REFUSE(400);
  if (a->done < a->wanted || b->done < b->wanted) REFUSE(NOT_READY);
  *milliseconds = (float)((b->at_ns - a->at_ns) / 500 * 500 / 1e6); LEAVE;  // half a microsecond
}

CUresult cuGraphCreate(void **graph, unsigned flags) { ENTER(1); *graph = calloc(1, sizeof(struct graph)); ++*cell("graphs"); LEAVE; }
CUresult cuGraphAddKernelNode(void **node, void *of, void **after, size_t count, const struct params *params) {
  ENTER(1);
  struct graph *graph = of;
  // a line: each node stands behind the one before it
  if (count != (graph->count > 0) || (count && *after != (void *)(uintptr_t)graph->count)) REFUSE(INVALID_VALUE);
  if (graph->count == MAX_NODES || (status = take(&graph->nodes[graph->count], params))) REFUSE(INVALID_VALUE);
  *node = (void *)(uintptr_t)++graph->count; LEAVE;
}
CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags) {
  ENTER(1); *exec = memcpy(malloc(sizeof(struct graph)), graph, sizeof(struct graph)); ++*cell("graphs"); LEAVE;
}
CUresult cuGraphExecKernelNodeSetParams(void *of, void *node, const struct params *params) {
  ENTER(1);
  struct graph *exec = of;
  uintptr_t index = (uintptr_t)node;
  if (!index || index > (uintptr_t)exec->count || exec->nodes[index - 1].function != params->func) REFUSE(INVALID_VALUE);
  ++*cell("updates"); status = take(&exec->nodes[index - 1], params); LEAVE;
}
CUresult cuGraphLaunch(void *of, void *stream) {
  ENTER(1);
  struct graph *exec = of;
  struct node *nodes = malloc(exec->count * sizeof *nodes);
  memcpy(nodes, exec->nodes, exec->count * sizeof *nodes);
  push(stream, (struct op){.kind = OP_GRAPH, .count = exec->count, .nodes = nodes}); LEAVE;
}
CUresult cuGraphExecDestroy(void *exec) { ENTER(1); free(exec); --*cell("graphs"); LEAVE; }
CUresult cuGraphDestroy(void *graph) { ENTER(1); free(graph); --*cell("graphs"); LEAVE; }

// the kernels of tests/conformance/subject.py, and two that go wrong

static int k_widen(void **a, unsigned n) { float *o = a[0]; unsigned char *x = a[1]; for (unsigned i = 0; i < n; i++) o[i] = x[i]; return 0; }
static int k_add(void **a, unsigned n) { float *o = a[0], *x = a[1]; int k = *(int *)a[2]; for (unsigned i = 0; i < n; i++) o[i] = x[i] + k; return 0; }
static int k_rounds(void **a, unsigned n) {
  float *o = a[0]; unsigned *x = a[1], rounds = x[0]; volatile unsigned y = 1;
  for (unsigned r = 0; r < rounds; r++) for (int i = 0; i < 1000; i++) y = y * 1664525u + 1013904223u;
  for (unsigned i = 0; i < n; i++) o[i] = (float)rounds + i;
  return 0;
}
static int k_total(void **a, unsigned n) { float *s = a[0], *o = a[1]; unsigned char *x = a[2]; for (unsigned i = 0; i < n; i++) { s[i] += x[i]; o[i] = s[i]; } return 0; }
static int k_scale(void **a, unsigned n) { float *o = a[0], *k = a[2]; unsigned char *x = a[1]; for (unsigned i = 0; i < n; i++) o[i] = x[i] * k[0]; return 0; }
static int k_trap(void **a, unsigned n) { return FAILED; }
static int k_long(void **a, unsigned n) { float *o = a[0]; for (unsigned i = 0; i < n; i++) o[i] = (float)*(int64_t *)a[2]; return 0; }

static const struct function functions[] = {{"widen", "pp", k_widen}, {"add", "ppi", k_add}, {"rounds", "pp", k_rounds},
  {"total", "ppp", k_total}, {"scale", "ppp", k_scale}, {"trap", "pp", k_trap}, {"number", "ppl", k_long}, {0}};

// kernels of a shared object of the test's: NAME_emulate and NAME_parameters, pointers only
static void *linked;
static struct function found[MAX_NODES];
int fake_link(const char *path) {
  pthread_mutex_lock(&lock); linked = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL; memset(found, 0, sizeof found); pthread_mutex_unlock(&lock);
  return path && !linked;
}
static struct function *in_linked(const char *name) {
  char symbol[80];
  snprintf(symbol, sizeof symbol, "%s_emulate", name);
  emulated run = linked ? (emulated)dlsym(linked, symbol) : NULL;
  snprintf(symbol, sizeof symbol, "%s_parameters", name);
  unsigned (*count)(void) = linked ? (unsigned (*)(void))dlsym(linked, symbol) : NULL;
  for (int i = 0; run && count && i < MAX_NODES; i++) if (!found[i].name) {
    char *params = calloc(1, count() + 1);
    memset(params, 'p', count());
    found[i] = (struct function){strdup(name), params, NULL, run};
    return &found[i];
  }
  return NULL;
}

CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
  ENTER(1);
  if ((*function = in_linked(name))) LEAVE;
  for (const struct function *f = functions; f->name; f++) if (!strcmp(f->name, name)) { *function = (void *)f; LEAVE; }
  REFUSE(NOT_FOUND);
}
