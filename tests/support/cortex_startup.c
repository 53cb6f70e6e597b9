/* The start of a test program on an emulated Cortex-M: a vector table, and the coprocessors switched on. */

#include <stdint.h>

extern void _start(void);
void reset(void);
void fault(void);

/* The stack is at the end of the first 256 KB of RAM. */
__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
    0x20040000U,      (uintptr_t)&reset, (uintptr_t)&fault, (uintptr_t)&fault, (uintptr_t)&fault, (uintptr_t)&fault,
    (uintptr_t)&fault};

void reset(void)
{
    *(volatile uint32_t *)0xE000ED88U |= 0x00F00000U; /* CPACR: floating point and Helium */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    _start();
}

/* A fault ends the emulation with exit code 1 (semihosting's SYS_EXIT with a run-time error). */
void fault(void)
{
    __asm__ volatile("movs r0, #0x18\n\tldr r1, =0x20023\n\tbkpt #0xAB" ::: "r0", "r1", "memory");
    for (;;) {
    }
}
