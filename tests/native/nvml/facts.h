/* The facts that the library tells, read from a small text file again whenever it has changed. */
#ifndef GPUBANK_FACTS_H
#define GPUBANK_FACTS_H

#include <stddef.h>
#include <stdint.h>

/* Return codes, event bits and field numbers are NVML's own: they are what callers compare with. */
enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN_ERROR = 999
};

#define MAX_RECORDS 4096
#define MAX_PAIRS 64
#define TEXT 96

typedef struct { char key[32]; char value[TEXT]; } Pair;

/* One line of the file: `kind key=value key="a value" ...`. */
typedef struct { char kind[16]; int pairs; Pair pair[MAX_PAIRS]; } Record;

/* A GPU or a MIG device, as callers hold it. It is never freed, so that a stale handle stays harmless. */
typedef struct Device { char uuid[TEXT]; struct Device *parent; struct Device *next; } Device;

void facts_lock(void);
void facts_unlock(void);

/* Below: only between lock and unlock. */
void facts_refresh(void);
int facts_count(void);
const Record *facts_at(int index);
const char *record_text(const Record *record, const char *key);
int record_number(const Record *record, const char *key, double *value);
int record_integer(const Record *record, const char *key, long long *value);
const Record *facts_find(const char *kind, const char *key, const char *value);

/* A device's own record after the file was read, or the error that the device answers with. A device that hangs is
   waited for without the lock. Returns with the lock held if OK, without it otherwise. */
int device_enter(const Device *device, const Record **record);
Device *device_named(const char *uuid, Device *parent);

#endif
