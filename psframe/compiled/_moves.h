/* Steps of collectives through a group's rooms (psf_rooms_on), and waits for what is missing (psf_run). */
#ifndef PSFRAME_MOVES_H
#define PSFRAME_MOVES_H

#include <sched.h>

#include "_fold.h"
#include "_rooms.h"

/* what chunk k has of a part: `n_bytes` at `at`, from byte `within` of the sub-slot on */
typedef struct {
    char *at;
    long n_bytes, within;
} psf_piece;

static inline psf_piece psf_piece_of(const psf_move *m, const psf_part *part, long k) {
    long from = k * m->width, to = from + m->width, end = part->from + part->n_bytes;
    psf_piece piece = {part->at, 0, 0};
    from = from > part->from ? from : part->from;
    to = to < end ? to : end;
    if (from < to) {
        piece.at += from - part->from;
        piece.n_bytes = to - from;
        piece.within = from - k * m->width;
    }
    return piece;
}

static void psf_put(psf_rooms *g, psf_move *m, long k) {
    uint64_t chunk = m->first + (uint64_t)k;
    char *slot = psf_slot(g, chunk, g->me);
    for (int i = 0; i < m->n_in; i++) {
        psf_piece piece = psf_piece_of(m, &m->in[i], k);
        if (piece.n_bytes)
            memcpy(slot + m->in[i].of * m->width + piece.within, piece.at, (size_t)piece.n_bytes);
    }
    if (k == 0) {
        psf_notes(g, chunk)[g->me] = m->note;
        for (int i = 0; m->is_uneven && i < m->n_in; i++)
            psf_lengths(g, chunk, g->me)[m->in[i].of] = m->in[i].n_bytes;
    }
    psf_arrive_at(g, chunk, PSF_PUT);
}

/* Return 1 if all ranks mean the same; else remember one that does not. */
static int psf_agree(psf_rooms *g, psf_move *m) {
    psf_note *notes = psf_notes(g, m->first);
    m->odd = -1;
    for (int rank = 0; rank < g->n; rank++) {
        /* a chain brings the note of the rank before this node's */
        if (m->is_chained && (rank < g->ranks_here[0] - 1 || rank > g->ranks_here[g->n_here - 1]))
            continue;
        if (memcmp(&notes[rank], &m->note, PSF_COMPARED))
            m->odd = m->odd < 0 ? rank : m->odd;
        if (m->is_uneven && (long)notes[rank].n_chunks > m->n_chunks)
            m->n_chunks = (long)notes[rank].n_chunks;
    }
    for (int i = 0; m->odd < 0 && m->is_uneven && i < m->n_out; i++)
        if (psf_lengths(g, m->first, m->out[i].of)[g->me] != m->out[i].n_bytes)
            m->odd = (int)m->out[i].of;
    if (m->odd < 0)
        return 1;
    m->state = PSF_UNLIKE;
    g->is_broken = 1;
    return 0;
}

/* Fold the slots of all ranks, `n_bytes` from `at` on; of a chain, the sum over the nodes before and those of this. */
static void psf_fold_slots(psf_rooms *g, psf_move *m, uint64_t chunk, long at, long n_bytes, char *out) {
    int n_rows = 0, op = (int)m->note.op;
    if (m->is_chained && g->ranks_here[0])
        g->rows[n_rows++] = psf_slot(g, chunk, g->n + 1) + at;
    for (int i = 0; i < (m->is_chained ? g->n_here : g->n); i++)
        g->rows[n_rows++] = psf_slot(g, chunk, m->is_chained ? g->ranks_here[i] : i) + at;
    psf_fold((int)m->note.type, op == PSF_AVG && m->is_chained ? PSF_SUM : op, g->rows, n_rows, n_bytes, out);
    if (op == PSF_AVG && m->is_chained && g->is_last)
        psf_share((int)m->note.type, n_bytes / psf_type_bytes[m->note.type], g->n, out);
}

static long psf_chunk_bytes(const psf_move *m, long k) {
    long left = (long)m->note.n_bytes - k * m->width;
    return left < 0 ? 0 : left < m->width ? left : m->width;
}

/* Fold this rank's segment of a chunk, whole cache lines, into the slot for sums. */
static void psf_sum(psf_rooms *g, psf_move *m, long k) {
    uint64_t chunk = m->first + (uint64_t)k;
    long n_bytes = psf_chunk_bytes(m, k), lines = (n_bytes + PSF_LINE - 1) / PSF_LINE;
    long from = lines * g->here / g->n_here * PSF_LINE, to = lines * (g->here + 1) / g->n_here * PSF_LINE;
    to = to < n_bytes ? to : n_bytes;
    if (from < to)
        psf_fold_slots(g, m, chunk, from, to - from, psf_slot(g, chunk, g->n) + from);
    psf_arrive_at(g, chunk, PSF_SUMMED_GATE);
}

static void psf_take(psf_rooms *g, psf_move *m, long k) {
    uint64_t chunk = m->first + (uint64_t)k;
    for (int i = 0; m->take != PSF_NOTHING && i < m->n_out; i++) {
        psf_piece piece = psf_piece_of(m, &m->out[i], k);
        long at = m->sub * m->width + piece.within;
        if (!piece.n_bytes)
            continue;
        if (m->take == PSF_FOLDED)
            psf_fold_slots(g, m, chunk, at, piece.n_bytes, piece.at);
        else
            memcpy(piece.at, psf_slot(g, chunk, m->out[i].of) + at, (size_t)piece.n_bytes);
    }
    psf_arrive_at(g, chunk, PSF_LEFT);
}

/* Do what can be done of a collective; return 1 if all of it is put, so that the next one may begin. */
static int psf_move_on(psf_rooms *g, psf_move *m) {
    int goes_on = 1;
    while (goes_on && m->state == PSF_GOING) {
        goes_on = 0;
        if (m->n_put < m->n_chunks && psf_is_free(g, m->first + (uint64_t)m->n_put)) {
            psf_put(g, m, m->n_put++);
            goes_on = 1;
        }
        if (m->n_summed < m->n_put && psf_passed(g, m->first + (uint64_t)m->n_summed, psf_gate_of_slots(g))) {
            if (m->n_summed == 0 && !psf_agree(g, m))
                return 0;
            if (m->in_segments)
                psf_sum(g, m, m->n_summed);
            m->n_summed++;
            goes_on = 1;
        }
        if (m->n_taken < m->n_summed &&
            (!m->in_segments || psf_passed(g, m->first + (uint64_t)m->n_taken, psf_gate_of_sum(m)))) {
            psf_take(g, m, m->n_taken++);
            goes_on = 1;
        }
        if (m->n_taken == m->n_chunks)
            m->state = PSF_DONE;
    }
    return m->n_put == m->n_chunks && (!m->is_uneven || m->n_summed);
}

/* Do what can be done of all collectives begun, in their order; the caller holds the lock. */
static void psf_rooms_on(psf_rooms *g) {
    int all_put = 1;
    for (psf_move *m = g->begun; m && all_put && !g->is_broken; m = m->next) {
        if (m->n_put == 0) /* all before it are put: its chunks are the next ones */
            m->first = g->next_chunk;
        all_put = psf_move_on(g, m);
        if (m->n_put)
            g->next_chunk = m->first + (uint64_t)m->n_chunks;
    }
    while (g->begun && g->begun->state != PSF_GOING) {
        psf_move *done = g->begun;
        g->begun = done->next;
        done->is_out = 1;
    }
}

static void psf_begin(psf_rooms *g, psf_move *m) {
    pthread_mutex_lock(&g->lock);
    m->note.number = g->n_moves++;
    m->next = NULL;
    if (g->begun)
        g->last->next = m;
    else
        g->begun = m;
    g->last = m;
    psf_rooms_on(g);
    pthread_mutex_unlock(&g->lock);
}

/* The gate that keeps the first collective from going on. */
static psf_awaited psf_awaits(psf_rooms *g) {
    psf_move *m = g->begun;
    int gate = m->n_put == m->n_taken ? PSF_LEFT : m->n_taken < m->n_summed ? psf_gate_of_sum(m) : psf_gate_of_slots(g);
    uint64_t chunk = m->first + (uint64_t)m->n_taken;
    psf_awaited found = {psf_gate_of(g, chunk, gate), psf_use(g, chunk) - (gate == PSF_LEFT)};
    return found;
}

/* Returns 1 if a rank of this node, by its number there, has not come to what the first collective waits for. */
static int psf_is_late(psf_rooms *g, int rank) {
    int late = 0;
    pthread_mutex_lock(&g->lock);
    if (g->begun) {
        psf_awaited a = psf_awaits(g);
        psf_control *control = (psf_control *)psf_room(g, g->begun->first + (uint64_t)g->begun->n_taken);
        long gate = a.gate - control->gate; /* what only a leader opens may wait for a rank of its node */
        gate = gate == PSF_ALL ? PSF_PUT : gate == PSF_TOTAL ? PSF_SUMMED_GATE : gate;
        uint32_t last = atomic_load_explicit(&control->rank[rank].passage[gate], memory_order_relaxed);
        late = (int32_t)(last - a.passage) < 0;
    }
    pthread_mutex_unlock(&g->lock);
    return late;
}

static void psf_rooms_poll(psf_rooms *g) {
    pthread_mutex_lock(&g->lock);
    psf_rooms_on(g);
    pthread_mutex_unlock(&g->lock);
}

/* Let nothing go on any more: the tensors of what has begun may go. */
static void psf_stop(psf_rooms *g) {
    pthread_mutex_lock(&g->lock);
    g->is_broken = 1;
    pthread_mutex_unlock(&g->lock);
}

static int psf_await(psf_awaited a, long spins, double timeout_s) {
    for (int i = 0; !spins && i < PSF_YIELDS; i++) { /* the rank that is missing may wait for this core */
        if (psf_is_open(a.gate, a.passage))
            return 1;
        sched_yield();
    }
    for (long i = 1; i <= spins; i++) {
        if (psf_is_open(a.gate, a.passage))
            return 1;
        psf_pause();
        if (i % PSF_TURNS_A_YIELD == 0)
            sched_yield();
    }
    return psf_wait(a.gate, a.passage, 0, timeout_s);
}

/* Go on until a collective is done, or the group is broken, or nothing has come for `timeout_s`; return 0 for that. */
static int psf_run(psf_rooms *g, psf_move *m, double timeout_s) {
    for (;;) {
        pthread_mutex_lock(&g->lock);
        psf_rooms_on(g);
        int ended = m->state != PSF_GOING || g->is_broken || !g->begun;
        psf_awaited a = {NULL, 0};
        if (!ended)
            a = psf_awaits(g);
        pthread_mutex_unlock(&g->lock);
        if (ended)
            return 1;
        if (!psf_await(a, g->spins, timeout_s))
            return 0;
    }
}

#endif
