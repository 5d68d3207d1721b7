/* The session, and what a device is: identity, MIG, neighbours. */
#define _GNU_SOURCE
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fixed when the session starts, as the driver does: a GPU that comes later is seen by the next session. */
static char visible[64][TEXT];
static int visible_count, sessions;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mb;
} Attributes;

static int copy(const char *text, char *into, unsigned size) {
    if (!text) return NOT_SUPPORTED;
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return OK;
}

static int system_error(void) {
    long long value = 0;
    for (;;) {
        facts_lock();
        facts_refresh();
        const Record *system = NULL;
        for (int i = 0; i < facts_count(); i++)
            if (!strcmp(facts_at(i)->kind, "system")) system = facts_at(i);
        if (!system || record_integer(system, "hang", &value) || !value) {
            int error = system && record_integer(system, "fail", &value) == OK ? (int)value : OK;
            facts_unlock();
            return error;
        }
        facts_unlock();
        usleep(5000);
    }
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int error = system_error();
    if (error) return error;
    facts_lock();
    if (sessions++ == 0) {
        visible_count = 0;
        for (int i = 0; i < facts_count() && visible_count < 64; i++)
            if (!strcmp(facts_at(i)->kind, "gpu"))
                copy(record_text(facts_at(i), "uuid"), visible[visible_count++], TEXT);
    }
    facts_unlock();
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    facts_lock();
    int error = sessions ? OK : UNINITIALIZED;
    if (sessions) sessions--;
    facts_unlock();
    return error;
}

const char *nvmlErrorString(int error) {
    switch (error) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static int system_text(const char *key, const char *otherwise, char *into, unsigned size) {
    int error = system_error();
    if (error) return error;
    facts_lock();
    const char *text = NULL;
    for (int i = 0; i < facts_count(); i++)
        if (!strcmp(facts_at(i)->kind, "system")) text = record_text(facts_at(i), key);
    error = copy(text ? text : otherwise, into, size);
    facts_unlock();
    return error;
}
int nvmlSystemGetDriverVersion(char *into, unsigned size) { return system_text("driver", "580.95.05", into, size); }
int nvmlSystemGetNVMLVersion(char *into, unsigned size) { return system_text("nvml", "13.580.95.05", into, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return system_error(); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int error = system_error();
    facts_lock();
    *count = (unsigned)visible_count;
    if (!error && !sessions) error = UNINITIALIZED;
    facts_unlock();
    return error;
}

static int by_uuid(const char *uuid, Device **device) {
    const Record *record;
    facts_lock();
    Device *found = device_named(uuid, NULL);
    facts_unlock();
    int error = device_enter(found, &record);
    if (error) return error;
    facts_unlock();
    *device = found;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= (unsigned)visible_count) return INVALID_ARGUMENT;
    return by_uuid(visible[index], device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    for (int i = 0; i < visible_count; i++)
        if (!strcmp(visible[i], uuid)) return by_uuid(uuid, device);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(const Device *device, char *into, unsigned size) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    facts_unlock();
    return copy(device->uuid, into, size);
}

static int text(const Device *device, const char *key, char *into, unsigned size) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    error = copy(record_text(record, key), into, size);
    facts_unlock();
    return error;
}
int nvmlDeviceGetSerial(const Device *device, char *into, unsigned size) { return text(device, "serial", into, size); }

int nvmlDeviceGetName(const Device *device, char *into, unsigned size) {
    if (!device || !device->parent) return text(device, "name", into, size);
    char profile[TEXT] = "";
    int error = text(device, "profile", profile, sizeof profile);
    if (error == OK) error = text(device->parent, "name", into, size);
    if (error) return error;
    size_t used = strlen(into);
    return snprintf(into + used, size - used, " MIG %s", profile) < (int)(size - used) ? OK : INSUFFICIENT_SIZE;
}

static int integer(const Device *device, const char *key, long long *value) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    error = record_integer(record, key, value);
    facts_unlock();
    return error;
}
static int whole(const Device *device, const char *key, unsigned *into) {
    long long value = 0;
    int error = integer(device, key, &value);
    if (!error) *into = (unsigned)value;
    return error;
}
int nvmlDeviceGetMinorNumber(const Device *device, unsigned *into) { return whole(device, "minor", into); }
int nvmlDeviceGetArchitecture(const Device *device, unsigned *into) { return whole(device, "arch", into); }
int nvmlDeviceGetGpuInstanceId(const Device *device, unsigned *into) { return whole(device, "gi", into); }
int nvmlDeviceGetComputeInstanceId(const Device *device, unsigned *into) { return whole(device, "ci", into); }
int nvmlDeviceGetNumaNodeId(const Device *device, unsigned *into) { return whole(device, "numa_gpu", into); }

int nvmlDeviceGetIndex(const Device *device, unsigned *index) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    facts_unlock();
    for (int i = 0; i < visible_count; i++)
        if (!strcmp(visible[i], device->uuid)) { *index = (unsigned)i; return OK; }
    return NOT_FOUND;
}

int nvmlDeviceGetCudaComputeCapability(const Device *device, int *major, int *minor) {
    char value[TEXT];
    int error = text(device, "cc", value, sizeof value);
    if (!error && sscanf(value, "%d.%d", major, minor) != 2) error = UNKNOWN_ERROR;
    return error;
}

static int fill_pci(const char *bus, PciInfo *info) {
    memset(info, 0, sizeof *info);
    if (sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) return UNKNOWN_ERROR;
    snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus, info->device);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(const Device *device, PciInfo *info) {
    char bus[TEXT];
    long long number = 0;
    int error = text(device, "bus", bus, sizeof bus);
    if (!error) error = fill_pci(bus, info);
    if (!error && integer(device, "pci", &number) == OK) info->pci_device = (unsigned)number;
    return error;
}

static int memory(const Device *device, unsigned long long *total, unsigned long long *used) {
    long long mib = 0, busy = 0;
    int error = integer(device, "memory", &mib);
    if (error) return error;
    integer(device, "used", &busy);
    *total = (unsigned long long)mib << 20;
    *used = (unsigned long long)busy << 20;
    return OK;
}
int nvmlDeviceGetMemoryInfo(const Device *device, Memory *info) {
    int error = memory(device, &info->total, &info->used);
    info->free = info->total - info->used;
    return error;
}
int nvmlDeviceGetMemoryInfo_v2(const Device *device, MemoryV2 *info) {
    long long reserved = 0;
    int error = memory(device, &info->total, &info->used);
    if (!error) integer(device, "reserved", &reserved);
    info->reserved = (unsigned long long)reserved << 20;
    info->free = info->total - info->used - info->reserved;
    return error;
}

int nvmlDeviceGetMemoryAffinity(const Device *device, unsigned size, unsigned long *set, unsigned scope) {
    long long node = 0;
    (void)scope;
    int error = integer(device, "numa", &node);
    if (error) return error;
    memset(set, 0, size * sizeof *set);
    if (node >= 0 && node < (long long)(size * 64)) set[node / 64] = 1ul << (node % 64);
    return OK;
}

int nvmlDeviceGetMigMode(const Device *device, unsigned *current, unsigned *pending) {
    int error = whole(device, "mig", current);
    *pending = *current;
    return error;
}
int nvmlDeviceGetMaxMigDeviceCount(const Device *device, unsigned *count) {
    unsigned mode = 0;
    int error = whole(device, "mig", &mode);
    *count = error ? 0 : 7;
    return error == NOT_SUPPORTED ? OK : error;
}

/* MIG devices have holes in their numbering, as on the real thing: `slot` says where one sits. */
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **mig) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    error = NOT_FOUND;
    for (int i = 0, place = 0; i < facts_count(); i++) {
        const Record *line = facts_at(i);
        const char *gpu = strcmp(line->kind, "mig") ? NULL : record_text(line, "gpu");
        if (!gpu || strcmp(gpu, device->uuid)) continue;
        long long slot = place++;
        record_integer(line, "slot", &slot);
        if (slot == (long long)index) { *mig = device_named(record_text(line, "uuid"), device); error = OK; break; }
    }
    facts_unlock();
    return error;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const Device *mig, Device **device) {
    const Record *record;
    if (!mig || !mig->parent) return INVALID_ARGUMENT;
    int error = device_enter(mig, &record);
    if (error) return error;
    facts_unlock();
    *device = mig->parent;
    return OK;
}
int nvmlDeviceGetAttributes_v2(const Device *device, Attributes *attributes) {
    long long mib = 0;
    memset(attributes, 0, sizeof *attributes);
    int error = integer(device, "memory", &mib);
    if (!error) error = whole(device, "gi_slices", &attributes->gi_slices);
    if (!error) error = whole(device, "ci_slices", &attributes->ci_slices);
    attributes->memory_mb = (unsigned long long)mib;
    return error;
}

static const Record *between(const char *kind, const char *one, const char *other) {
    for (int i = 0; i < facts_count(); i++) {
        const char *a = strcmp(facts_at(i)->kind, kind) ? NULL : record_text(facts_at(i), "a");
        const char *b = a ? record_text(facts_at(i), "b") : NULL;
        if (b && ((!strcmp(a, one) && !strcmp(b, other)) || (!strcmp(a, other) && !strcmp(b, one)))) return facts_at(i);
    }
    return NULL;
}
int nvmlDeviceGetTopologyCommonAncestor(const Device *one, const Device *other, unsigned *level) {
    const Record *record;
    long long value = 0;
    int error = device_enter(one, &record);
    if (error) return error;
    error = record_integer(between("near", one->uuid, other->uuid), "level", &value);
    facts_unlock();
    *level = (unsigned)value;
    return error;
}

/* `link gpu=<uuid> number=0 remote=<bus>` */
static int link_of(const Device *device, unsigned number, char *remote, unsigned size) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    error = NOT_SUPPORTED;
    for (int i = 0; i < facts_count(); i++) {
        long long value = -1;
        const char *gpu = strcmp(facts_at(i)->kind, "link") ? NULL : record_text(facts_at(i), "gpu");
        if (!gpu || strcmp(gpu, device->uuid) || record_integer(facts_at(i), "number", &value)) continue;
        if (value == (long long)number) { error = copy(record_text(facts_at(i), "remote"), remote, size); break; }
    }
    facts_unlock();
    return error;
}
int nvmlDeviceGetNvLinkState(const Device *device, unsigned number, unsigned *active) {
    char remote[TEXT];
    int error = link_of(device, number, remote, sizeof remote);
    *active = !error;
    return error;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(const Device *device, unsigned number, PciInfo *info) {
    char remote[TEXT];
    int error = link_of(device, number, remote, sizeof remote);
    return error ? error : fill_pci(remote, info);
}
