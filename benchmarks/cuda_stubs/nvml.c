// Stub of the driver's management library for one card, which holds what the processes that use the stubs hold.

#include <string.h>

#include "card.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
#define CARD ((void *)64)
#define NO_INSTANCE (~0u)

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return "an error of the stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "stub"), SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, SUCCESS; }
int nvmlSystemGetProcessName(unsigned process, char *text, unsigned size) {
  return snprintf(text, size, "%u", process), SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
  return *card = CARD, index ? INVALID_ARGUMENT : SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) { return *card = CARD, SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **card) { return *card = CARD, SUCCESS; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
  return snprintf(text, size, "GPU-00000000-0000-0000-0000-000000000000"), SUCCESS;
}
int nvmlDeviceGetName(void *card, char *text, unsigned size) {
  return snprintf(text, size, "%s", card_name()), SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) {
  *major = capability_major();
  *minor = capability_minor();
  return SUCCESS;
}
int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *celsius) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(void *card, void *rates) { return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(void *card, unsigned *now, unsigned *later) { return NOT_SUPPORTED; }
int nvmlDeviceGetMaxMigDeviceCount(void *card, unsigned *count) { return *count = 0, SUCCESS; }

struct memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void *card, struct memory *memory) {
  *memory = (struct memory){card_bytes(), free_bytes(), card_bytes() - free_bytes()};
  return SUCCESS;
}

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo_v2(void *card, struct memory_v2 *memory) {
  *memory = (struct memory_v2){memory->version, card_bytes(), 0, free_bytes(), card_bytes() - free_bytes()};
  return SUCCESS;
}

struct process {
  unsigned number;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, struct process *processes) {
  unsigned most = *count, found = 0;
  DIR *folder = opendir(usage_folder());
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    int number = entry->d_name[0] == '.' ? 0 : atoi(entry->d_name);
    size_t used = number ? held_by(number) : 0;
    if (used && found < most) processes[found] = (struct process){number, used, NO_INSTANCE, NO_INSTANCE};
    found += used > 0;
  }
  if (folder) closedir(folder);
  *count = found;
  return found > most ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses(void *card, unsigned *count, void *processes) { return *count = 0, SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *card, unsigned *count, void *processes) {
  return *count = 0, SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *card, unsigned link, int *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *card, unsigned link, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *card, void *info) { return SUCCESS; }  // left at zero: no fabric
