/* One collective operation of MPI, plainly: the method `c` of `python -m psframe.bench collectives`.
 *
 *   mpirun -n N collectives OPERATION BYTES REPETITIONS WARM_UP NODES CPUS
 *
 * NODES: NUMA nodes that the arrays are bound to, as 0,2, or `-`. CPUS: what each rank may run on, as 0,1/2,3, or `-`.
 * Prints the seconds of every rank, a line a repetition. Exit status 3 where a result is wrong, 4 where pages are not
 * where they were asked for. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RAMP = 1009, BIND = 2, PAGE = 4096, WORDS = 16 };

static int rank, n_ranks;

static void fail(int status, const char *what) {
    fprintf(stderr, "psframe: method c: rank %d: %s\n", rank, what);
    fflush(stderr);
    usleep(500000); /* a launcher that is told to abort drops what it has not read by then */
    MPI_Abort(MPI_COMM_WORLD, status);
    exit(status);
}

/* The list before the first end, as a mask. */
static void parse(const char *list, char end, unsigned long *mask) {
    while (*list && *list != end) {
        char *next;
        unsigned long number = strtoul(list, &next, 10);
        if (next == list || number >= WORDS * 64) fail(2, "a list of numbers cannot be read");
        mask[number / 64] |= 1ul << number % 64;
        list = *next == ',' ? next + 1 : next;
    }
}

static void pin(const char *cpus) {
    for (int i = 0; i < rank; i++) {
        cpus = strchr(cpus, '/');
        if (!cpus) return;
        cpus++;
    }
    unsigned long mask[WORDS] = {0};
    parse(cpus, '/', mask);
    sched_setaffinity(0, sizeof mask, (cpu_set_t *)mask);
}

static int *allocate(size_t bytes, const unsigned long *nodes, int bound) {
    if (!bytes) return NULL;
    int *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED) fail(2, "there is no memory left");
    if (bound && syscall(SYS_mbind, array, bytes, BIND, nodes, WORDS * 64 + 1, 0))
        fail(4, "mbind is denied, or there is no such NUMA node");
    memset(array, -1, bytes);
    return array;
}

/* The part of the pages that are on the nodes asked for must be all of them, nearly. */
static void verify_pages(char *array, size_t bytes, const unsigned long *nodes) {
    size_t n = bytes / PAGE, elsewhere = 0;
    for (size_t at = 0; at < n; at += 512) {
        void *pages[512];
        int where[512];
        size_t some = n - at < 512 ? n - at : 512;
        for (size_t i = 0; i < some; i++) pages[i] = array + (at + i) * PAGE;
        if (syscall(SYS_move_pages, 0, some, pages, NULL, where, 0)) fail(4, "move_pages is denied");
        for (size_t i = 0; i < some; i++)
            elsewhere += where[i] < 0 || !(nodes[where[i] / 64] >> where[i] % 64 & 1);
    }
    if (elsewhere * 100 > n) fail(4, "pages are not on the NUMA nodes asked for");
}

static void fill(int *array, size_t count, int base) {
    for (size_t i = 0; i < count; i++) array[i] = base + (int)(i % RAMP);
}

static void check(const int *array, size_t count, int base, int times) {
    for (size_t i = 0; i < count; i++)
        if (array[i] != base + times * (int)(i % RAMP)) fail(3, "the result is wrong");
}

static int base_of(int of_rank, int k) { return 31 * of_rank + 7 * k; }

int main(int argc, char **argv) {
    int threads; /* as mpi4py asks for: where ranks share cores, MPICH gives way then, and else spins */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    if (argc != 7) fail(2, "it takes OPERATION BYTES REPETITIONS WARM_UP NODES CPUS");
    int is_bcast = !strcmp(argv[1], "bcast"), is_gather = !strcmp(argv[1], "gather"), bound = strcmp(argv[5], "-") != 0;
    size_t bytes = strtoull(argv[2], NULL, 10), count = bytes / sizeof(int);
    int repetitions = atoi(argv[3]), warm_up = atoi(argv[4]), base_sum = 0;
    unsigned long nodes[WORDS] = {0};
    if (strcmp(argv[6], "-")) pin(argv[6]);
    if (bound) parse(argv[5], 0, nodes);
    size_t received_bytes = is_bcast ? 0 : is_gather ? (rank ? 0 : bytes * n_ranks) : bytes;
    int *sent = allocate(bytes, nodes, bound), *received = allocate(received_bytes, nodes, bound);
    if (bound) verify_pages((char *)sent, bytes, nodes);
    if (bound) verify_pages((char *)received, received_bytes, nodes);
    double *every = malloc(n_ranks * sizeof *every);
    for (int k = 0; k < warm_up + repetitions; k++) {
        if (is_bcast && rank) memset(sent, -1, bytes); else fill(sent, count, base_of(rank, k));
        if (received) memset(received, -1, received_bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        if (is_bcast) MPI_Bcast(sent, (int)count, MPI_INT, 0, MPI_COMM_WORLD);
        else if (is_gather) MPI_Gather(sent, (int)count, MPI_INT, received, (int)count, MPI_INT, 0, MPI_COMM_WORLD);
        else MPI_Allreduce(sent, received, (int)count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        double took = MPI_Wtime() - began;
        MPI_Barrier(MPI_COMM_WORLD); /* or to check would keep those that are not yet done from their cores */
        base_sum = 0;
        for (int r = 0; r < n_ranks; r++) base_sum += base_of(r, k);
        if (is_bcast) check(sent, count, base_of(0, k), 1);
        else if (!is_gather) check(received, count, base_sum, n_ranks);
        else if (!rank)
            for (int r = 0; r < n_ranks; r++) check(received + r * count, count, base_of(r, k), 1);
        MPI_Gather(&took, 1, MPI_DOUBLE, every, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (!rank && k >= warm_up)
            for (int r = 0; r < n_ranks; r++) printf("%.9f%c", every[r], r + 1 < n_ranks ? ' ' : '\n');
    }
    MPI_Finalize();
    return 0;
}
