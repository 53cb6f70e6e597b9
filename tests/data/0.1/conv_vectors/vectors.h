/* Test vectors of linger: see README.txt. */
#ifndef LINGER_VECTORS_H
#define LINGER_VECTORS_H

#include <stdint.h>

/* left out: x (Input), float32 2x1x6x6, batch 0 */

/* left out: conv.Quant (Quant), int8 2x1x6x6, scale 64, batch 0 */

/* left out: conv.Conv2dInt (Conv2dInt), int8 2x4x6x6, scale 32, batch 0 */

/* left out: Relu (Relu), int8 2x4x6x6, scale 32, batch 0 */

/* left out: mix.Conv2dInt (Conv2dInt), int8 2x4x6x6, scale 32, batch 0 */

/* left out: iqAdd (iqAdd), int8 2x4x6x6, scale 32, batch 0 */

/* left out: Relu_1 (Relu), int8 2x4x6x6, scale 32, batch 0 */

/* left out: pool.AvgPool2dInt (AvgPool2dInt), int8 2x4x3x3, scale 32, batch 0 */

/* left out: /Flatten_output_0 (Flatten), int8 2x36, scale 32, batch 0 */

/* head.LinearInt (LinearInt), int8 2x3, scale 64 */
static const int8_t b0_009_head_LinearInt[6] = {
  -90, 28, 105, -128, 48, 84,
};

/* scores (Dequant), float32 2x3, scale 64 */
static const float b0_010_scores[6] = {
  -1.40625f, 0.4375f, 1.640625f, -2.0f, 0.75f, 1.3125f,
};

#endif
