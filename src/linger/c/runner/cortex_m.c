/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a program on any Cortex-M, its timer as a counter, and its call to the emulator. */
#include <stdint.h>

#include "linger_runner.h"
#include "semihosting.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define TIMER_CONTROL REGISTER(0xE000E010u)
#define TIMER_RELOAD REGISTER(0xE000E014u)
#define TIMER_VALUE REGISTER(0xE000E018u)
#define INTERRUPT_STATE REGISTER(0xE000ED04u)
#define COPROCESSOR_ACCESS REGISTER(0xE000ED88u)
#define TIMER_RUNS_BY_PROCESSOR_CLOCK 7u /* enabled, with its interrupt, by the clock of the processor */
#define TIMER_IS_PENDING (1u << 26)
#define TIMER_TICKS 0x1000000u /* the timer has 24 bits */
#define ALLOW_FLOAT_AND_VECTORS (0xFu << 20)

extern uint32_t _data_start, _data_end, _data_load, _bss_start, _bss_end, _stack_top;
int main(void);

void linger_runner_reset(void);
void linger_runner_fault(void);
void linger_runner_report_fault(void);
void linger_runner_timer(void);

static volatile uint32_t timer_rounds;

intptr_t linger_semihosting(intptr_t service, intptr_t argument)
{
    register intptr_t r0 __asm__("r0") = service;
    register intptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* Float and vector registers are not switched on at first: volatile keeps them, and what main does, out of this function. */
void linger_runner_reset(void)
{
    int (*volatile begin)(void) = main;
    const volatile uint32_t *from = &_data_load;
    volatile uint32_t *to;
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    COPROCESSOR_ACCESS |= ALLOW_FLOAT_AND_VECTORS;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
    for (to = &_data_start; to < &_data_end; to++) {
        *to = *from++;
    }
    for (to = &_bss_start; to < &_bss_end; to++) {
        *to = 0;
    }
    linger_runner_paint_stack();
    linger_semihosting_exit(begin());
}

__attribute__((used)) void linger_runner_report_fault(void)
{
    linger_semihosting_say("fault of the processor\n");
    linger_semihosting_exit(LINGER_RUNNER_FAULT);
}

/* The stack may be what is broken, so the report begins with an empty one. */
__attribute__((naked)) void linger_runner_fault(void)
{
    __asm__ volatile("ldr r0, =_stack_top\n\tmov sp, r0\n\tbl linger_runner_report_fault\n\t.ltorg");
}

void linger_runner_timer(void)
{
    timer_rounds++;
}

void linger_runner_start_counter(void)
{
    TIMER_RELOAD = TIMER_TICKS - 1u;
    TIMER_VALUE = 0;
    timer_rounds = 0;
    TIMER_CONTROL = TIMER_RUNS_BY_PROCESSOR_CLOCK;
    /* the first tick loads the timer, so that counting begins with a whole tick */
    while (TIMER_VALUE == 0u) {
    }
}

uint64_t linger_runner_ticks(void)
{
    uint32_t rounds, value;
    do {
        rounds = timer_rounds;
        value = TIMER_VALUE;
    } while (rounds != timer_rounds || (INTERRUPT_STATE & TIMER_IS_PENDING) != 0u);
    return (uint64_t)rounds * TIMER_TICKS + (TIMER_TICKS - 1u - value);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))(uintptr_t)&_stack_top,
    linger_runner_reset,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_fault,
    linger_runner_timer,
};
