// Stub of the CUDA runtime: memory is mapped, small copies are made, no kernel runs.
//
// What follows from the host's code alone is real: which blocks PyTorch asks for, in which order, and what its caching
// allocator does. Values on the device are arbitrary: what was copied there in pieces of up to 1 MiB, what a block held
// before, or zero. Functions that are not here do nothing and report success (rest_cudart.h, which run.py writes).

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "card.h"

#define GRANULARITY (2ul << 20)
#define RANGE_BYTES (32ul << 20)
#define ADDRESSES (8ul << 40)
#define LARGE_COPY (1ul << 20)  // larger ones are not made on the device: nobody reads what nobody computed
#define STREAM_BYTES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread cudaError_t last_error;

struct block {
  char *at;
  size_t bytes;
  struct block *next;
};
static struct block *blocks;

// Addresses that blocks share; what is given back is not used again.
struct range {
  char *next, *end;
  struct range *newer;
};
static struct range *ranges;

static cudaError_t failed(cudaError_t error) { return last_error = error; }

static size_t rounded_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Returns this process's entry, which is made with its context by the first call that needs one; call it locked.
static size_t *held(void) {
  static size_t *entry;
  static int owner;
  if (owner == getpid()) return entry;
  char path[512];
  owner = getpid();
  mkdir(usage_folder(), 0777);
  snprintf(path, sizeof path, "%s/%d", usage_folder(), owner);
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
  if (ftruncate(file, sizeof *entry)) abort();
  entry = mmap(NULL, sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  *entry = context_bytes();
  return entry;
}

static int fits(size_t bytes) {
  held();
  return bytes <= free_bytes();
}

static int map_at(char *address, size_t bytes, int protection) {
  int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(address, bytes, protection, how, -1, 0) == MAP_FAILED;
}

static char *reserved_addresses(size_t bytes) {
  char *found = mmap(NULL, bytes + RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? NULL : (char *)rounded_up((size_t)found, RANGE_BYTES);
}

static void remember(char *at, size_t bytes) {
  struct block *block = malloc(sizeof *block);
  *block = (struct block){at, bytes, blocks};
  blocks = block;
}

// Returns the bytes of the block that began here; 0 where none did.
static size_t forget(char *at) {
  for (struct block **place = &blocks; *place; place = &(*place)->next) {
    struct block *block = *place;
    size_t bytes = block->bytes;
    if (block->at != at) continue;
    *place = block->next;
    free(block);
    return bytes;
  }
  return 0;
}

// Memory. As on cards on Linux: ranges of 32 MiB and its multiples, each below the one before; inside one, upwards.

// Returns where the next block begins: in the oldest range with room, or in a new one; NULL where no addresses are left.
static char *place(size_t bytes) {
  static char *lowest, *first;
  struct range **at = &ranges;
  while (*at && (*at)->next + bytes > (*at)->end) at = &(*at)->newer;
  if (!*at) {
    size_t whole = rounded_up(bytes, RANGE_BYTES);
    if (!lowest && (first = reserved_addresses(ADDRESSES))) lowest = first + ADDRESSES;
    if (!lowest || whole > (size_t)(lowest - first)) return NULL;
    lowest -= whole;
    *at = malloc(sizeof **at);
    **at = (struct range){lowest, lowest + whole, NULL};
  }
  char *found = (*at)->next;
  (*at)->next += bytes;
  return found;
}

cudaError_t cudaMalloc(void **at, size_t bytes) {
  size_t whole = rounded_up(bytes, GRANULARITY);
  pthread_mutex_lock(&lock);
  char *found = fits(whole) ? place(whole) : NULL;
  int is_given = found && !map_at(found, whole, PROT_READ | PROT_WRITE);
  if (is_given) {
    *at = found;
    remember(found, whole);
    *held() += whole;
  }
  pthread_mutex_unlock(&lock);
  return is_given ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *at) {
  pthread_mutex_lock(&lock);
  size_t bytes = at ? forget(at) : 0;
  if (bytes) {
    munmap(at, bytes);
    *held() -= bytes;
  }
  pthread_mutex_unlock(&lock);
  return bytes || !at ? cudaSuccess : failed(cudaErrorInvalidValue);
}

static int is_on_device(const void *address) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (struct block *block = blocks; block && !found; block = block->next)
    found = (char *)address >= block->at && (char *)address < block->at + block->bytes;
  pthread_mutex_unlock(&lock);
  return found;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  pthread_mutex_lock(&lock);
  held();
  *total = card_bytes();
  *available = free_bytes();
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
  *at = aligned_alloc(4096, rounded_up(bytes, 4096));
  return *at ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *at) {
  free(at);
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **at, const void *symbol) { return cudaMalloc(at, GRANULARITY); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  memset(attributes, 0, sizeof *attributes);
  attributes->type = is_on_device(address) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = (void *)address;
  return cudaSuccess;
}

// Copies.

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  int is_seen = bytes <= LARGE_COPY || (kind != cudaMemcpyDeviceToDevice && !is_on_device(to));
  if (is_seen) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  if (bytes <= LARGE_COPY) memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset(to, value, bytes);
}

// The device.

cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *card, int device) {
  memset(card, 0, sizeof *card);
  snprintf(card->name, sizeof card->name, "%s", card_name());
  card->totalGlobalMem = card_bytes();
  card->major = capability_major();
  card->minor = capability_minor();
  card->multiProcessorCount = multiprocessors();
  card->maxThreadsPerMultiProcessor = threads_per_multiprocessor();
  card->maxBlocksPerMultiProcessor = 32;
  card->maxThreadsPerBlock = 1024;
  card->maxThreadsDim[0] = card->maxThreadsDim[1] = 1024;
  card->maxThreadsDim[2] = 64;
  card->maxGridSize[0] = 2147483647;
  card->maxGridSize[1] = card->maxGridSize[2] = 65535;
  card->warpSize = 32;
  card->regsPerBlock = card->regsPerMultiprocessor = 65536;
  card->sharedMemPerBlock = 48 << 10;
  card->sharedMemPerBlockOptin = shared_bytes_of_block();
  card->sharedMemPerMultiprocessor = shared_bytes_of_multiprocessor();
  card->reservedSharedMemPerBlock = 1 << 10;
  card->l2CacheSize = cache_bytes();
  card->totalConstMem = 64 << 10;
  card->textureAlignment = 512;
  card->unifiedAddressing = card->managedMemory = card->concurrentKernels = card->cooperativeLaunch = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp card;
  cudaGetDeviceProperties(&card, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = card.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = card.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = card.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = card.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = card.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = card.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = card.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = card.maxGridSize[2]; break;
    case cudaDevAttrWarpSize: *value = card.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = card.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = card.regsPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = card.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = card.sharedMemPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = card.reservedSharedMemPerBlock; break;
    case cudaDevAttrL2CacheSize: *value = card.l2CacheSize; break;
    case cudaDevAttrCooperativeLaunch: *value = card.cooperativeLaunch; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:01:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0, cudaSuccess; }

// Streams and events: all that was asked for is done. While a stream is captured, the host sees it so; graphs are empty.

struct stream {
  unsigned long long capture;  // 0 where it is not captured
  char rest[STREAM_BYTES - sizeof(unsigned long long)];
};

static unsigned long long capture_of(cudaStream_t stream) {
  return (size_t)stream < STREAM_BYTES ? 0 : ((struct stream *)stream)->capture;  // low numbers are default streams
}

static enum cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
  return capture_of(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return *stream = calloc(1, sizeof(struct stream)), cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  static unsigned long long captures;
  return ((struct stream *)stream)->capture = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  ((struct stream *)stream)->capture = 0;
  return *graph = malloc(STREAM_BYTES), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  return *status = capture_status(stream), cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
#if CUDART_VERSION >= 13000
                                     const cudaGraphEdgeData **edges,
#endif
                                     size_t *count) {
  if (status) *status = capture_status(stream);
  if (id) *id = capture_of(stream);
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
  return *made = malloc(STREAM_BYTES), cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return *count = 1, cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned flags) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data) { return call(data), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = malloc(STREAM_BYTES), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return *milliseconds = 1, cudaSuccess;
}

// Kernels: they are known, and not run.

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 10 * capability_major() + capability_minor();
  attributes->maxDynamicSharedSizeBytes = (int)shared_bytes_of_block();
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *kernel, int threads, size_t shared) {
  int most = threads ? threads_per_multiprocessor() / threads : 1;
  return *count = most ? most : 1, cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int threads,
                                                                   size_t shared, unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, kernel, threads, shared);
}

struct launch {
  dim3 grid, block;
  size_t shared;
  void *stream;
};
static __thread struct launch pending[16];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (depth < 16) pending[depth++] = (struct launch){grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth) return cudaSuccess;
  struct launch last = pending[--depth];
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *(void **)stream = last.stream;
  return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary) { return malloc(STREAM_BYTES); }
cudaError_t __cudaGetKernel(void **kernel, const void *function) { return *kernel = (void *)function, cudaSuccess; }

// Errors.

const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the stub";
}
const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheStub";
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

// What expandable segments ask of the driver.

static int driver_reserve(unsigned long long *at, size_t bytes, size_t alignment, unsigned long long wish,
                          unsigned long long flags) {
  *at = (size_t)reserved_addresses(bytes);
  return *at ? 0 : cudaErrorMemoryAllocation;
}

static int driver_create(unsigned long long *handle, size_t bytes, const void *how, unsigned long long flags) {
  pthread_mutex_lock(&lock);
  int is_given = fits(bytes);
  if (is_given) {
    size_t *size = malloc(sizeof *size);
    *size = bytes;
    *handle = (size_t)size;
    *held() += bytes;
  }
  pthread_mutex_unlock(&lock);
  return is_given ? 0 : cudaErrorMemoryAllocation;
}

static int driver_release(unsigned long long handle) {
  pthread_mutex_lock(&lock);
  *held() -= *(size_t *)handle;
  pthread_mutex_unlock(&lock);
  free((void *)handle);
  return 0;
}

static int driver_map(unsigned long long at, size_t bytes, size_t offset, unsigned long long handle,
                      unsigned long long flags) {
  if (map_at((char *)at, bytes, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
  pthread_mutex_lock(&lock);
  remember((char *)at, bytes);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int driver_unmap(unsigned long long at, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (size_t gone = 0, size; gone < bytes && (size = forget((char *)at + gone)); gone += size) continue;
  pthread_mutex_unlock(&lock);
  return map_at((char *)at, bytes, PROT_NONE);
}

static int does_nothing(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  static const struct {
    const char *name;
    void *function;
  } known[] = {{"cuMemAddressReserve", driver_reserve},
               {"cuMemCreate", driver_create},
               {"cuMemRelease", driver_release},
               {"cuMemMap", driver_map},
               {"cuMemUnmap", driver_unmap}};
  *function = does_nothing;
  for (size_t each = 0; each < sizeof known / sizeof *known; each++)
    if (!strcmp(known[each].name, name)) *function = known[each].function;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

#include "rest_cudart.h"
