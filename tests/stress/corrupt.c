/* Stands in front of an MPI (LD_PRELOAD) and spoils the operation that CORRUPT names, on rank 1 after some calls, or, for
 * a gather, on rank 0. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int spoils(const char *name, MPI_Comm comm, int on) {
    static int calls;
    int rank, wanted = getenv("CORRUPT") && !strcmp(getenv("CORRUPT"), name);
    PMPI_Comm_rank(comm, &rank);
    return wanted && rank == on && ++calls == 3;
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    int status = PMPI_Bcast(buffer, count, type, root, comm);
    if (count > 1000 && spoils("bcast", comm, 1)) ((int *)buffer)[count / 2]++;
    return status;
}

#if MPI_VERSION >= 4
int MPI_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
    int status = PMPI_Bcast_c(buffer, count, type, root, comm);
    if (count > 1000 && spoils("bcast", comm, 1)) ((int *)buffer)[count / 2]++;
    return status;
}
#endif

int MPI_Gather(const void *sent, int n_sent, MPI_Datatype of_sent, void *received, int count, MPI_Datatype type, int root,
               MPI_Comm comm) {
    int status = PMPI_Gather(sent, n_sent, of_sent, received, count, type, root, comm);
    if (count > 1000 && spoils("gather", comm, 0)) ((int *)received)[count / 2]++;
    return status;
}

#if MPI_VERSION >= 4
int MPI_Gather_c(const void *sent, MPI_Count n_sent, MPI_Datatype of_sent, void *received, MPI_Count count,
                 MPI_Datatype type, int root, MPI_Comm comm) {
    int status = PMPI_Gather_c(sent, n_sent, of_sent, received, count, type, root, comm);
    if (count > 1000 && spoils("gather", comm, 0)) ((int *)received)[count / 2]++;
    return status;
}
#endif

int MPI_Allreduce(const void *sent, void *received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int status = PMPI_Allreduce(sent, received, count, type, op, comm);
    if (count > 1000 && spoils("allreduce", comm, 1)) ((int *)received)[count / 2]++;
    return status;
}

#if MPI_VERSION >= 4
int MPI_Allreduce_c(const void *sent, void *received, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int status = PMPI_Allreduce_c(sent, received, count, type, op, comm);
    if (count > 1000 && spoils("allreduce", comm, 1)) ((int *)received)[count / 2]++;
    return status;
}
#endif
