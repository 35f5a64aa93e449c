/* TensorFlow's operators for collectives, by its C interface: one library for all versions 2 of it.
 * Building the wheel makes `operators.so` of this file, and `tf.load_op_library` runs its constructor.
 * A kernel hands memory of TensorFlow's to a function of the compiled module, src/tensorflow.rs.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* From tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h: building must not need TensorFlow. */
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
enum { TF_OK = 0, TF_RESOURCE_EXHAUSTED = 8, TF_INT64 = 9, MAX_DIMENSIONS = 254 };

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
void TF_SetStatus(TF_Status *, int, const char *);
int TF_GetCode(const TF_Status *);
void TF_DeleteTensor(TF_Tensor *);
int TF_TensorType(const TF_Tensor *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *, int);
size_t TF_TensorByteSize(const TF_Tensor *);
void *TF_TensorData(const TF_Tensor *);
size_t TF_DataTypeSize(int);
TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);
int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext *);
TF_ShapeHandle *TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle *);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *, TF_Status *);
TF_KernelBuilder *TF_NewKernelBuilder(
    const char *, const char *, void *(*)(TF_OpKernelConstruction *),
    void (*)(void *, TF_OpKernelContext *), void (*)(void *));
void TF_RegisterKernelBuilder(const char *, TF_KernelBuilder *, TF_Status *);
void TF_OpKernelConstruction_GetAttrInt64(
    TF_OpKernelConstruction *, const char *, int64_t *, TF_Status *);
void TF_OpKernelConstruction_GetAttrString(
    TF_OpKernelConstruction *, const char *, char *, size_t, TF_Status *);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *, TF_Status *);
int TF_NumInputs(TF_OpKernelContext *);
void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
TF_Tensor *TF_AllocateOutput(
    TF_OpKernelContext *, int, int, const int64_t *, int, size_t, TF_Status *);
TF_Tensor *TF_ForwardInputOrAllocateOutput(
    TF_OpKernelContext *, const int *, int, int, const int64_t *, int, int *, TF_Status *);
void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *);

/* The numbers are those of src/tensorflow.rs, as is the order of the fields below. */
enum verb { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ABORT };

/* A tensor as memory. What is received may be where it is sent from. */
struct buffer {
    const void *send;
    void *recv;
    size_t bytes;
};

/* A collective of buffers, which have all been allocated; or of one whose rows are split among the
 * ranks, whose output `allocate` makes when its rows are known. */
struct operation {
    int32_t verb, dtype;
    int64_t root;
    const char *op;
    const struct buffer *buffers;
    size_t count;
    /* This rank's rows of an all-gather; those of all ranks of a reduce-scatter. */
    const int64_t *rows;
    size_t rows_count, row_bytes;
    /* The tensor's dimensions after the first one. */
    const int64_t *row_shape;
    size_t row_dimensions;
    void *(*allocate)(void *kernel, int32_t output, int64_t rows);
    void *kernel;
    void (*fail)(TF_Status *, int, const char *);
    TF_Status *status;
};

static void (*make)(const struct operation *);

/* Tells the function that makes calls. Python does this once, before any operator is used. */
void ringreduce_connect(void (*function)(const struct operation *)) { make = function; }

struct attributes {
    int64_t root;
    char op[16];
};

/* The attributes of a kernel: the reduction's name, or a root. */
static void *create(TF_OpKernelConstruction *construction, bool is_rooted) {
    TF_Status *status = TF_NewStatus();
    struct attributes *attributes = calloc(1, sizeof *attributes);
    if (!attributes) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for the attributes of a kernel");
    } else if (is_rooted) {
        TF_OpKernelConstruction_GetAttrInt64(construction, "root", &attributes->root, status);
    } else {
        /* The last byte stays zero: the value has no end of its own. */
        TF_OpKernelConstruction_GetAttrString(
            construction, "op", attributes->op, sizeof attributes->op - 1, status);
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return attributes;
}

static void *create_by_op(TF_OpKernelConstruction *construction) { return create(construction, false); }
static void *create_rooted(TF_OpKernelConstruction *construction) { return create(construction, true); }

/* The shape of a tensor: its number of dimensions. */
static int shape(const TF_Tensor *tensor, int64_t *dimensions) {
    int count = TF_NumDims(tensor);
    for (int at = 0; at < count; at++) dimensions[at] = TF_Dim(tensor, at);
    return count;
}

/* Makes a call, or has the other ranks know that this one, whose memory failed, does not. */
static void make_or_abort(const struct operation *operation, TF_Status *status) {
    static const struct operation abort = {.verb = ABORT};
    make(TF_GetCode(status) == TF_OK ? operation : &abort);
}

static void end(TF_OpKernelContext *context, TF_Status *status) {
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    TF_DeleteStatus(status);
}

/* Makes a call of all inputs, whose outputs have their shapes, and are in their memory if nobody
 * else needs it. */
static void compute_same_shape(TF_OpKernelContext *context, enum verb verb,
                               const struct attributes *of) {
    TF_Status *status = TF_NewStatus();
    int count = TF_NumInputs(context), dtype = 0;
    TF_Tensor **outputs = calloc(count, sizeof *outputs);
    struct buffer *buffers = calloc(count, sizeof *buffers);
    if (!outputs || !buffers) TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a call");
    for (int at = 0; at < count && TF_GetCode(status) == TF_OK; at++) {
        TF_Tensor *input;
        TF_GetInput(context, at, &input, status);
        if (TF_GetCode(status) != TF_OK) break;
        int64_t dimensions[MAX_DIMENSIONS];
        int dimensions_count = shape(input, dimensions), forwarded;
        dtype = TF_TensorType(input);
        buffers[at].send = TF_TensorData(input);
        buffers[at].bytes = TF_TensorByteSize(input);
        /* The context holds the input too; memory with another holder is not handed on. */
        TF_DeleteTensor(input);
        outputs[at] = TF_ForwardInputOrAllocateOutput(
            context, &at, 1, at, dimensions, dimensions_count, &forwarded, status);
        if (TF_GetCode(status) == TF_OK) buffers[at].recv = TF_TensorData(outputs[at]);
    }
    struct operation operation = {
        .verb = verb, .dtype = dtype, .root = of->root, .op = of->op, .buffers = buffers,
        .count = count, .fail = TF_SetStatus, .status = status,
    };
    make_or_abort(&operation, status);
    for (int at = 0; outputs && at < count; at++)
        if (outputs[at]) TF_DeleteTensor(outputs[at]);
    free(outputs);
    free(buffers);
    end(context, status);
}

static void compute_all_reduce(void *of, TF_OpKernelContext *context) {
    compute_same_shape(context, ALL_REDUCE, of);
}
static void compute_reduce(void *of, TF_OpKernelContext *context) {
    compute_same_shape(context, REDUCE, of);
}
static void compute_broadcast(void *of, TF_OpKernelContext *context) {
    compute_same_shape(context, BROADCAST, of);
}

/* A kernel under way whose output's rows are not known from the beginning. */
struct by_rows {
    TF_OpKernelContext *context;
    TF_Status *status;
    int dtype, dimensions_count;
    int64_t dimensions[MAX_DIMENSIONS];
    TF_Tensor *outputs[2];
};

/* Output 0 with these rows, or output 1, which is so many numbers; NULL if it can't be had. */
static void *allocate(void *kernel, int32_t output, int64_t rows) {
    struct by_rows *of = kernel;
    int dtype = output == 0 ? of->dtype : TF_INT64, count = output == 0 ? of->dimensions_count : 1;
    size_t bytes = TF_DataTypeSize(dtype) * rows;
    of->dimensions[0] = rows;
    for (int at = 1; at < count; at++) bytes *= of->dimensions[at];
    of->outputs[output] = TF_AllocateOutput(
        of->context, output, dtype, of->dimensions, count, bytes, of->status);
    return TF_GetCode(of->status) == TF_OK ? TF_TensorData(of->outputs[output]) : NULL;
}

/* Makes a call of input 0. Input 1 of a reduce-scatter has the rows of all ranks. */
static void compute_by_rows(TF_OpKernelContext *context, enum verb verb) {
    struct by_rows of = {.context = context, .status = TF_NewStatus()};
    TF_Tensor *inputs[2] = {NULL, NULL};
    TF_GetInput(context, 0, &inputs[0], of.status);
    if (TF_GetCode(of.status) == TF_OK && verb == REDUCE_SCATTER)
        TF_GetInput(context, 1, &inputs[1], of.status);
    if (TF_GetCode(of.status) == TF_OK) {
        of.dtype = TF_TensorType(inputs[0]);
        of.dimensions_count = shape(inputs[0], of.dimensions);
        int64_t own_rows = of.dimensions_count > 0 ? of.dimensions[0] : 1;
        size_t row_bytes = TF_DataTypeSize(of.dtype);
        for (int at = 1; at < of.dimensions_count; at++) row_bytes *= of.dimensions[at];
        if (of.dimensions_count == 0) of.dimensions_count = 1;
        struct buffer buffer = {TF_TensorData(inputs[0]), NULL, TF_TensorByteSize(inputs[0])};
        struct operation operation = {
            .verb = verb, .dtype = of.dtype, .op = "sum", .buffers = &buffer, .count = 1,
            .rows = inputs[1] ? TF_TensorData(inputs[1]) : &own_rows,
            .rows_count = inputs[1] ? TF_TensorByteSize(inputs[1]) / sizeof(int64_t) : 1,
            .row_bytes = row_bytes, .row_shape = of.dimensions + 1,
            .row_dimensions = of.dimensions_count - 1, .allocate = allocate, .kernel = &of,
            .fail = TF_SetStatus, .status = of.status,
        };
        make(&operation);
    } else {
        make_or_abort(NULL, of.status);
    }
    for (int at = 0; at < 2; at++) {
        if (inputs[at]) TF_DeleteTensor(inputs[at]);
        if (of.outputs[at]) TF_DeleteTensor(of.outputs[at]);
    }
    end(context, of.status);
}

static void compute_all_gather(void *of, TF_OpKernelContext *context) {
    (void)of;
    compute_by_rows(context, ALL_GATHER);
}
static void compute_reduce_scatter(void *of, TF_OpKernelContext *context) {
    (void)of;
    compute_by_rows(context, REDUCE_SCATTER);
}

/* Outputs have the shapes of the inputs. */
static void infer_same_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeHandle *handle = TF_NewShapeHandle();
    int64_t count = TF_ShapeInferenceContextNumInputs(context);
    for (int at = 0; at < count && TF_GetCode(status) == TF_OK; at++) {
        TF_ShapeInferenceContextGetInput(context, at, handle, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSetOutput(context, at, handle, status);
    }
    TF_DeleteShapeHandle(handle);
}

/* An operator and its kernel. Words of `attributes`, `inputs` and `outputs` end with NULL. */
struct description {
    const char *name, *attribute, *inputs[3], *outputs[3];
    void *(*create)(TF_OpKernelConstruction *);
    void (*compute)(void *, TF_OpKernelContext *);
    void (*infer)(TF_ShapeInferenceContext *, TF_Status *);
};

static const struct description OPERATORS[] = {
    {"RingreduceAllReduce", "op: string", {"tensors: N * T"}, {"reduced: N * T"},
     create_by_op, compute_all_reduce, infer_same_shape},
    {"RingreduceReduce", "root: int", {"tensor: T"}, {"reduced: T"},
     create_rooted, compute_reduce, infer_same_shape},
    {"RingreduceBroadcast", "root: int", {"tensor: T"}, {"copy: T"},
     create_rooted, compute_broadcast, infer_same_shape},
    {"RingreduceAllGather", NULL, {"tensor: T"}, {"gathered: T", "rows: int64"},
     NULL, compute_all_gather, TF_ShapeInferenceContextSetUnknownShape},
    {"RingreduceReduceScatter", NULL, {"tensor: T", "rows: int64"}, {"part: T"},
     NULL, compute_reduce_scatter, TF_ShapeInferenceContextSetUnknownShape},
};

__attribute__((constructor)) static void register_operators(void) {
    TF_Status *status = TF_NewStatus();
    for (size_t at = 0; at < sizeof OPERATORS / sizeof *OPERATORS; at++) {
        const struct description *of = &OPERATORS[at];
        TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder(of->name);
        TF_OpDefinitionBuilderAddAttr(builder, "T: type");
        if (of->create == create_by_op) TF_OpDefinitionBuilderAddAttr(builder, "N: int >= 1");
        if (of->attribute) TF_OpDefinitionBuilderAddAttr(builder, of->attribute);
        for (const char *const *it = of->inputs; *it; it++) TF_OpDefinitionBuilderAddInput(builder, *it);
        for (const char *const *it = of->outputs; *it; it++)
            TF_OpDefinitionBuilderAddOutput(builder, *it);
        TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, of->infer);
        /* An operator with effects is neither dropped, folded nor merged, and those of a function
         * run in the order of the program. */
        TF_OpDefinitionBuilderSetIsStateful(builder, true);
        TF_RegisterOpDefinition(builder, status);
        void (*delete)(void *) = of->create ? free : NULL;
        TF_KernelBuilder *kernel =
            TF_NewKernelBuilder(of->name, "CPU", of->create, of->compute, delete);
        TF_RegisterKernelBuilder(of->name, kernel, status);
    }
    TF_DeleteStatus(status);
}
