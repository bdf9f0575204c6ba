// cuDNN for a card that is not there: its own library, asked about a described device; nothing is executed.
//
// Heuristics and execution plans are given the device's description, handles are swallowed. Engines that are compiled
// for a plan are not built: their configuration says what workspace they take. Batch normalisation takes no workspace
// and no reserve here, and samplers take none. Recurrent layers and CTC cannot be sized without a device, and end with
// an error.

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// cudnn_graph.h
enum { ENGINE = 2, HEURISTICS = 4, PLAN = 5, DEVICE = 38 };
enum { TYPE_HANDLE = 0, TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15, TYPE_BEHAVIOUR_NOTE = 19, TYPE_CHAR = 24 };
enum {
  HEURISTICS_DEVICE = 204,
  CONFIG_ENGINE = 300,
  CONFIG_WORKSPACE = 303,
  PLAN_CONFIG = 401,
  PLAN_WORKSPACE = 402,
  PLAN_DEVICE = 407,
  ENGINE_BEHAVIOUR_NOTES = 1305,
  DEVICE_JSON = 2702
};
enum { NOTE_COMPILED = 0, MOST_NOTES = 32 };

typedef int (*create_t)(int, void **);
typedef int (*set_t)(void *, int, int, int64_t, const void *);
typedef int (*get_t)(void *, int, int, int64_t, int64_t *, void *);
typedef int (*use_t)(void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of the device and the plans

static void *real(const char *name) {
  void *library = dlopen(getenv("STUB_CUDNN"), RTLD_NOW | RTLD_LOCAL);  // loaded once, found again afterwards
  void *function = library ? dlsym(library, name) : NULL;
  if (function) return function;
  fprintf(stderr, "cuDNN: %s\n", dlerror());
  abort();
}

static int real_create(int kind, void **made) { return ((create_t)real("cudnnBackendCreateDescriptor"))(kind, made); }
static int real_destroy(void *descriptor) { return ((use_t)real("cudnnBackendDestroyDescriptor"))(descriptor); }
static int real_finalize(void *descriptor) { return ((use_t)real("cudnnBackendFinalize"))(descriptor); }
static int real_set(void *descriptor, int name, int type, int64_t count, const void *values) {
  return ((set_t)real("cudnnBackendSetAttribute"))(descriptor, name, type, count, values);
}
static int real_get(void *descriptor, int name, int type, int64_t most, int64_t *count, void *values) {
  return ((get_t)real("cudnnBackendGetAttribute"))(descriptor, name, type, most, count, values);
}

static void *device(void) {
  static void *described;
  pthread_mutex_lock(&lock);
  if (!described) {
    const char *json = getenv("STUB_CUDNN_DEVICE");
    void *made;
    if (real_create(DEVICE, &made) || real_set(made, DEVICE_JSON, TYPE_CHAR, (int64_t)strlen(json), json) ||
        real_finalize(made)) {
      fprintf(stderr, "cuDNN does not take the description of the card\n");
      abort();
    }
    described = made;
  }
  pthread_mutex_unlock(&lock);
  return described;
}

struct plan {
  void *descriptor, *config;
  int is_compiled;
  struct plan *next;
};
static struct plan *plans;

static struct plan *plan_of(void *descriptor) {
  pthread_mutex_lock(&lock);
  struct plan *found = plans;
  while (found && found->descriptor != descriptor) found = found->next;
  pthread_mutex_unlock(&lock);
  return found;
}

static void remember_plan(void *descriptor) {
  struct plan *plan = calloc(1, sizeof *plan);
  pthread_mutex_lock(&lock);
  *plan = (struct plan){.descriptor = descriptor, .next = plans};
  plans = plan;
  pthread_mutex_unlock(&lock);
}

static void forget_plan(void *descriptor) {
  pthread_mutex_lock(&lock);
  struct plan **place = &plans;
  while (*place && (*place)->descriptor != descriptor) place = &(*place)->next;
  struct plan *plan = *place;
  if (plan) *place = plan->next;
  pthread_mutex_unlock(&lock);
  free(plan);
}

static int is_compiled(void *config) {
  void *engine;
  int64_t count = 0;
  int notes[MOST_NOTES], found = 0;
  if (real_create(ENGINE, &engine)) return 1;
  int failed = real_get(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine) ||
               real_get(engine, ENGINE_BEHAVIOUR_NOTES, TYPE_BEHAVIOUR_NOTE, MOST_NOTES, &count, notes);
  for (int64_t each = 0; each < count && !failed; each++) found |= notes[each] == NOTE_COMPILED;
  real_destroy(engine);
  return failed || found;
}

int cudnnBackendCreateDescriptor(int kind, void **made) {
  int status = real_create(kind, made);
  if (status || (kind != HEURISTICS && kind != PLAN)) return status;
  if (kind == PLAN) remember_plan(*made);
  void *described = device();
  return real_set(*made, kind == PLAN ? PLAN_DEVICE : HEURISTICS_DEVICE, TYPE_DESCRIPTOR, 1, &described);
}

int cudnnBackendDestroyDescriptor(void *descriptor) {
  forget_plan(descriptor);
  return real_destroy(descriptor);
}

int cudnnBackendFinalize(void *descriptor) {
  struct plan *plan = plan_of(descriptor);
  if (plan && plan->config && is_compiled(plan->config)) return plan->is_compiled = 1, 0;
  return real_finalize(descriptor);
}

int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
  if (type == TYPE_HANDLE) return 0;
  struct plan *plan = plan_of(descriptor);
  if (plan && name == PLAN_CONFIG) plan->config = *(void **)values;
  return real_set(descriptor, name, type, count, values);
}

int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *values) {
  struct plan *plan = plan_of(descriptor);
  if (!plan || !plan->is_compiled) return real_get(descriptor, name, type, most, count, values);
  if (name == PLAN_WORKSPACE) return real_get(plan->config, CONFIG_WORKSPACE, TYPE_INT64, most, count, values);
  if (count) *count = 0;
  return 0;
}

size_t cudnnGetVersion(void) { return ((size_t(*)(void))real("cudnnGetVersion"))(); }
size_t cudnnGetCudartVersion(void) { return ((size_t(*)(void))real("cudnnGetCudartVersion"))(); }
int cudnnGetProperty(int which, int *value) { return ((int (*)(int, int *))real("cudnnGetProperty"))(which, value); }
const char *cudnnGetErrorString(int status) { return ((const char *(*)(int))real("cudnnGetErrorString"))(status); }
void cudnnGetLastErrorString(char *text, size_t most) {
  ((void (*)(char *, size_t))real("cudnnGetLastErrorString"))(text, most);
}

int cudnnCreate(void **handle) { return *handle = calloc(1, 64), 0; }
int cudnnGetStream(void *handle, void **stream) { return *stream = NULL, 0; }

#define MAKES_NOTHING(name) \
  int name(void **made) { return *made = calloc(1, 512), 0; }
MAKES_NOTHING(cudnnCreateActivationDescriptor)
MAKES_NOTHING(cudnnCreateCTCLossDescriptor)
MAKES_NOTHING(cudnnCreateConvolutionDescriptor)
MAKES_NOTHING(cudnnCreateDropoutDescriptor)
MAKES_NOTHING(cudnnCreateFilterDescriptor)
MAKES_NOTHING(cudnnCreatePoolingDescriptor)
MAKES_NOTHING(cudnnCreateRNNDataDescriptor)
MAKES_NOTHING(cudnnCreateRNNDescriptor)
MAKES_NOTHING(cudnnCreateSpatialTransformerDescriptor)
MAKES_NOTHING(cudnnCreateTensorDescriptor)

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x, void *z,
                                                             void *y, void *scale, void *activation, size_t *bytes) {
  return *bytes = 0, 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                      void *dy, void *dz, void *dx, void *scale, void *activation,
                                                      size_t *bytes) {
  return *bytes = 0, 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation,
                                                         void *x, size_t *bytes) {
  return *bytes = 0, 0;
}
#define CANNOT_BE_SIZED(name) \
  int name(void) { return 3000; }  // CUDNN_STATUS_NOT_SUPPORTED
CANNOT_BE_SIZED(cudnnSetRNNDescriptor_v8)
CANNOT_BE_SIZED(cudnnGetRNNWeightSpaceSize)
CANNOT_BE_SIZED(cudnnGetRNNTempSpaceSizes)
CANNOT_BE_SIZED(cudnnSetCTCLossDescriptorEx)
CANNOT_BE_SIZED(cudnnSetCTCLossDescriptor_v9)
CANNOT_BE_SIZED(cudnnGetCTCLossWorkspaceSize)
CANNOT_BE_SIZED(cudnnGetCTCLossWorkspaceSize_v8)

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) { return *bytes = 1 << 20, 0; }

#include "rest_cudnn.h"
