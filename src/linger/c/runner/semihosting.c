/* SPDX-License-Identifier: Apache-2.0 */
/* The runner's files on an emulated processor: the emulator opens them in its own working folder. */
#include "semihosting.h"

#include "linger_runner.h"

#define SERVICE_OPEN 0x01
#define SERVICE_CLOSE 0x02
#define SERVICE_WRITE_TEXT 0x04
#define SERVICE_WRITE 0x05
#define SERVICE_READ 0x06
#define SERVICE_EXIT 0x20
#define MODE_READ_BINARY 1
#define MODE_WRITE_BINARY 5
#define REASON_APPLICATION_EXIT 0x20026

#define PATTERN 0x5AC35AC3u
#define LOWEST_WORDS 8

extern uint32_t _stack_bottom;

static intptr_t input_file = -1;
static intptr_t output_file = -1;
static uintptr_t painted_below;

void linger_semihosting_exit(int code)
{
    intptr_t block[2];
    block[0] = REASON_APPLICATION_EXIT;
    block[1] = code;
    for (;;) {
        (void)linger_semihosting(SERVICE_EXIT, (intptr_t)block);
    }
}

void linger_semihosting_say(const char *text)
{
    (void)linger_semihosting(SERVICE_WRITE_TEXT, (intptr_t)text);
}

static intptr_t open_file(const char *name, intptr_t length, intptr_t mode)
{
    intptr_t block[3];
    block[0] = (intptr_t)name;
    block[1] = mode;
    block[2] = length;
    return linger_semihosting(SERVICE_OPEN, (intptr_t)block);
}

void linger_runner_open(void)
{
    input_file = open_file("in.bin", 6, MODE_READ_BINARY);
    if (input_file < 0) {
        linger_semihosting_exit(LINGER_RUNNER_NO_INPUT);
    }
    output_file = open_file("out.bin", 7, MODE_WRITE_BINARY);
    if (output_file < 0) {
        linger_semihosting_exit(LINGER_RUNNER_NO_OUTPUT);
    }
}

/* Reading and writing return the number of bytes that were not read or written. */
static intptr_t left_by(intptr_t service, intptr_t file, const void *data, int32_t bytes)
{
    intptr_t block[3];
    block[0] = file;
    block[1] = (intptr_t)data;
    block[2] = bytes;
    return linger_semihosting(service, (intptr_t)block);
}

void linger_runner_read(void *data, int32_t bytes)
{
    if (bytes > 0 && left_by(SERVICE_READ, input_file, data, bytes) != 0) {
        linger_semihosting_exit(LINGER_RUNNER_NO_INPUT);
    }
}

void linger_runner_write(const void *data, int32_t bytes)
{
    if (bytes > 0 && left_by(SERVICE_WRITE, output_file, data, bytes) != 0) {
        linger_semihosting_exit(LINGER_RUNNER_NO_OUTPUT);
    }
}

void linger_runner_paint_stack(void)
{
    volatile uint32_t *word = &_stack_bottom;
#ifdef __riscv
    __asm__ volatile("mv %0, sp" : "=r"(painted_below));
#else
    __asm__ volatile("mov %0, sp" : "=r"(painted_below));
#endif
    while ((uintptr_t)word < painted_below) {
        *word++ = PATTERN;
    }
}

int32_t linger_runner_stack_bytes(void)
{
    const volatile uint32_t *word = &_stack_bottom;
    while ((uintptr_t)word < painted_below && *word == PATTERN) {
        word++;
    }
    return (int32_t)(painted_below - (uintptr_t)word);
}

/* Not every machine has a hole below its stack that would make an overflow a fault. */
static void check_stack(void)
{
    const volatile uint32_t *word = &_stack_bottom;
    int32_t number;
    for (number = 0; number < LOWEST_WORDS; number++) {
        if (word[number] != PATTERN) {
            linger_semihosting_exit(LINGER_RUNNER_NO_STACK);
        }
    }
}

void linger_runner_close(void)
{
    intptr_t block[1];
    check_stack();
    block[0] = output_file;
    if (linger_semihosting(SERVICE_CLOSE, (intptr_t)block) != 0) {
        linger_semihosting_exit(LINGER_RUNNER_NO_OUTPUT);
    }
}
