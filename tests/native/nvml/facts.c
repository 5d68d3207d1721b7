/* Reading the facts file, and what every call has in common: a device may be lost, failing, gone, or hang. */
#define _GNU_SOURCE
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Record *records;
static int count;
static struct stat seen;
static Device *devices;

void facts_lock(void) { pthread_mutex_lock(&lock); }
void facts_unlock(void) { pthread_mutex_unlock(&lock); }

int facts_count(void) { return count; }
const Record *facts_at(int index) { return &records[index]; }

static char *word(char *at, char *into, size_t size) {
    size_t used = 0;
    int quoted = 0;
    for (; *at && *at != '\n' && (quoted || (*at != ' ' && *at != '\t')); at++) {
        if (*at == '"') { quoted = !quoted; continue; }
        if (used + 1 < size) into[used++] = *at;
    }
    into[used] = 0;
    while (*at == ' ' || *at == '\t') at++;
    return at;
}

static void parse(char *line) {
    char text[TEXT + 40];
    while (*line == ' ' || *line == '\t') line++;
    if (!*line || *line == '#' || *line == '\n' || count == MAX_RECORDS) return;
    Record *record = &records[count++];
    record->pairs = 0; /* the rest is never read: untouched pages cost nothing */
    line = word(line, record->kind, sizeof record->kind);
    while (*line && *line != '\n' && record->pairs < MAX_PAIRS) {
        line = word(line, text, sizeof text);
        char *equals = strchr(text, '=');
        if (!equals) continue;
        *equals = 0;
        Pair *pair = &record->pair[record->pairs++];
        snprintf(pair->key, sizeof pair->key, "%.31s", text);
        snprintf(pair->value, sizeof pair->value, "%.95s", equals + 1);
    }
}

void facts_refresh(void) {
    const char *path = getenv("GPUBANK_FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) { count = 0; memset(&seen, 0, sizeof seen); return; }
    if (records && now.st_ino == seen.st_ino && now.st_size == seen.st_size
        && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!records) records = calloc(MAX_RECORDS, sizeof *records);
    char line[4096];
    count = 0;
    while (fgets(line, sizeof line, file)) parse(line);
    fclose(file);
    seen = now;
}

const char *record_text(const Record *record, const char *key) {
    for (int i = 0; record && i < record->pairs; i++)
        if (!strcmp(record->pair[i].key, key)) return record->pair[i].value;
    return NULL;
}

int record_number(const Record *record, const char *key, double *value) {
    const char *text = record_text(record, key);
    if (!text || !*text) return NOT_SUPPORTED;
    *value = strtod(text, NULL);
    return OK;
}

int record_integer(const Record *record, const char *key, long long *value) {
    const char *text = record_text(record, key);
    if (!text || !*text) return NOT_SUPPORTED;
    *value = strtoll(text, NULL, 0);
    return OK;
}

const Record *facts_find(const char *kind, const char *key, const char *value) {
    for (int i = 0; i < count; i++) {
        const char *text = strcmp(records[i].kind, kind) ? NULL : record_text(&records[i], key);
        if (text && !strcasecmp(text, value)) return &records[i];
    }
    return NULL;
}

Device *device_named(const char *uuid, Device *parent) {
    for (Device *device = devices; device; device = device->next)
        if (device->parent == parent && !strcmp(device->uuid, uuid)) return device;
    Device *device = calloc(1, sizeof *device);
    snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    device->parent = parent;
    device->next = devices;
    devices = device;
    return device;
}

int device_enter(const Device *device, const Record **found) {
    if (!device) return INVALID_ARGUMENT;
    const char *gpu = device->parent ? device->parent->uuid : device->uuid;
    for (;;) {
        long long value = 0;
        facts_lock();
        facts_refresh();
        const Record *record = facts_find("gpu", "uuid", gpu);
        int hangs = record && record_integer(record, "hang", &value) == OK && value;
        if (!hangs) {
            int error = !record ? GPU_IS_LOST : OK;
            if (!error && record_integer(record, "lost", &value) == OK && value) error = GPU_IS_LOST;
            if (!error && record_integer(record, "fail", &value) == OK && value) error = (int)value;
            if (!error && device->parent && !(record = facts_find("mig", "uuid", device->uuid))) error = NOT_FOUND;
            if (error) facts_unlock();
            *found = record;
            return error;
        }
        facts_unlock();
        usleep(5000);
    }
}
