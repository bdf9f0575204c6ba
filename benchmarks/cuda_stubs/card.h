// The card that is not there: its figures, from the environment, and what each process holds of it. Size, compute
// capability, multiprocessors, their threads, shared memory and second cache are the card's own, all else an A100's.
//
// Every process writes the bytes it holds into a file named after it, so that the stubs of the runtime and of NVML, and
// those of other processes, tell the same.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused)) static

UNUSED const char *card_name(void) { return getenv("STUB_NAME"); }
UNUSED size_t card_bytes(void) { return (size_t)atol(getenv("STUB_TOTAL_BYTES")); }
UNUSED size_t context_bytes(void) { return (size_t)atol(getenv("STUB_CONTEXT_BYTES")); }
UNUSED int multiprocessors(void) { return atoi(getenv("STUB_MULTIPROCESSORS")); }
UNUSED int threads_per_multiprocessor(void) { return atoi(getenv("STUB_THREADS_PER_MULTIPROCESSOR")); }
UNUSED size_t shared_bytes_of_multiprocessor(void) { return (size_t)atol(getenv("STUB_SHARED_BYTES_OF_MULTIPROCESSOR")); }
UNUSED size_t shared_bytes_of_block(void) { return (size_t)atol(getenv("STUB_SHARED_BYTES_OF_BLOCK")); }
UNUSED int cache_bytes(void) { return atoi(getenv("STUB_CACHE_BYTES")); }
UNUSED int capability_major(void) { return atoi(getenv("STUB_CAPABILITY")) / 10; }
UNUSED int capability_minor(void) { return atoi(getenv("STUB_CAPABILITY")) % 10; }
UNUSED const char *usage_folder(void) { return getenv("STUB_FOLDER"); }

// Returns what a process holds; 0, and the file is removed, where it has ended.
UNUSED size_t held_by(int process) {
  char path[512];
  size_t held = 0;
  snprintf(path, sizeof path, "%s/%d", usage_folder(), process);
  if (kill(process, 0) && errno == ESRCH) {
    unlink(path);
    return 0;
  }
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  if (read(file, &held, sizeof held) != sizeof held) held = 0;
  close(file);
  return held;
}

UNUSED size_t held_by_all(void) {
  size_t sum = 0;
  DIR *folder = opendir(usage_folder());
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));)
    if (entry->d_name[0] != '.') sum += held_by(atoi(entry->d_name));
  closedir(folder);
  return sum;
}

UNUSED size_t free_bytes(void) {
  size_t held = held_by_all();
  return held < card_bytes() ? card_bytes() - held : 0;
}
