/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a program on a 32-bit RISC-V without an operating system, its counter, and its call to the emulator. */
#include <stdint.h>

#include "linger_runner.h"
#include "semihosting.h"

extern uint32_t _bss_start, _bss_end;
int main(void);

void linger_runner_reset(void);
void linger_runner_report_fault(void);

/* The emulator jumps to the first address of its RAM, where the linker script puts this. */
__asm__(".section .start, \"ax\", @progbits\n"
        ".globl _start\n"
        "_start:\n"
        "    .option push\n"
        "    .option norelax\n"
        "    la gp, __global_pointer$\n"
        "    .option pop\n"
        "    la sp, _stack_top\n"
        "    la t0, linger_runner_trap\n"
        "    .word 0x30529073\n" /* csrw mtvec, t0 */
        "    j linger_runner_reset\n"
        "    .balign 4\n"
        "linger_runner_trap:\n"
        "    la sp, _stack_top\n"
        "    j linger_runner_report_fault\n"
        ".previous\n");

/* The three instructions around ebreak mark the call and must not be compressed. */
__attribute__((naked, noinline)) intptr_t linger_semihosting(intptr_t service, intptr_t argument)
{
    (void)service;
    (void)argument;
    __asm__ volatile(".option push\n\t"
                     ".option norvc\n\t"
                     ".balign 16\n\t"
                     "slli zero, zero, 0x1f\n\t"
                     "ebreak\n\t"
                     "srai zero, zero, 7\n\t"
                     "ret\n\t"
                     ".option pop");
}

__attribute__((used)) void linger_runner_reset(void)
{
    volatile uint32_t *to;
    for (to = &_bss_start; to < &_bss_end; to++) {
        *to = 0;
    }
    linger_runner_paint_stack();
    linger_semihosting_exit(main());
}

__attribute__((used)) void linger_runner_report_fault(void)
{
    linger_semihosting_say("fault of the processor\n");
    linger_semihosting_exit(LINGER_RUNNER_FAULT);
}

void linger_runner_start_counter(void)
{
}

/* The instructions that read a counter are written as numbers: an assembler knows them only with an extra architecture flag. */
uint64_t linger_runner_ticks(void)
{
    uint32_t high, low, again;
    do {
        __asm__ volatile(".word 0xB8202573\n\tmv %0, a0" : "=r"(high)::"a0", "memory");  /* csrr a0, minstreth */
        __asm__ volatile(".word 0xB0202573\n\tmv %0, a0" : "=r"(low)::"a0", "memory");   /* csrr a0, minstret */
        __asm__ volatile(".word 0xB8202573\n\tmv %0, a0" : "=r"(again)::"a0", "memory"); /* csrr a0, minstreth */
    } while (high != again);
    return ((uint64_t)high << 32) | low;
}
