/* SPDX-License-Identifier: Apache-2.0 */
/* The runner's files on a machine with an operating system. */
#define _POSIX_C_SOURCE 200112L
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "linger_runner.h"

static int input_file = -1;
static int output_file = -1;

void linger_runner_open(void)
{
    input_file = open("in.bin", O_RDONLY);
    if (input_file < 0) {
        exit(LINGER_RUNNER_NO_INPUT);
    }
    output_file = open("out.bin", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (output_file < 0) {
        exit(LINGER_RUNNER_NO_OUTPUT);
    }
}

void linger_runner_read(void *data, int32_t bytes)
{
    char *next = data;
    while (bytes > 0) {
        ssize_t got = read(input_file, next, (size_t)bytes);
        if (got <= 0) {
            exit(LINGER_RUNNER_NO_INPUT);
        }
        next += got;
        bytes -= (int32_t)got;
    }
}

void linger_runner_write(const void *data, int32_t bytes)
{
    const char *next = data;
    while (bytes > 0) {
        ssize_t put = write(output_file, next, (size_t)bytes);
        if (put <= 0) {
            exit(LINGER_RUNNER_NO_OUTPUT);
        }
        next += put;
        bytes -= (int32_t)put;
    }
}

void linger_runner_close(void)
{
    if (close(output_file) != 0) {
        exit(LINGER_RUNNER_NO_OUTPUT);
    }
}

void linger_runner_start_counter(void)
{
}

uint64_t linger_runner_ticks(void)
{
    return 0;
}

void linger_runner_paint_stack(void)
{
}

int32_t linger_runner_stack_bytes(void)
{
    return 0;
}
