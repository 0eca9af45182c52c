/* A libnvidia-ml.so.1 that answers from a capture file instead of a driver.
 *
 * It owns the replay only: nvmlInitWithFlags reads the file named by AUTOTUNE_NVML_CAPTURE (format: see
 * autotune/device/capture.py) and every other function looks its answer up there. A question the capture
 * does not hold is answered with NVML_ERROR_NOT_FOUND, a missing or foreign file with NVML_ERROR_UNKNOWN. Written
 * from the public NVML API reference; it shares no code with NVIDIA's library. Layouts are the C ABI's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, BAD_VERSION = 25, UNKNOWN = 999 };
enum { MAX_LINES = 4096, MAX_SUBJECTS = 256, FIELD = 64, LINE = 8192 };

typedef struct { char name[FIELD]; } Subject; /* a handle is a pointer to one */
typedef struct { char subject[FIELD], question[FIELD]; int code; char *text; int used; } Entry;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

static Entry entries[MAX_LINES];
static int entry_count, initialised;
static Subject subjects[MAX_SUBJECTS];
static int subject_count;

static int read_line(char *line) {
    char kind[FIELD];
    int skip = 0;
    Entry *entry = &entries[entry_count];
    line[strcspn(line, "\r\n")] = 0;
    if (line[0] == '#' || line[0] == 0) return 1;
    if (sscanf(line, "%63s %63s %63s %n", entry->subject, entry->question, kind, &skip) < 3) return 0;
    entry->code = strcmp(kind, "ok") ? atoi(line + skip) : OK;
    entry->text = strdup(line + skip);
    entry->used = 0;
    entry_count++;
    return 1;
}

static int read_capture(void) {
    char line[LINE];
    const char *path = getenv("AUTOTUNE_NVML_CAPTURE");
    FILE *file = path ? fopen(path, "r") : NULL;
    int good = file && fgets(line, LINE, file) && !strncmp(line, "autotune-nvml-capture 1", 23);
    while (entry_count) free(entries[--entry_count].text);
    subject_count = 0;
    while (good && entry_count < MAX_LINES && fgets(line, LINE, file)) good = read_line(line);
    if (file) fclose(file);
    return good;
}

/* The answers of one question are taken in turn; the last one stays. `take` is 0 to look without moving on. */
static Entry *find(const char *subject, const char *question, int take) {
    Entry *last = NULL;
    for (int i = 0; i < entry_count; i++) {
        Entry *entry = &entries[i];
        if (strcmp(entry->subject, subject) || strcmp(entry->question, question)) continue;
        last = entry;
        if (!entry->used) break;
    }
    if (last && take) last->used = 1;
    return last;
}

static int answer(const char *subject, const char *question, const char **text) {
    if (!initialised) return UNINITIALIZED;
    if (!subject) return INVALID;
    Entry *entry = find(subject, question, 1);
    *text = entry ? entry->text : "";
    return entry ? entry->code : NOT_FOUND;
}

static int copy(const char *subject, const char *question, char *buffer, unsigned int length) {
    const char *text;
    int code = answer(subject, question, &text);
    if (code == OK && strlen(text) >= length) return TOO_SMALL;
    if (code == OK) strcpy(buffer, text);
    return code;
}

static int number(const char *subject, const char *question, unsigned int *value) {
    const char *text;
    int code = answer(subject, question, &text);
    if (code == OK) *value = (unsigned int)strtoul(text, NULL, 10);
    return code;
}

static int pair(const char *subject, const char *question, int *first, int *second) {
    const char *text;
    int code = answer(subject, question, &text);
    return code == OK && sscanf(text, "%d %d", first, second) != 2 ? UNKNOWN : code;
}

static int handle(const char *name, Subject **result) {
    const char *text;
    int code = answer(name, "handle", &text);
    if (code != OK) return code;
    for (int i = 0; i < subject_count; i++)
        if (!strcmp(subjects[i].name, name)) return *result = &subjects[i], OK;
    if (subject_count == MAX_SUBJECTS) return UNKNOWN;
    *result = &subjects[subject_count++];
    snprintf((*result)->name, FIELD, "%s", name);
    return OK;
}

static unsigned int read_processes(const char *text, Process *out) {
    unsigned int count = 0;
    for (const char *at = text; (at = strchr(at, ':')); at++, count++) {
        const char *start = at;
        if (!out) continue;
        while (start > text && start[-1] != ' ') start--;
        out[count].pid = (unsigned int)strtoul(start, NULL, 10);
        out[count].used = at[1] == '-' ? ~0ULL : strtoull(at + 1, NULL, 10);
        out[count].gpu_instance = out[count].compute_instance = ~0U;
    }
    return count;
}

/* NVML's two calls: the first, too short, learns the number; only the second takes the answer. */
static int processes(const Subject *card, const char *question, unsigned int *room, Process *out) {
    if (!initialised) return UNINITIALIZED;
    Entry *entry = find(card->name, question, 0);
    if (!entry) return NOT_FOUND;
    unsigned int count = entry->code == OK ? read_processes(entry->text, NULL) : 0;
    int fits = count <= *room;
    if (entry->code != OK || fits) entry->used = 1;
    if (entry->code != OK) return entry->code;
    *room = count;
    if (!fits) return TOO_SMALL;
    if (out) read_processes(entry->text, out);
    return OK;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!read_capture()) return UNKNOWN;
    Entry *entry = find("system", "init", 1);
    initialised = entry && entry->code == OK;
    return entry ? entry->code : NOT_FOUND;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return initialised ? (initialised = 0, OK) : UNINITIALIZED; }
const char *nvmlErrorString(int code) { return code == OK ? "Success" : "Replayed error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned int n) { return copy("system", "driver", out, n); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return number("system", "cuda", (unsigned int *)out); }
int nvmlDeviceGetCount_v2(unsigned int *out) { return number("system", "count", out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Subject **out) {
    char name[FIELD];
    snprintf(name, FIELD, "gpu%u", index);
    return handle(name, out);
}
int nvmlDeviceGetMigDeviceHandleByIndex(const Subject *card, unsigned int index, Subject **out) {
    char name[FIELD];
    snprintf(name, FIELD, "%.32s.mig%u", card->name, index);
    return handle(name, out);
}

int nvmlDeviceGetName(const Subject *card, char *out, unsigned int n) { return copy(card->name, "name", out, n); }
int nvmlDeviceGetUUID(const Subject *card, char *out, unsigned int n) { return copy(card->name, "uuid", out, n); }

int nvmlDeviceGetPciInfo_v3(const Subject *card, Pci *out) {
    memset(out, 0, sizeof *out);
    int code = copy(card->name, "pci", out->bus_id, sizeof out->bus_id);
    if (code == OK) sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return code;
}

int nvmlDeviceGetMemoryInfo(const Subject *card, Memory *out) {
    const char *text;
    int code = answer(card->name, "memory", &text);
    if (code != OK) return code;
    return sscanf(text, "%llu %llu %llu", &out->total, &out->free, &out->used) == 3 ? OK : UNKNOWN;
}
int nvmlDeviceGetMemoryInfo_v2(const Subject *card, MemoryV2 *out) {
    const char *text;
    if (out->version != (sizeof *out | 2u << 24)) return BAD_VERSION;
    int code = answer(card->name, "memory_v2", &text);
    if (code != OK) return code;
    int read = sscanf(text, "%llu %llu %llu %llu", &out->total, &out->reserved, &out->free, &out->used);
    return read == 4 ? OK : UNKNOWN;
}

int nvmlDeviceGetCudaComputeCapability(const Subject *card, int *major, int *minor) {
    return pair(card->name, "capability", major, minor);
}
int nvmlDeviceGetMigMode(const Subject *card, unsigned int *current, unsigned int *pending) {
    return pair(card->name, "mig_mode", (int *)current, (int *)pending);
}
int nvmlDeviceGetNumGpuCores(const Subject *card, unsigned int *out) { return number(card->name, "cores", out); }
int nvmlDeviceGetDisplayActive(const Subject *card, unsigned int *out) { return number(card->name, "display", out); }
int nvmlDeviceGetMaxMigDeviceCount(const Subject *card, unsigned int *out) {
    return number(card->name, "mig_slots", out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const Subject *card, unsigned int *room, Process *out) {
    return processes(card, "compute_processes", room, out);
}
int nvmlDeviceGetComputeRunningProcesses_v2(const Subject *card, unsigned int *room, Process *out) {
    return processes(card, "compute_processes_v2", room, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(const Subject *card, unsigned int *room, Process *out) {
    return processes(card, "graphics_processes", room, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(const Subject *card, unsigned int *room, Process *out) {
    return processes(card, "graphics_processes_v2", room, out);
}
