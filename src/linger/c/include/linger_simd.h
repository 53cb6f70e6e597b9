/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the instruction set, by the compiler's own macros. -DLINGER_GENERIC chooses plain C99. */

#ifndef LINGER_SIMD_H
#define LINGER_SIMD_H

#include <stdint.h>
#include <string.h>

/* LINGER_VARIANT names the chosen instruction set. Of the macros LINGER_AVX512, LINGER_AVX2, LINGER_HELIUM and LINGER_SMLAD at
   most one is defined; LINGER_X86 comes with the first two. */
#if defined(LINGER_GENERIC)
#define LINGER_VARIANT "generic"
#elif defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define LINGER_VARIANT "AVX-512"
#define LINGER_AVX512 1
#define LINGER_X86 1
#elif defined(__AVX2__)
#define LINGER_VARIANT "AVX2"
#define LINGER_AVX2 1
#define LINGER_X86 1
#elif defined(__GNUC__) && defined(__ARM_FEATURE_MVE) && ((__ARM_FEATURE_MVE & 1) != 0) && !defined(__ARM_BIG_ENDIAN)
#define LINGER_VARIANT "Helium"
#define LINGER_HELIUM 1
#elif defined(__GNUC__) && defined(__thumb2__) && defined(__ARM_FEATURE_UNALIGNED) && !defined(__ARM_BIG_ENDIAN) && \
    (defined(__ARM_FEATURE_DSP) || defined(__ARM_FEATURE_SIMD32))
#define LINGER_VARIANT "SMLAD"
#define LINGER_SMLAD 1
#else
#define LINGER_VARIANT "generic"
#endif

#if defined(LINGER_X86)
#include <immintrin.h>
#endif
#if defined(LINGER_HELIUM)
#include <arm_mve.h>
#endif

/* LINGER_UNROLL is for loops over the sums of a block, which must stay in registers. Functions that several layers call exist
   once (LINGER_SHARED): a copy per layer would cost more flash than the call costs time. */
#if defined(__clang__)
#define LINGER_SHARED static __attribute__((noinline, unused))
#define LINGER_INSIDE static inline __attribute__((always_inline, unused))
#define LINGER_UNROLL
#elif defined(__GNUC__) && (__GNUC__ >= 8)
#define LINGER_SHARED static __attribute__((noipa, unused))
#define LINGER_INSIDE static inline __attribute__((always_inline, unused))
#define LINGER_UNROLL _Pragma("GCC unroll 4")
#else
#define LINGER_SHARED static inline
#define LINGER_INSIDE static inline
#define LINGER_UNROLL
#endif

/* How many neighboring channels plain C takes at a time: as many as the registers of a small core hold. */
#define LINGER_BLOCK 4

/* How many of all channels one call computes: few where every byte of the stack counts, more where a larger share of the work is
   the call's own. Both numbers divide all channels. */
#if defined(LINGER_X86)
#define LINGER_TILE(all, few) ((all) <= 512 ? (all) : (((all) % 64) == 0 ? 64 : (few)))
#elif defined(LINGER_HELIUM)
#define LINGER_TILE(all, few) (((all) % (2 * (few))) == 0 ? (2 * (few)) : (few))
#else
#define LINGER_TILE(all, few) (few)
#endif

/* The most pixels that one call handles: they share the loaded weights. */
#if defined(LINGER_X86)
#define LINGER_PIXELS 4
#else
#define LINGER_PIXELS 2
#endif

/* Where the compiler can vectorize, loops over all channels are faster than blocks of them in registers. LINGER_SMALL_CORE
   chooses the blocks all the same. */
#if (defined(__SSE2__) || defined(__ARM_NEON)) && !defined(LINGER_SMALL_CORE)
#define LINGER_CHANNELS_INSIDE 1
#endif

/* Functions of signed and of unsigned bytes are the same text: inside, bytes are pointers to int8_t, and a literal says what they
   are. */
LINGER_INSIDE int32_t linger_byte(const int8_t *x, int32_t i, int32_t is_unsigned)
{
    return (is_unsigned != 0) ? (int32_t)(uint8_t)x[i] : (int32_t)x[i];
}

#if defined(LINGER_X86)
/* 16 bytes as 16-bit integers. */
LINGER_INSIDE __m256i linger_widen_16(const int8_t *from)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* The first `count` < 16 of 16 bytes, without reading the others. */
LINGER_INSIDE __m256i linger_widen_some(const int8_t *from, int32_t count)
{
    int8_t bytes[16] = {0};
    (void)memcpy(bytes, from, (size_t)count);
    return linger_widen_16(bytes);
}
#endif

#if defined(LINGER_SMLAD)
/* Four bytes in one load. The name of the builtin keeps it one load where -ffreestanding makes memcpy a function. */
LINGER_INSIDE uint32_t linger_load_four(const int8_t *from)
{
    uint32_t four;
    (void)__builtin_memcpy(&four, from, sizeof four);
    return four;
}

/* Bytes 0 and 2 of a word as two 16-bit integers. */
LINGER_INSIDE uint32_t linger_even_bytes(uint32_t four)
{
    uint32_t pair;
    __asm__("sxtb16 %0, %1" : "=r"(pair) : "r"(four));
    return pair;
}

/* Bytes 1 and 3 of a word as two 16-bit integers. */
LINGER_INSIDE uint32_t linger_odd_bytes(uint32_t four)
{
    uint32_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(four));
    return pair;
}

/* The same of unsigned bytes where a literal says so. */
LINGER_INSIDE uint32_t linger_even_of(uint32_t four, int32_t is_unsigned)
{
    return (is_unsigned != 0) ? (four & 0x00FF00FFU) : linger_even_bytes(four);
}

LINGER_INSIDE uint32_t linger_odd_of(uint32_t four, int32_t is_unsigned)
{
    return (is_unsigned != 0) ? ((four >> 8) & 0x00FF00FFU) : linger_odd_bytes(four);
}

/* The sum and the product of the low halves of two pairs. */
LINGER_INSIDE int32_t linger_add_low_product(int32_t sum, uint32_t x_pair, uint32_t w_pair)
{
    __asm__("smlabb %0, %1, %2, %0" : "+r"(sum) : "r"(x_pair), "r"(w_pair));
    return sum;
}

/* The sum and the product of the high halves of two pairs. */
LINGER_INSIDE int32_t linger_add_high_product(int32_t sum, uint32_t x_pair, uint32_t w_pair)
{
    __asm__("smlatt %0, %1, %2, %0" : "+r"(sum) : "r"(x_pair), "r"(w_pair));
    return sum;
}

/* The sum and the product of the low half of one pair and the high half of the other. */
LINGER_INSIDE int32_t linger_add_crossed_product(int32_t sum, uint32_t x_pair, uint32_t w_pair)
{
    __asm__("smlabt %0, %1, %2, %0" : "+r"(sum) : "r"(x_pair), "r"(w_pair));
    return sum;
}

/* The sum and both products of two pairs. */
LINGER_INSIDE int32_t linger_add_products(int32_t sum, uint32_t x_pair, uint32_t w_pair)
{
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(x_pair), "r"(w_pair));
    return sum;
}
#endif

#endif
