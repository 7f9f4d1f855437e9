/* PSF_WIDEST: a function compiled for several widths of vector registers; the loader selects the widest that the CPU
has. */
#ifndef PSFRAME_WIDEST_H
#define PSFRAME_WIDEST_H

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define PSF_WIDEST __attribute__((target_clones("default", "avx2", "avx512f"), noinline))
#else
#define PSF_WIDEST __attribute__((noinline))
#endif

#endif
