/* How a device is: every value is a key of its line, and what has no key is not supported. */
#define _GNU_SOURCE
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long reference, violation; } Violation;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long sll; } Value;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type, result;
    Value value;
} FieldValue;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;

static int number(const Device *device, const char *key, double *value) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    error = record_number(record, key, value);
    facts_unlock();
    return error;
}
static int whole(const Device *device, const char *key, unsigned *into) {
    double value = 0;
    int error = number(device, key, &value);
    if (!error) *into = (unsigned)value;
    return error;
}
static int big(const Device *device, const char *key, unsigned long long *into) {
    const Record *record;
    long long value = 0;
    int error = device_enter(device, &record);
    if (error) return error;
    error = record_integer(record, key, &value);
    facts_unlock();
    if (!error) *into = (unsigned long long)value;
    return error;
}

int nvmlDeviceGetUtilizationRates(const Device *device, Utilization *rates) {
    /* NVML does not say it for MIG devices, nor for a GPU in MIG mode. */
    unsigned mig = 0;
    if (device && (device->parent || (whole(device, "mig", &mig) == OK && mig))) return NOT_SUPPORTED;
    int error = whole(device, "util", &rates->gpu);
    return error ? error : whole(device, "mem_util", &rates->memory);
}
int nvmlDeviceGetEncoderUtilization(const Device *device, unsigned *percent, unsigned *period) {
    *period = 100000;
    return whole(device, "enc_util", percent);
}
int nvmlDeviceGetDecoderUtilization(const Device *device, unsigned *percent, unsigned *period) {
    *period = 100000;
    return whole(device, "dec_util", percent);
}
int nvmlDeviceGetPowerUsage(const Device *device, unsigned *milliwatts) { return whole(device, "power", milliwatts); }
int nvmlDeviceGetEnforcedPowerLimit(const Device *device, unsigned *milliwatts) {
    return whole(device, "power_limit", milliwatts);
}
int nvmlDeviceGetTotalEnergyConsumption(const Device *device, unsigned long long *millijoules) {
    return big(device, "energy", millijoules);
}
int nvmlDeviceGetTemperature(const Device *device, unsigned sensor, unsigned *degrees) {
    return sensor ? INVALID_ARGUMENT : whole(device, "temperature", degrees);
}
int nvmlDeviceGetClockInfo(const Device *device, unsigned type, unsigned *mhz) {
    static const char *const keys[] = {"clock_graphics", "clock_sm", "clock_memory", "clock_video"};
    return type < 4 ? whole(device, keys[type], mhz) : INVALID_ARGUMENT;
}
int nvmlDeviceGetPcieReplayCounter(const Device *device, unsigned *value) { return whole(device, "pcie_replay", value); }
int nvmlDeviceGetCurrentClocksEventReasons(const Device *device, unsigned long long *reasons) {
    return big(device, "clock_reasons", reasons);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(const Device *device, unsigned long long *reasons) {
    return big(device, "clock_reasons", reasons);
}
int nvmlDeviceGetViolationStatus(const Device *device, unsigned policy, Violation *violation) {
    char key[32];
    snprintf(key, sizeof key, "violation_%u", policy);
    violation->reference = (unsigned long long)time(NULL) * 1000000ull;
    return big(device, key, &violation->violation);
}
int nvmlDeviceGetTotalEccErrors(const Device *device, unsigned type, unsigned counter, unsigned long long *errors) {
    static const char *const keys[] = {"ecc_sbe_volatile", "ecc_sbe_aggregate", "ecc_dbe_volatile", "ecc_dbe_aggregate"};
    return type < 2 && counter < 2 ? big(device, keys[type * 2 + counter], errors) : INVALID_ARGUMENT;
}
int nvmlDeviceGetRemappedRows(const Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    int error = whole(device, "remap_corrected", corrected);
    if (!error) error = whole(device, "remap_uncorrected", uncorrected);
    if (!error) error = whole(device, "remap_pending", pending);
    return error ? error : whole(device, "remap_failed", failed);
}

/* `field gpu=<uuid> id=230 value=1 [scope=0] [type=1]`; a key `recovery` of the GPU is field 230. */
static void field(const Device *device, const Record *own, FieldValue *wanted) {
    long long id, scope, value = 0;
    wanted->result = NOT_SUPPORTED;
    if (wanted->field == 230 && record_integer(own, "recovery", &value) == OK) {
        wanted->result = OK, wanted->type = 1, wanted->value.ull = 0, wanted->value.u = (unsigned)value;
        return;
    }
    for (int i = 0; i < facts_count(); i++) {
        const Record *line = facts_at(i);
        const char *gpu = strcmp(line->kind, "field") ? NULL : record_text(line, "gpu");
        if (!gpu || strcmp(gpu, device->uuid) || record_integer(line, "id", &id) || id != wanted->field) continue;
        if (record_integer(line, "scope", &scope) == OK && scope != wanted->scope) continue;
        long long type = 3;
        record_integer(line, "type", &type);
        double real = 0;
        record_number(line, "value", &real);
        record_integer(line, "value", &value);
        wanted->result = OK, wanted->type = (int)type, wanted->value.ull = 0;
        if (type == 0) wanted->value.d = real;
        else if (type == 1) wanted->value.u = (unsigned)value;
        else wanted->value.ull = (unsigned long long)value;
        return;
    }
}
int nvmlDeviceGetFieldValues(const Device *device, int count, FieldValue *values) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (int64_t)time(NULL) * 1000000;
        field(device, record, &values[i]);
    }
    facts_unlock();
    return OK;
}

/* `process gpu=<uuid> pid=1 memory=100 [gi=1 ci=0]` */
int nvmlDeviceGetComputeRunningProcesses_v3(const Device *device, unsigned *count, Process *processes) {
    const Record *record;
    int error = device_enter(device, &record);
    if (error) return error;
    unsigned room = processes ? *count : 0, found = 0;
    for (int i = 0; i < facts_count(); i++) {
        const char *gpu = strcmp(facts_at(i)->kind, "process") ? NULL : record_text(facts_at(i), "gpu");
        if (!gpu || strcmp(gpu, device->uuid)) continue;
        if (found < room) {
            long long pid = 0, mib = 0, gi = 0xffffffff, ci = 0xffffffff;
            record_integer(facts_at(i), "pid", &pid);
            record_integer(facts_at(i), "memory", &mib);
            record_integer(facts_at(i), "gi", &gi);
            record_integer(facts_at(i), "ci", &ci);
            processes[found] = (Process){(unsigned)pid, (unsigned long long)mib << 20, (unsigned)gi, (unsigned)ci};
        }
        found++;
    }
    facts_unlock();
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

/* GPM: `gpm gpu=<uuid> id=2 value=55.5 [gi=1]`; a GPU with `gpm=1` supports it. A sample remembers where it was taken. */
typedef struct { const Device *device; long long gi; } Sample;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int result; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metric[]; } Metrics;

int nvmlGpmQueryDeviceSupport(const Device *device, Support *support) {
    unsigned value = 0;
    int error = whole(device, "gpm", &value);
    support->supported = value;
    return error == NOT_SUPPORTED ? OK : error;
}
int nvmlGpmSampleAlloc(Sample **sample) { return (*sample = calloc(1, sizeof **sample)) ? OK : UNKNOWN_ERROR; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }
static int take(const Device *device, long long gi, Sample *sample) {
    unsigned value = 0;
    int error = whole(device, "gpm", &value);
    if (!error && !value) error = NOT_SUPPORTED;
    if (!error) *sample = (Sample){device, gi};
    return error;
}
int nvmlGpmSampleGet(const Device *device, Sample *sample) { return take(device, -1, sample); }
int nvmlGpmMigSampleGet(const Device *device, unsigned gi, Sample *sample) { return take(device, gi, sample); }
int nvmlGpmMetricsGet(Metrics *metrics) {
    const Record *record;
    if (!metrics->first || !metrics->second || !metrics->first->device) return INVALID_ARGUMENT;
    int error = device_enter(metrics->first->device, &record);
    if (error) return error;
    for (unsigned wanted = 0; wanted < metrics->count; wanted++) {
        Metric *metric = &metrics->metric[wanted];
        metric->result = NOT_SUPPORTED;
        for (int i = 0; i < facts_count(); i++) {
            long long id = 0, gi = -1;
            const char *gpu = strcmp(facts_at(i)->kind, "gpm") ? NULL : record_text(facts_at(i), "gpu");
            if (!gpu || strcmp(gpu, metrics->first->device->uuid) || record_integer(facts_at(i), "id", &id)) continue;
            record_integer(facts_at(i), "gi", &gi);
            if (id != metric->id || gi != metrics->first->gi) continue;
            metric->result = record_number(facts_at(i), "value", &metric->value);
        }
    }
    facts_unlock();
    return OK;
}
