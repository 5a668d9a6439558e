/* Loaded before a program, tells the test after each call that changes what a disk holds; see power_cut.py.

   A message is the number of the file that was synced, or 0 for another change. The program waits until it is read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int watcher = -1;

void power_cut_watch(int descriptor) { watcher = descriptor; }

static void tell(unsigned long number) {
    char answer;
    if (watcher < 0) return;
    syscall(SYS_write, watcher, &number, sizeof number);
    syscall(SYS_read, watcher, &answer, 1);
}

#define TOLD(type, name, parameters, arguments, number)            \
    type name parameters {                                         \
        static type (*real) parameters;                            \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        type result = real arguments;                              \
        tell(number);                                              \
        return result;                                             \
    }

static unsigned long number_of(int file) {
    struct stat facts;
    return fstat(file, &facts) ? 0 : facts.st_ino;
}

TOLD(ssize_t, write, (int file, const void *content, size_t size), (file, content, size), 0)
TOLD(ssize_t, pwrite, (int file, const void *content, size_t size, off_t at), (file, content, size, at), 0)
TOLD(ssize_t, pwrite64, (int file, const void *content, size_t size, off64_t at), (file, content, size, at), 0)
TOLD(int, ftruncate, (int file, off_t size), (file, size), 0)
TOLD(int, ftruncate64, (int file, off64_t size), (file, size), 0)
TOLD(int, unlink, (const char *path), (path), 0)
TOLD(int, rename, (const char *path, const char *to), (path, to), 0)
TOLD(int, fsync, (int file), (file), number_of(file))
TOLD(int, fdatasync, (int file), (file), number_of(file))

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name)                                                 \
    int name(const char *path, int flags, ...) {                   \
        static int (*real)(const char *, int, ...);                \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list rest;                                              \
        va_start(rest, flags);                                     \
        int file = real(path, flags, mode_of(flags, rest));        \
        va_end(rest);                                              \
        if (flags & O_CREAT) tell(0);                              \
        return file;                                               \
    }
OPEN(open)
OPEN(open64)
