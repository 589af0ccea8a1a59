/* Kernels that keep what a graph computes of its variables alone, between calls.

   TfAmpRecall(sources) -> found, token       of the record kept, if it is of these
   TfAmpKeep(token, sources, values) -> token of a new record, which is kept from now on
   TfAmpKept(token) -> values                 of a record

   A record is of the sources that lie in the same memory. It holds on to that, so that
   nobody gets it for something else, and whoever changes a variable finds its memory
   shared, and takes other memory (PrepareToUpdateVariable in tensorflow/core/kernels/
   training_op_helpers.h). A token, of which TensorFlow knows no more than that it is
   two numbers, holds on to its record. So each call goes on with the record that it has
   found or made, whatever other threads do meanwhile.

   Built without TensorFlow's headers and linked against nothing of it: Python passes
   the functions of tensorflow/c/kernels.h and tensorflow/c/tf_tensor.h in a table. */

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;

enum { INT64 = 9, BOOL = 10, RESOURCE_EXHAUSTED = 8 };
/* Of a token: TensorFlow copies what begins at no multiple of 64 or less. */
enum { ALIGNMENT = 256 };

/* In the order of `_FUNCTIONS` in kept_kernels.py. */
typedef struct functions {
  TF_Status *(*new_status)(void);
  void (*delete_status)(TF_Status *);
  void (*set_status)(TF_Status *, int code, const char *message);
  int (*num_inputs)(TF_OpKernelContext *);
  int (*num_outputs)(TF_OpKernelContext *);
  void (*get_input)(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
  void (*set_output)(TF_OpKernelContext *, int, const TF_Tensor *, TF_Status *);
  TF_Tensor *(*allocate_output)(TF_OpKernelContext *, int, int type,
                                const int64_t *sizes, int rank, size_t bytes,
                                TF_Status *);
  void (*fail)(TF_OpKernelContext *, TF_Status *);
  TF_Tensor *(*new_tensor)(int type, const int64_t *sizes, int rank, void *data,
                           size_t bytes,
                           void (*deallocate)(void *, size_t, void *), void *);
  void (*delete_tensor)(TF_Tensor *);
  void *(*data)(const TF_Tensor *);
  size_t (*byte_size)(const TF_Tensor *);
  void (*attr_size)(TF_OpKernelConstruction *, const char *, int32_t *length,
                    int32_t *bytes, TF_Status *);
} functions;

static functions tf;

/* References to tensors. */
typedef struct tensors {
  int count;
  TF_Tensor **of;
} tensors;

typedef struct record {
  atomic_int holders;
  tensors sources, values;
} record;

/* What one kernel of TfAmpRecall keeps. */
typedef struct store {
  pthread_mutex_t lock;
  record *kept;
  struct store *next, *previous;
} store;

typedef struct token {
  store *from;
  record *of;
} token;

static atomic_int keeping = 1;
/* All stores, for `tf_amp_stop_keeping`. */
static pthread_mutex_t stores_lock = PTHREAD_MUTEX_INITIALIZER;
static store stores = {.next = &stores, .previous = &stores};

/* In a forked child no other thread lives on that holds a lock. */
static void renew_locks(void) {
  pthread_mutex_init(&stores_lock, NULL);
  for (store *each = stores.next; each != &stores; each = each->next)
    pthread_mutex_init(&each->lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, renew_locks);
}

static void release(tensors *given) {
  for (int i = 0; i < given->count; i++)
    if (given->of[i]) tf.delete_tensor(given->of[i]);
  free(given->of);
}

static record *hold(record *given) {
  if (given) atomic_fetch_add(&given->holders, 1);
  return given;
}

static void let_go(record *given) {
  if (!given || atomic_fetch_sub(&given->holders, 1) > 1) return;
  release(&given->sources);
  release(&given->values);
  free(given);
}

/* Keep a record, which its caller goes on holding, or NULL, in place of the last one. */
static void put(store *into, record *made) {
  hold(made);
  pthread_mutex_lock(&into->lock);
  record *last = into->kept;
  into->kept = made;
  pthread_mutex_unlock(&into->lock);
  let_go(last);
}

/* Hold inputs from `first` on; returns 0 when done. */
static int take(TF_OpKernelContext *context, int first, int count, tensors *taken,
                TF_Status *status) {
  taken->of = calloc(count ? count : 1, sizeof *taken->of);
  if (!taken->of) return -1;
  taken->count = count;
  for (int i = 0; i < count; i++) {
    tf.get_input(context, first + i, &taken->of[i], status);
    if (!taken->of[i]) return -1;
  }
  return 0;
}

static int same(const tensors *some, const tensors *others) {
  if (some->count != others->count) return 0;
  for (int i = 0; i < some->count; i++)
    if (tf.data(some->of[i]) != tf.data(others->of[i]) ||
        tf.byte_size(some->of[i]) != tf.byte_size(others->of[i]))
      return 0;
  return 1;
}

static void free_token(void *data, size_t bytes, void *unused) {
  (void)bytes;
  (void)unused;
  let_go(((token *)data)->of);
  free(data);
}

/* Write a token, which holds its record, as output `i`; returns 0 when done. */
static int write_token(TF_OpKernelContext *context, int i, store *from, record *of,
                       TF_Status *status) {
  const int64_t two = sizeof(token) / sizeof(int64_t);
  token *made = aligned_alloc(ALIGNMENT, ALIGNMENT);
  if (!made) return -1;
  *made = (token){from, hold(of)};
  TF_Tensor *output = tf.new_tensor(INT64, &two, 1, made, sizeof *made, free_token, 0);
  if (!output) {
    free_token(made, sizeof *made, NULL);
    return -1;
  }
  tf.set_output(context, i, output, status);
  tf.delete_tensor(output);
  return 0;
}

/* Read input 0; its tensor, to be released, holds the record. */
static int read_token(TF_OpKernelContext *context, tensors *input, token *read,
                      TF_Status *status) {
  if (take(context, 0, 1, input, status) != 0) return -1;
  memcpy(read, tf.data(input->of[0]), sizeof *read);
  return 0;
}

static void end(TF_OpKernelContext *context, TF_Status *status, int failed) {
  if (failed) {
    tf.set_status(status, RESOURCE_EXHAUSTED, "tf-amp: no memory to keep weights in");
    tf.fail(context, status);
  }
  tf.delete_status(status);
}

EXPORT void *tf_amp_make_store(TF_OpKernelConstruction *unused) {
  (void)unused;
  store *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  pthread_mutex_init(&made->lock, NULL);
  pthread_mutex_lock(&stores_lock);
  made->next = stores.next;
  made->previous = &stores;
  made->next->previous = stores.next = made;
  pthread_mutex_unlock(&stores_lock);
  return made;
}

EXPORT void tf_amp_delete_store(void *kernel) {
  store *given = kernel;
  if (!given) return;
  pthread_mutex_lock(&stores_lock);
  given->previous->next = given->next;
  given->next->previous = given->previous;
  pthread_mutex_unlock(&stores_lock);
  let_go(given->kept);
  pthread_mutex_destroy(&given->lock);
  free(given);
}

EXPORT void tf_amp_recall(void *kernel, TF_OpKernelContext *context) {
  store *from = kernel;
  TF_Status *status = tf.new_status();
  tensors sources = {0};
  record *last = NULL;
  int failed = take(context, 0, tf.num_inputs(context), &sources, status);
  if (!failed && from && atomic_load(&keeping)) {
    pthread_mutex_lock(&from->lock);
    last = hold(from->kept);
    pthread_mutex_unlock(&from->lock);
  }
  int found = !failed && last && same(&sources, &last->sources);
  TF_Tensor *flag = tf.allocate_output(context, 0, BOOL, NULL, 0, 1, status);
  if (flag) {
    *(unsigned char *)tf.data(flag) = (unsigned char)found;
    tf.delete_tensor(flag);
  }
  failed = failed || !flag ||
           write_token(context, 1, from, found ? last : NULL, status) != 0;
  let_go(last);
  release(&sources);
  end(context, status, failed);
}

/* Note how many of the inputs of a TfAmpKeep are values. */
EXPORT void *tf_amp_count_values(TF_OpKernelConstruction *construction) {
  TF_Status *status = tf.new_status();
  int32_t *count = calloc(1, sizeof *count), bytes = 0;
  if (count) tf.attr_size(construction, "Tkept", count, &bytes, status);
  tf.delete_status(status);
  return count;
}

EXPORT void tf_amp_forget_count(void *kernel) { free(kernel); }

EXPORT void tf_amp_keep(void *kernel, TF_OpKernelContext *context) {
  int32_t *count = kernel;
  TF_Status *status = tf.new_status();
  tensors input = {0};
  token given = {0};
  record *made = calloc(1, sizeof *made);
  int failed = !made || !count || read_token(context, &input, &given, status) != 0;
  if (!failed) {
    int sources = tf.num_inputs(context) - 1 - *count;
    failed = take(context, 1, sources, &made->sources, status) != 0 ||
             take(context, 1 + sources, *count, &made->values, status) != 0;
  }
  hold(made);
  if (!failed) {
    if (given.from && atomic_load(&keeping)) put(given.from, made);
    /* Who has stopped it meanwhile may have come by before. */
    if (given.from && !atomic_load(&keeping)) put(given.from, NULL);
    failed = write_token(context, 0, given.from, made, status) != 0;
  }
  let_go(made);
  release(&input);
  end(context, status, failed);
}

EXPORT void tf_amp_kept(void *unused, TF_OpKernelContext *context) {
  (void)unused;
  TF_Status *status = tf.new_status();
  tensors input = {0};
  token given = {0};
  int count = tf.num_outputs(context);
  int failed = read_token(context, &input, &given, status) != 0 || !given.of ||
               given.of->values.count != count;
  for (int i = 0; !failed && i < count; i++)
    tf.set_output(context, i, given.of->values.of[i], status);
  release(&input);
  end(context, status, failed);
}

/* Set the functions of TensorFlow that the kernels call. */
EXPORT void tf_amp_set_functions(const functions *given) { tf = *given; }

/* Keep nothing from now on, in whatever graph, and let go of what is kept. */
EXPORT void tf_amp_stop_keeping(void) {
  atomic_store(&keeping, 0);
  pthread_mutex_lock(&stores_lock);
  for (store *each = stores.next; each != &stores; each = each->next) put(each, NULL);
  pthread_mutex_unlock(&stores_lock);
}
