/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from an emulated processor to the machine that emulates it. */
#include <stdint.h>

/* Ask for a service; `argument` is a number or the address of a block of words. */
intptr_t linger_semihosting(intptr_t service, intptr_t argument);
/* End the emulation with this exit code. */
void linger_semihosting_exit(int code);
/* Show a text that ends with a zero byte. */
void linger_semihosting_say(const char *text);
