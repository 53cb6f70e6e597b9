/* SPDX-License-Identifier: Apache-2.0 */
/* What the generated main program needs of the machine that it runs on. */
#include <stdint.h>

/* Exit codes with a meaning of their own; the reader of out.bin knows them. */
#define LINGER_RUNNER_NO_INPUT 81
#define LINGER_RUNNER_NO_OUTPUT 82
#define LINGER_RUNNER_FAULT 83
#define LINGER_RUNNER_NO_STACK 84

/* Open in.bin and out.bin in the working folder. */
void linger_runner_open(void);
/* Read this many bytes of in.bin; ends the program if there are fewer. */
void linger_runner_read(void *data, int32_t bytes);
/* Append this many bytes to out.bin; ends the program if they cannot be written. */
void linger_runner_write(const void *data, int32_t bytes);
/* Close out.bin, so that all of it can be read. */
void linger_runner_close(void);
/* Start the counter of time or instructions, where the machine has one. */
void linger_runner_start_counter(void);
/* Ticks since the counter was started; 0 where the machine has none. */
uint64_t linger_runner_ticks(void);
/* Write a pattern into the part of the stack that is not used now. */
void linger_runner_paint_stack(void);
/* Bytes of the stack that were used since then; 0 where this is not known. */
int32_t linger_runner_stack_bytes(void);
