/* Events: `event number=7 gpu=<uuid> type=8 data=79 [gi=1 ci=0]`. A set hears what was numbered after it was made. */
#define _GNU_SOURCE
#include "facts.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ALL 0xffffffffu

typedef struct { const Device *device; unsigned long long types; } Registration;
typedef struct { long long heard; int count; Registration registered[64]; } EventSet;
typedef struct { const Device *device; unsigned long long type, data; unsigned gi, ci; } EventData;

static long long newest(void) {
    long long most = 0, value = 0;
    for (int i = 0; i < facts_count(); i++)
        if (!strcmp(facts_at(i)->kind, "event") && record_integer(facts_at(i), "number", &value) == OK && value > most)
            most = value;
    return most;
}

int nvmlEventSetCreate(EventSet **set) {
    if (!(*set = calloc(1, sizeof **set))) return UNKNOWN_ERROR;
    facts_lock();
    facts_refresh();
    (*set)->heard = newest();
    facts_unlock();
    return OK;
}
int nvmlEventSetFree(EventSet *set) { free(set); return OK; }

int nvmlDeviceGetSupportedEventTypes(const Device *device, unsigned long long *types) {
    const Record *record;
    long long value = 0x1 | 0x2 | 0x8 | 0x10 | 0x100 | 0x4000 | 0x8000;
    if (device && device->parent) return NOT_SUPPORTED; /* events come on the GPU, never on its MIG devices */
    int error = device_enter(device, &record);
    if (error) return error;
    record_integer(record, "events", &value);
    facts_unlock();
    *types = (unsigned long long)value;
    return OK;
}
int nvmlDeviceRegisterEvents(const Device *device, unsigned long long types, EventSet *set) {
    unsigned long long supported = 0;
    int error = nvmlDeviceGetSupportedEventTypes(device, &supported);
    if (error) return error;
    if (types & ~supported) return NOT_SUPPORTED;
    if (set->count < 64) set->registered[set->count++] = (Registration){device, types};
    return OK;
}

static int next(EventSet *set, EventData *data) {
    const Record *best = NULL;
    long long number = 0, lowest = 0;
    for (int i = 0; i < facts_count(); i++) {
        const Record *line = facts_at(i);
        if (strcmp(line->kind, "event") || record_integer(line, "number", &number)) continue;
        if (number <= set->heard || (best && number >= lowest)) continue;
        best = line, lowest = number;
    }
    if (!best) return TIMEOUT;
    set->heard = lowest;
    long long type = 8, value = 0, gi = ALL, ci = ALL;
    record_integer(best, "type", &type);
    record_integer(best, "data", &value);
    record_integer(best, "gi", &gi);
    record_integer(best, "ci", &ci);
    const char *uuid = record_text(best, "gpu");
    for (int i = 0; uuid && i < set->count; i++) {
        if (strcmp(set->registered[i].device->uuid, uuid) || !(set->registered[i].types & (unsigned long long)type))
            continue;
        *data = (EventData){set->registered[i].device, (unsigned long long)type, (unsigned long long)value,
                            (unsigned)gi, (unsigned)ci};
        return OK;
    }
    return next(set, data); /* nobody registered for that one */
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    double end = seconds() + timeout_ms / 1000.0;
    for (;;) {
        long long value = 0;
        int found = TIMEOUT, hangs = 0, lost = 0;
        facts_lock();
        facts_refresh();
        for (int i = 0; i < facts_count(); i++)
            if (!strcmp(facts_at(i)->kind, "system") && record_integer(facts_at(i), "hang_events", &value) == OK)
                hangs = value != 0;
        if (!hangs) found = next(set, data);
        for (int i = 0; i < set->count; i++)
            if (record_integer(facts_find("gpu", "uuid", set->registered[i].device->uuid), "lost", &value) == OK && value)
                lost = 1;
        facts_unlock();
        if (found == OK) return OK;
        if (!hangs && lost) return GPU_IS_LOST; /* at once and every time: callers must back off */
        if (!hangs && seconds() >= end) return TIMEOUT;
        usleep(5000);
    }
}
