/* How a framework tells what a tensor is, without a copy and without Python: the C exchange of
   DLPack (version 1), of which torch has one at `torch.Tensor.__dlpack_c_exchange_api__`. Here is
   what we use of it, laid out as the standard says. */
#ifndef SONDE_TENSORS_H
#define SONDE_TENSORS_H

#include <stdint.h>

enum { ON_HOST = 1, ON_CUDA = 2 };
enum { INTEGER = 0, UNSIGNED = 1, FLOAT = 2, BFLOAT = 4, BOOLEAN = 6, E4M3FN = 10, E5M2 = 12 };

typedef struct {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t n_dims;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    const int64_t *sizes, *strides; /* in elements */
    uint64_t byte_offset;
} Tensor;

typedef struct {
    uint32_t major, minor;
    void *older;
    void *allocate, *from_object, *to_object;
    int (*view)(void *object, Tensor *out);                   /* borrowed: valid while it lives */
    int (*stream)(int32_t type, int32_t index, void **stream); /* that work is given to now */
} Exchange;

#endif
