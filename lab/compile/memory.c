/* The four functions that a C compiler may call on its own even in freestanding code (GCC manual, "Standards": memcpy,
 * memmove, memset, memcmp). Hidden, linked into every bundle, so that its code needs no library. */
#define LOCAL __attribute__((visibility("hidden"), used))
#define PLAIN __attribute__((no_builtin))
typedef unsigned long size;

LOCAL PLAIN void *memcpy(void *restrict to, const void *restrict from, size count) {
  unsigned char *t = to;
  const unsigned char *f = from;
  for (size i = 0; i < count; i++) t[i] = f[i];
  return to;
}

LOCAL PLAIN void *memmove(void *to, const void *from, size count) {
  unsigned char *t = to;
  const unsigned char *f = from;
  if (t <= f)
    for (size i = 0; i < count; i++) t[i] = f[i];
  else
    for (size i = count; i-- > 0;) t[i] = f[i];
  return to;
}

LOCAL PLAIN void *memset(void *to, int value, size count) {
  unsigned char *t = to;
  for (size i = 0; i < count; i++) t[i] = (unsigned char)value;
  return to;
}

LOCAL PLAIN int memcmp(const void *a, const void *b, size count) {
  const unsigned char *x = a, *y = b;
  for (size i = 0; i < count; i++)
    if (x[i] != y[i]) return x[i] - y[i];
  return 0;
}
