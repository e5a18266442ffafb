/* The kernels as XLA calls them: handlers of its foreign function interface.

   The interface is plain C structures that grow at their ends and say how long they are. Those used
   here are declared here, so that building needs nothing of XLA; a process whose XLA has shorter
   ones, or another major version, gets an error and no wrong number.

   A call has n arrays as arguments and one result, n rows; or k times as many, for the k equal parts
   that each array is then taken for, one after the other in memory. On the CPU the pass is the one of pass.c.
   On CUDA the functions of sketch.cu are launched on XLA's stream through the driver; nothing else is
   done there, so XLA may put a call into a CUDA graph. */
#include <Python.h>

#include "sketch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- the interface -------------------------------------------------------------------------------- */

enum { METADATA = 1, EXECUTE = 3, INVALID = 3, INTERNAL = 13, IS_BUFFER = 1, CAN_BE_CAPTURED = 1 };

typedef struct Extension {
    size_t size;
    int type;
    struct Extension *next;
} Extension;

typedef struct {
    size_t size;
    Extension *extension;
    int major, minor;
} Version;

typedef struct {
    size_t size;
    Version version;
    uint32_t traits;
} Metadata;

typedef struct {
    Extension base;
    Metadata *metadata;
} MetadataExtension;

typedef struct {
    size_t size;
    Extension *extension;
    const char *message;
    int code;
} ErrorArguments;

typedef struct {
    size_t size;
    Extension *extension;
    void *context;
    void *stream; /* out */
} StreamArguments;

typedef struct {
    size_t size;
    Extension *extension;
    Version version;
    const void *internal;
    void *(*create_error)(ErrorArguments *);
    void *get_message, *destroy_error, *register_handler;
    void *(*get_stream)(StreamArguments *);
} Api;

typedef struct {
    size_t size;
    Extension *extension;
    int type;
    void *data;
    int64_t rank, *sizes;
} Buffer;

typedef struct {
    size_t size;
    Extension *extension;
    int64_t n;
    int *types;
    Buffer **buffers;
} Buffers;

typedef struct {
    size_t size;
    Extension *extension;
    const Api *api;
    void *context;
    int stage;
    Buffers arguments, results;
} Frame;

static void *fail(const Frame *frame, int code, const char *message)
{
    ErrorArguments arguments = {sizeof arguments, NULL, message, code};
    return frame->api->create_error(&arguments);
}

/* XLA asks first which version a handler was written for and what it may do with it. */
static int is_metadata(const Frame *frame, uint32_t traits)
{
    const Extension *extension = frame->extension;
    if (!extension || extension->type != METADATA)
        return 0;
    Metadata *metadata = ((const MetadataExtension *)extension)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = frame->api ? frame->api->version.minor : 1;
    metadata->traits = traits;
    return 1;
}

/* The number format behind a type of XLA's; -1 if the kernels do not read it. */
enum { COMPLEX64 = 15, COMPLEX128 = 18 };

static int format_of(int type)
{
    static const signed char formats[] = {
        [1] = BOOL + 1,     [2] = INT8 + 1,     [3] = INT16 + 1,   [4] = INT32 + 1,
        [5] = INT64 + 1,    [6] = UINT8 + 1,    [7] = UINT16 + 1,  [8] = UINT32 + 1,
        [9] = UINT64 + 1,   [10] = FLOAT16 + 1, [11] = FLOAT32 + 1, [12] = FLOAT64 + 1,
        [16] = BFLOAT16 + 1, [19] = FLOAT8_E5M2 + 1, [20] = FLOAT8_E4M3FN + 1,
        [24] = FLOAT8_E5M2FNUZ + 1, [25] = FLOAT8_E4M3FNUZ + 1, [33] = FLOAT8_E8M0FNU + 1,
    };
    if (type < 0 || type >= (int)sizeof formats)
        return -1;
    return formats[type] - 1;
}

static int64_t length(const Buffer *buffer)
{
    int64_t n = 1;
    for (int64_t d = 0; d < buffer->rank; d++)
        n *= buffer->sizes[d];
    return n;
}

/* How many parts each array is taken for. */
static int64_t parts_of(const Frame *frame)
{
    int64_t n = frame->arguments.n;
    return n ? length(frame->results.buffers[0]) / (n * WORDS * 2) : 0;
}

/* What is wrong with a call, or NULL. */
static const char *wrong(const Frame *frame)
{
    if (frame->size < sizeof(Frame) || frame->arguments.size < sizeof(Buffers) ||
        frame->results.size < sizeof(Buffers))
        return "this XLA has a foreign function interface that Sonde does not know";
    if (frame->stage != EXECUTE)
        return "Sonde's handler runs in the execute stage only";
    int64_t n = frame->arguments.n;
    if (frame->results.n != 1 || length(frame->results.buffers[0]) % (n * WORDS * 2 + !n))
        return "a sketch of n arrays has one result of n rows, or of several for each";
    for (int64_t i = 0; i < n; i++)
        if (frame->arguments.types[i] != IS_BUFFER ||
            frame->arguments.buffers[i]->size < sizeof(Buffer))
            return "a sketch takes arrays";
    for (int64_t i = 0; i < n; i++)
        if (length(frame->arguments.buffers[i]) % parts_of(frame))
            return "an array cannot be taken apart into equal parts";
    return NULL;
}

/* -- the CPU -------------------------------------------------------------------------------------- */

/* Complex numbers count by their modulus, taken in float64. */
static void add_moduli(int64_t *row, int type, const char *data, int64_t n)
{
    double moduli[BLOCK];
    const float *narrow = (const void *)data;
    const double *wide = (const void *)data;
    Item item = {.row = row, .data = (const char *)moduli, .repeat = 1, .format = FLOAT64};
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t some = n - i < BLOCK ? n - i : BLOCK;
        for (int64_t k = 0; k < some; k++) {
            int64_t at = 2 * (i + k);
            moduli[k] = type == COMPLEX64 ? hypot(narrow[at], narrow[at + 1])
                                                  : hypot(wide[at], wide[at + 1]);
        }
        item.n = some;
        sonde_add(&item, 1);
    }
}

/* One thread: XLA runs calls beside each other and beside its own work. */
static void *sketch_on_cpu(Frame *frame)
{
    if (is_metadata(frame, 0))
        return NULL;
    const char *mistake = wrong(frame);
    if (mistake)
        return fail(frame, INVALID, mistake);
    int64_t *row = frame->results.buffers[0]->data, parts = parts_of(frame);
    for (int64_t i = 0; i < frame->arguments.n * parts; i++, row += WORDS) {
        const Buffer *buffer = frame->arguments.buffers[i / parts];
        int64_t n = length(buffer) / parts, first = i % parts * n;
        int format = format_of(buffer->type), type = buffer->type;
        const char *data = buffer->data;
        sonde_clear(row);
        if (n == 0)
            continue;
        if (type == COMPLEX64 || type == COMPLEX128) {
            add_moduli(row, type, data + first * (type == COMPLEX64 ? 8 : 16), n);
            continue;
        }
        if (format < 0)
            return fail(frame, INVALID, "the C kernel does not read this number format");
        Item item = {.row = row, .data = data + first * sonde_item_size(format), .n = n,
                     .repeat = 1, .format = format};
        sonde_add(&item, 1);
    }
    return NULL;
}

/* -- CUDA ----------------------------------------------------------------------------------------- */

enum { SEVERAL = 16, MAX_DEVICES = 64, N_ENTRIES = 9 + 2 * N_FORMATS };

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void *, void **, void **);
typedef int (*StreamContext)(void *, void **);

/* One device: what cuda.py's `Kernel.for_xla` lists, in its order. `view_code` is -1 for formats that
   the CUDA source does not read. `one` is 0 where there is no entry that reads 16 bytes at a time. */
typedef struct {
    int64_t launch, stream_context, context, multiprocessors, threads, piece;
    int64_t take, view, several;
    int64_t one[N_FORMATS], code[N_FORMATS];
} Device;

static Device devices[MAX_DEVICES];
static int n_devices;

/* As in sketch.cu. */
typedef struct {
    const char *x[SEVERAL];
    int64_t first[SEVERAL + 1], n[SEVERAL];
    int64_t *row[SEVERAL];
    int format[SEVERAL];
} Table;

static int launch(const Device *device, int64_t function, int64_t blocks, void *stream,
                  void **arguments)
{
    if (blocks > device->multiprocessors)
        blocks = device->multiprocessors;
    return ((Launch)(intptr_t)device->launch)((void *)(intptr_t)function,
                                              (unsigned)(blocks < 1 ? 1 : blocks), 1, 1,
                                              (unsigned)device->threads, 1, 1, 0, stream, arguments,
                                              NULL);
}

static int empty_rows(const Device *device, int64_t *rows, int64_t n, void *stream)
{
    int64_t *nowhere = NULL, words = n * WORDS;
    void *arguments[] = {&rows, &nowhere, &words};
    return launch(device, device->take, 2 * n, stream, arguments);
}

static int add_one(const Device *device, int format, const char *x, int64_t n, int64_t *row,
                   void *stream)
{
    int64_t repeat = 1, width = sonde_item_size(format);
    void *gate = NULL;
    if (device->one[format]) {
        void *arguments[] = {&x, &n, &row, &repeat, &gate};
        return launch(device, device->one[format], n * width / 16384, stream, arguments);
    }
    int code = (int)device->code[format];
    int64_t one = 1, none = 0;
    void *arguments[] = {&x,   &n,   &code, &row,  &repeat, &gate, &one,  &one,
                         &one, &one, &n,    &none, &none,   &none, &none, &one};
    return launch(device, device->view, n / 2048, stream, arguments);
}

static int is_together(int format)
{
    return format == FLOAT32 || format == FLOAT16 || format == BFLOAT16;
}

static int add_table(const Device *device, const Table *table, int n, void *stream)
{
    void *gate = NULL;
    void *arguments[] = {(void *)table, &n, &gate};
    return launch(device, device->several, table->first[n], stream, arguments);
}

static int add_all(const Device *device, const Frame *frame, void *stream)
{
    int64_t *rows = frame->results.buffers[0]->data, parts = parts_of(frame);
    int64_t n = frame->arguments.n * parts;
    int failed = empty_rows(device, rows, n, stream), held = 0;
    Table table;
    memset(&table, 0, sizeof table);
    for (int64_t i = 0; i < n && !failed; i++) {
        const Buffer *buffer = frame->arguments.buffers[i / parts];
        int64_t values = length(buffer) / parts, *row = rows + i * WORDS;
        int format = format_of(buffer->type);
        if (values == 0)
            continue;
        const char *x = (const char *)buffer->data + i % parts * values * sonde_item_size(format);
        if (n == 1 || !is_together(format)) {
            failed = add_one(device, format, x, values, row, stream);
            continue;
        }
        table.x[held] = x, table.n[held] = values, table.row[held] = row;
        table.format[held] = (int)device->code[format];
        table.first[held + 1] = table.first[held] + (values + device->piece - 1) / device->piece;
        if (++held == SEVERAL) {
            failed = add_table(device, &table, held, stream);
            held = 0;
        }
    }
    return failed || !held ? failed : add_table(device, &table, held, stream);
}

static const Device *device_of(void *stream)
{
    for (int i = 0; i < n_devices; i++) {
        void *context = NULL;
        if (((StreamContext)(intptr_t)devices[i].stream_context)(stream, &context))
            return NULL;
        if ((int64_t)(intptr_t)context == devices[i].context)
            return devices + i;
    }
    return NULL;
}

static void *sketch_on_cuda(Frame *frame)
{
    if (is_metadata(frame, CAN_BE_CAPTURED))
        return NULL;
    const char *mistake = wrong(frame);
    if (mistake)
        return fail(frame, INVALID, mistake);
    StreamArguments arguments = {sizeof arguments, NULL, frame->context, NULL};
    void *error = frame->api->get_stream(&arguments);
    if (error)
        return error;
    const Device *device = device_of(arguments.stream);
    if (!device)
        return fail(frame, INTERNAL, "Sonde's kernel is not loaded on this device");
    for (int64_t i = 0; i < frame->arguments.n; i++) {
        int format = format_of(frame->arguments.buffers[i]->type);
        if (format < 0 || device->code[format] < 0)
            return fail(frame, INVALID, "the CUDA kernel does not read this number format");
    }
    if (frame->arguments.n && add_all(device, frame, arguments.stream))
        return fail(frame, INTERNAL, "CUDA could not launch Sonde's kernel");
    return NULL;
}

/* -- Python --------------------------------------------------------------------------------------- */

PyObject *sonde_xla_handlers(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return Py_BuildValue("LL", (long long)(intptr_t)sketch_on_cpu,
                         (long long)(intptr_t)sketch_on_cuda);
}

/* A device from an int64 array of N_ENTRIES entries. A context that is known is replaced. */
PyObject *sonde_xla_device(PyObject *self, PyObject *address)
{
    (void)self;
    Device device;
    long long at = PyLong_AsLongLong(address);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    memcpy(&device, (const void *)(intptr_t)at, N_ENTRIES * sizeof(int64_t));
    int i = 0;
    while (i < n_devices && devices[i].context != device.context)
        i++;
    if (i == MAX_DEVICES) {
        PyErr_SetString(PyExc_RuntimeError, "There are more CUDA devices than Sonde can serve.");
        return NULL;
    }
    devices[i] = device;
    n_devices = i < n_devices ? n_devices : i + 1;
    Py_RETURN_NONE;
}
