/* Register a Grappler optimizer for one device type and pass its graphs to Python.

   TensorFlow calls `optimize` on any of its threads with a serialized GraphDef. The
   bytes go to the callback that Python has set; what Python writes with
   `tf_amp_write_graph` goes back. The graph is returned unchanged while there is no
   callback, when the callback fails, when Python does not answer in time, and in a
   forked child until it sets its own.

   Built without TensorFlow's headers and linked against nothing of it: the structs
   below restate tensorflow/c/tf_buffer.h and
   tensorflow/c/experimental/grappler/grappler.h. Nothing here takes a lock, so a
   thread can neither wait here for Python nor leave a lock behind in a forked child.
   Compiled once per device type, since one library registers one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef DEVICE_TYPE
#define DEVICE_TYPE "CPU"
#endif

#define EXPORT __attribute__((visibility("default")))
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

typedef struct TF_Status TF_Status;
typedef struct TF_GrapplerItem TF_GrapplerItem;

typedef struct TF_Buffer {
  const void *data;
  size_t length;
  void (*data_deallocator)(void *data, size_t length);
} TF_Buffer;

/* One switch per built-in optimizer; 0 leaves TensorFlow's own choice. */
typedef struct TP_OptimizerConfigs {
  size_t struct_size;
  void *ext;
  int32_t switches[19];
} TP_OptimizerConfigs;

typedef struct TP_Optimizer {
  size_t struct_size;
  void *ext;
  void *(*create_func)(void);
  void (*optimize_func)(void *, const TF_Buffer *, const TF_GrapplerItem *,
                        TF_Buffer *, TF_Status *);
  void (*destroy_func)(void *);
} TP_Optimizer;

typedef struct TP_OptimizerRegistrationParams {
  size_t struct_size;
  void *ext;
  int32_t major_version;
  int32_t minor_version;
  int32_t patch_version;
  const char *device_type;
  TP_OptimizerConfigs *optimizer_configs;
  TP_Optimizer *optimizer;
} TP_OptimizerRegistrationParams;

enum outcome { UNCHANGED = 0, REPLACED = 1, INTERRUPTED = 2 };

/* Returns an `enum outcome`; `output` is for tf_amp_write_graph. */
typedef int (*optimize_callback)(const void *graph, size_t length,
                                 const TF_GrapplerItem *item, TF_Buffer *output);

static _Atomic(optimize_callback) callback;
static atomic_int running;                 /* threads inside `callback` */
static _Thread_local int running_here;     /* of them, calls of this thread */
static _Thread_local int interrupted_here; /* Ctrl-C awaits this thread in Python */

/* One question to Python, asked by a thread of its own that may wait for ever. */
enum answer { AWAITED, ANSWERED, GIVEN_UP };
typedef struct question {
  atomic_int answer;
  int (*take_lock)(void);
  void (*release_lock)(int);
} question;

static atomic_int patience_milliseconds = 20000;
static atomic_int unanswered; /* questions given up that still wait */

static void free_copy(void *data, size_t length) {
  (void)length;
  free(data);
}

static void clear_buffer(TF_Buffer *buffer) {
  if (buffer->data_deallocator)
    buffer->data_deallocator((void *)buffer->data, buffer->length);
  memset(buffer, 0, sizeof *buffer);
}

/* Copy a serialized GraphDef into `output`; 0 when done, -1 out of memory. */
EXPORT int tf_amp_write_graph(TF_Buffer *output, const void *graph, size_t length) {
  void *copy = malloc(length ? length : 1);
  if (!copy) return -1;
  memcpy(copy, graph, length);
  clear_buffer(output);
  output->data = copy;
  output->length = length;
  output->data_deallocator = free_copy;
  return 0;
}

/* Called by Python's main thread once it is back from TensorFlow. */
static int end_interrupt(void *unused) {
  (void)unused;
  interrupted_here = 0;
  return 0;
}

/* Ask again for the Ctrl-C that ended a callback. It must not be met by the next
   callback, so this thread has none until it is back in Python. */
static void repeat_interrupt(void) {
  int (*add_pending_call)(int (*)(void *), void *);
  *(void **)&add_pending_call = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
  interrupted_here = add_pending_call && add_pending_call(end_interrupt, NULL) == 0;
  raise(SIGINT);
}

/* Pass the time until the next look: from 0.01 to 1 millisecond. */
static long nap(int looks) {
  long nanoseconds = looks < 100 ? 10000L * (looks + 1) : 1000000L;
  const struct timespec duration = {0, nanoseconds};
  nanosleep(&duration, NULL);
  return nanoseconds;
}

static void *await_lock(void *given) {
  question *asked = given;
  asked->release_lock(asked->take_lock());
  if (atomic_exchange(&asked->answer, ANSWERED) == GIVEN_UP) {
    atomic_fetch_sub(&unanswered, 1);
    free(asked);
  }
  return NULL;
}

/* Start a thread that nobody joins; 0 when done. It begins detached: to detach one that
   is just ending crashes in glibc 2.36, which frees its stack meanwhile. */
static int start(void *(*function)(void *), void *given) {
  pthread_t thread;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return -1;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int failed = pthread_create(&thread, &attributes, function, given);
  pthread_attr_destroy(&attributes);
  return failed;
}

/* Start a thread that takes Python's lock once; NULL where that cannot be done. */
static question *ask(void) {
  question *asked = calloc(1, sizeof *asked);
  if (!asked) return NULL;
  *(void **)&asked->take_lock = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  *(void **)&asked->release_lock = dlsym(RTLD_DEFAULT, "PyGILState_Release");
  if (asked->take_lock && asked->release_lock && start(await_lock, asked) == 0)
    return asked;
  free(asked);
  return NULL;
}

static void warn_once(void) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&warned)) return;
  fprintf(stderr,
          "tf-amp: a graph passes through unchanged, since another thread has kept "
          "Python's lock for %g seconds.\n",
          atomic_load(&patience_milliseconds) / 1000.0);
}

/* Tell whether Python's lock is to be had. A call that keeps it while it waits for
   this graph would wait for ever, and this thread with it. */
static int python_answers(void) {
  int (*has_lock)(void);
  *(void **)&has_lock = dlsym(RTLD_DEFAULT, "PyGILState_Check");
  if (has_lock && has_lock()) return 1;
  if (atomic_load(&unanswered) > 0) return 0;
  question *asked = ask();
  if (!asked) return 1;

  long long left = atomic_load(&patience_milliseconds) * 1000000LL;
  int looks = 0;
  while (atomic_load(&asked->answer) == AWAITED && left > 0) left -= nap(looks++);
  if (atomic_exchange(&asked->answer, GIVEN_UP) == AWAITED) {
    /* The other thread may have counted it off already; then this comes to zero. */
    atomic_fetch_add(&unanswered, 1);
    warn_once();
    return 0;
  }
  free(asked);
  return 1;
}

static void optimize(void *optimizer, const TF_Buffer *graph,
                     const TF_GrapplerItem *item, TF_Buffer *output,
                     TF_Status *status) {
  (void)optimizer;
  (void)status;
  int outcome = UNCHANGED;
  /* Counted before the callback is read: whoever has cleared it and then sees a
     count of zero knows that no thread will enter it any more. */
  atomic_fetch_add(&running, 1);
  running_here++;
  optimize_callback call = atomic_load(&callback);
  if (call && !interrupted_here && python_answers())
    outcome = call(graph->data, graph->length, item, output);
  running_here--;
  atomic_fetch_sub(&running, 1);

  if (outcome != REPLACED || !output->data) {
    clear_buffer(output);
    if (tf_amp_write_graph(output, graph->data, graph->length) != 0) {
      /* Out of memory: lend the input, which TensorFlow frees after the output. */
      output->data = graph->data;
      output->length = graph->length;
    }
  }
  if (outcome == INTERRUPTED) repeat_interrupt();
}

/* Set the function that gets the graphs; NULL lets them pass unchanged. */
EXPORT void tf_amp_set_callback(optimize_callback function) {
  atomic_store(&callback, function);
}

/* Set how long a graph waits for Python's lock before it passes unchanged. */
EXPORT void tf_amp_set_patience(int milliseconds) {
  atomic_store(&patience_milliseconds, milliseconds);
}

/* Wait until no other thread is inside the callback; returns how many still are. */
EXPORT int tf_amp_wait_idle(int timeout_milliseconds) {
  const struct timespec millisecond = {0, 1000000};
  int others = atomic_load(&running) - running_here;
  while (others > 0 && timeout_milliseconds-- > 0) {
    nanosleep(&millisecond, NULL);
    others = atomic_load(&running) - running_here;
  }
  return others;
}

/* In a forked child only the forking thread lives on. */
static void forget_parent(void) {
  atomic_store(&callback, NULL);
  atomic_store(&running, running_here);
  atomic_store(&unanswered, 0);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, forget_parent);
}

/* Entry point that TensorFlow looks up when it loads this library. */
EXPORT void TF_InitGraph(TP_OptimizerRegistrationParams *params, TF_Status *status) {
  (void)status;
  /* An older, smaller struct: leave it blank, which TensorFlow refuses. */
  if (params->struct_size < END_OF(TP_OptimizerRegistrationParams, optimizer)) return;
  params->struct_size = END_OF(TP_OptimizerRegistrationParams, optimizer);
  params->device_type = DEVICE_TYPE;
  params->optimizer_configs->struct_size = END_OF(TP_OptimizerConfigs, switches);
  params->optimizer->struct_size = END_OF(TP_Optimizer, destroy_func);
  params->optimizer->create_func = NULL;
  params->optimizer->optimize_func = optimize;
  params->optimizer->destroy_func = NULL;
}
